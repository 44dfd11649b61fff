"""What is left of `VectorEnv` when it, or the process that made it, is gone: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from scenarios import Failing, Stamped, cycles, is_there, makers, orphans

from twostep.vector import VectorEnv


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
@pytest.mark.parametrize("mid_step", [False, True])
def test_workers_end_with_their_parent(start_method, mid_step):
    """A4, E19: killed, so that it can tidy up nothing itself; also in the middle of a step of 1,000 s."""
    figures = orphans(1, start_method, mid_step)
    assert figures["processes left after 5 s"] == figures["segments left"] == 0


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_stopped_worker_ends_with_its_parent_too(start_method):
    """A4: a process that is stopped can run no thread that would look after it."""
    program = (
        "import os, signal, sys, time; from twostep.vector import VectorEnv\n"
        f"env = VectorEnv(1, 'CartPole-v1', start_method='{start_method}'); env.reset(0)\n"
        "os.kill(env.pids[0], signal.SIGSTOP); print(env.pids[0], flush=True); time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        parent.kill()
    until = time.monotonic() + 5
    while time.monotonic() < until and is_there(worker):
        time.sleep(0.01)
    assert not is_there(worker)


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_creating_and_closing_leaves_nothing(start_method):
    """A5, E19."""
    figures = cycles(4, start_method, warm_up=2)
    assert figures["children left"] == 0


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_closing_does_not_wait_for_what_hangs(start_method, monkeypatch):
    """EB8, E19: twice, after a crash, and with a worker that is stopped."""
    monkeypatch.setattr("twostep.vector.crew._GRACE", 0.5)
    env = VectorEnv(3, [lambda: Failing(0, "exit")] * 3, num_workers=3, start_method=start_method, check=False)
    env.reset(0)
    pids = env.pids
    with pytest.raises(Exception, match="exited with code 0"):
        env.step(np.array([3, 0, 0]))
    os.kill(pids[1], signal.SIGSTOP)
    began = time.monotonic()
    env.close()
    env.close()
    assert time.monotonic() - began < 3
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


class Noting(Stamped):
    """Says in a file that it was closed."""

    def __init__(self, number, path):
        super().__init__(number)
        self.path = path

    def close(self):
        self.path.write_text("closed")


def test_environments_are_closed_in_good_order(tmp_path):
    """E19: simulators get their chance to save and to free."""
    paths = [tmp_path / str(number) for number in range(3)]
    with VectorEnv(3, [lambda path=path: Noting(0, path) for path in paths], num_workers=2) as env:
        env.reset(0)
    assert [path.read_text() for path in paths] == ["closed"] * 3


def test_an_object_that_nobody_holds_closes_itself():
    """E19: also without `with`, and without a word at the interpreter's end."""
    env = VectorEnv(1, makers(1), start_method="forkserver")
    (pid,) = env.pids
    del env
    assert not os.path.exists(f"/proc/{pid}")
    program = "from twostep.vector import VectorEnv; env = VectorEnv(2, 'CartPole-v1'); env.reset(0); print(*env.pids)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    assert not any(os.path.exists(f"/proc/{pid}") for pid in done.stdout.split())
