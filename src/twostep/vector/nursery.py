"""A process that has loaded what workers need, does nothing else, and forks them when it is asked to.

It is asked by `launching.Nursery`: `START` comes with the descriptors of a worker and is answered with its process id,
`END` with such an id and is answered with its exit code. No thread runs here, so a fork is safe.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from twostep.vector.endings import end_with
from twostep.vector.launching import ANSWER, REQUEST, START
from twostep.vector.worker import serve as serve_as_worker

_PATIENCE = 4.0
_UNKNOWN = 255


def serve(end: int, lifeline: int) -> None:
    """Answer one parent until it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(lifeline)
    home = socket.socket(fileno=end)
    while True:
        request, descriptors, _, _ = socket.recv_fds(home, REQUEST.size, 4)
        if len(request) < REQUEST.size:
            return
        kind, pid = REQUEST.unpack(request)
        if kind == START:
            pid = os.fork()
            if pid == 0:
                home.close()
                os.close(lifeline)
                _become_worker(descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            home.sendall(ANSWER.pack(pid))
        else:
            home.sendall(ANSWER.pack(_ended(pid)))


def _become_worker(descriptors: Sequence[int]) -> None:
    code = 1
    try:
        os.setsid()
        np.random.seed()  # all workers have inherited one state of it
        serve_as_worker(*descriptors)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _ended(pid: int) -> int:
    """Kill a worker and all that it started, if it still runs, and return its exit code as `subprocess` does."""
    for kill in (os.killpg, os.kill):  # the second for one that does not lead its group yet
        with suppress(OSError):
            kill(pid, signal.SIGKILL)
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    return _UNKNOWN
