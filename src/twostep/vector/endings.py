"""How worker processes end: together with their parent, and not without a word."""

from __future__ import annotations

import faulthandler
import fcntl
import os
import select
import signal
import threading
import time
from collections.abc import Sequence

# Sent to a worker that has not answered in time, so that it writes down what it is doing.
ASK_FOR_WORDS = signal.SIGUSR1
_MOST_WORDS = 1 << 14


def end_with(lifeline: int) -> None:
    """End this process, and all that its environments started, as soon as nobody holds the other end of a pipe.

    Whatever happens to the parent, its end closes. On Linux the kernel itself then kills this process group: also in
    the middle of a step that holds Python's lock, and also while stopped. Elsewhere a thread does what it can.
    """
    try:
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    except (AttributeError, OSError):
        threading.Thread(target=_wait_and_end, args=(lifeline,), daemon=True).start()
        return
    closed_before = select.poll()
    closed_before.register(lifeline, select.POLLIN)
    if closed_before.poll(0):
        os._exit(1)


def _wait_and_end(lifeline: int) -> None:
    os.read(lifeline, 1)
    os._exit(1)


def keep_last_words(file: int) -> None:
    """Let this process write its Python traceback into `file` when it crashes, or when its parent asks."""
    faulthandler.enable(file, all_threads=False)
    faulthandler.register(ASK_FOR_WORDS, file, all_threads=False)


def last_words(file: int) -> str:
    """Return what a process wrote by `keep_last_words`; empty where it said nothing."""
    return os.pread(file, _MOST_WORDS, 0).strip(b"\0").decode(errors="replace").strip()


def wait_for_words(files: Sequence[int], patience: float = 0.3) -> None:
    """Wait until processes that were asked have written down what they do, but not for long: they may be stopped."""
    until, lengths = time.monotonic() + patience, [0] * len(files)
    while time.monotonic() < until:
        time.sleep(0.01)
        before, lengths = lengths, [len(last_words(file)) for file in files]
        if all(lengths) and lengths == before:
            return
