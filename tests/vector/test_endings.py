"""Processes that end with their parent, by the kernel or by a thread, and what they say before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from twostep.vector.endings import ASK_FOR_WORDS, last_words, wait_for_words
from twostep.vector.shared import nameless_file

PROGRAM = """
import fcntl, os, time
if {by_thread}:
    del fcntl.F_SETSIG
from twostep.vector.endings import end_with
end_with({lifeline})
print("armed", flush=True)
{then}
"""


def started(by_thread, then, lifeline):
    program = PROGRAM.format(by_thread=by_thread, lifeline=lifeline, then=then)
    return subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, pass_fds=[lifeline], start_new_session=True
    )


@pytest.mark.parametrize(
    ("by_thread", "then", "code"),
    [
        (False, "while True: pass", -signal.SIGKILL),
        (False, "os.kill(os.getpid(), 19)", -signal.SIGKILL),
        (True, "time.sleep(1000)", 1),
        (True, "while True: pass", 1),
    ],
)
def test_a_process_ends_when_its_lifeline_does(by_thread, then, code):
    """A4: whatever it is doing, also nothing because it is stopped."""
    lifeline, held = os.pipe()
    with started(by_thread, then, lifeline) as process:
        os.close(lifeline)
        assert process.stdout.readline() == "armed\n"
        assert process.poll() is None
        os.close(held)
        assert process.wait(5) == code


@pytest.mark.parametrize("by_thread", [False, True])
def test_a_lifeline_that_ended_first_ends_the_process_all_the_same(by_thread):
    """A4: a parent may die while its workers start."""
    lifeline, held = os.pipe()
    os.close(held)
    with started(by_thread, "time.sleep(1000)", lifeline) as process:
        os.close(lifeline)
        assert process.wait(20) == 1


def test_last_words():
    """A2: of a crash, and of one that was asked; one that cannot answer is not waited for."""
    file = nameless_file()
    program = (
        "import os, sys, time\n"
        "from twostep.vector.endings import keep_last_words\n"
        f"keep_last_words({file})\n"
        "def waiting_for_godot():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(1000)\n"
        "waiting_for_godot()\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=[file]) as process:
        assert process.stdout.readline() == "ready\n"
        assert last_words(file) == ""
        wait_for_words([file], patience=0.05)
        process.send_signal(ASK_FOR_WORDS)
        wait_for_words([file], patience=5)
        assert "line 6 in waiting_for_godot" in last_words(file)
        process.send_signal(signal.SIGSEGV)
        process.wait(5)
    assert "Segmentation fault" in last_words(file)
    os.close(file)
