"""Two ways to start worker processes, neither of which runs the user's main module again.

`multiprocessing` imports it in every process that it starts, with all that it imports, and without an
`if __name__ == "__main__"` it starts processes again and again. Here a new interpreter imports `twostep.vector` only.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Literal, Protocol

from twostep.errors import EnvError

StartMethod = Literal["spawn", "forkserver"]

# A worker is one of several: threads of its own would only wait for each other. What the user has set stays.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_PATIENCE = 5.0
_NURSERY_STARTS = 60.0
REQUEST = struct.Struct("<ci")
ANSWER = struct.Struct("<i")
START, END = b"s", b"e"


class Child:
    """A process that was started for us. Nobody else may take note of its end, so that its number stays its own."""

    def __init__(self, pid: int, end: Callable[[], int | None]) -> None:
        self.pid = pid
        self._end = end
        self.sentinel: int | None = None
        """A descriptor that becomes readable when the process ends; None where the system has none."""
        with suppress(AttributeError, OSError):
            self.sentinel = os.pidfd_open(pid)

    def signal(self, number: int) -> None:
        """Send a signal, if the process still runs."""
        with suppress(OSError):
            if self.sentinel is None:
                os.kill(self.pid, number)
            else:
                signal.pidfd_send_signal(self.sentinel, number)

    def end(self) -> str:
        """End the process and all that it started, if it still runs, and say how it ended."""
        code = self._end()
        if code is None:
            self.signal(signal.SIGKILL)
        if self.sentinel is not None:
            os.close(self.sentinel)
            self.sentinel = None
        return _ending(code)


def _ending(code: int | None) -> str:
    if code is None:
        return "ended in a way that nobody saw"
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


class Launcher(Protocol):
    """A way to start worker processes."""

    def start(self, descriptors: Sequence[int]) -> Child:
        """Start a worker that serves with these descriptors."""
        ...

    def close(self) -> None:
        """Free what was needed for starting; processes that run go on."""
        ...

    def forget(self) -> None:
        """Let go of everything in a process that was forked from the one that owns it."""
        ...


class Spawner:
    """Starts every worker as a new interpreter: some tenths of a second each, and nothing else is needed."""

    def __init__(self) -> None:
        self._interpreter = _Interpreter()

    def start(self, descriptors: Sequence[int]) -> Child:
        """Start a worker that serves with these descriptors."""
        process = self._interpreter.run("twostep.vector.worker", "serve", descriptors)
        return Child(process.pid, lambda: _end_group(process))

    def close(self) -> None:
        """Free nothing: there is nothing to free."""

    def forget(self) -> None:
        """Let go of nothing."""


class Nursery:
    """Starts workers by forking them, in a millisecond, off one process that has loaded what they need."""

    def __init__(self) -> None:
        self._interpreter = _Interpreter()
        self._home: _Home | None = None

    def start(self, descriptors: Sequence[int]) -> Child:
        """Start a worker that serves with these descriptors, and a new nursery if the last one is gone."""
        for _ in range(2):
            self._home = self._home or _Home(self._interpreter)
            home = self._home
            pid = home.ask(START, 0, descriptors)
            if pid is not None:
                return Child(pid, partial(home.ask, END, pid))
            self.close()
        raise EnvError(
            "The process that starts workers ended twice before it started one. Its own message is above; "
            "start_method='spawn' needs no such process."
        )

    def close(self) -> None:
        """End the nursery."""
        home, self._home = self._home, None
        if home is not None:
            home.close()

    def forget(self) -> None:
        """Let go of the nursery."""
        if self._home is not None:
            self._home.forget()


class _Home:
    """One nursery process, and what it is told."""

    def __init__(self, interpreter: _Interpreter) -> None:
        with ExitStack() as on_error:
            self._socket, theirs = socket.socketpair()
            on_error.callback(self._socket.close)
            lifeline, self._lifeline = os.pipe()
            on_error.callback(os.close, self._lifeline)
            with theirs:
                try:
                    self._process = interpreter.run("twostep.vector.nursery", "serve", (theirs.fileno(), lifeline))
                finally:
                    os.close(lifeline)
            on_error.pop_all()

    def ask(self, kind: bytes, pid: int, descriptors: Sequence[int] = ()) -> int | None:
        """Let the nursery start or end a process; None where it does not answer, which is the end of it."""
        try:
            self._socket.settimeout(_NURSERY_STARTS if kind == START else _PATIENCE)
            socket.send_fds(self._socket, [REQUEST.pack(kind, pid)], descriptors)
            answer = self._socket.recv(ANSWER.size)
        except OSError:
            answer = b""
        if len(answer) < ANSWER.size:
            self.forget()
            return None
        return ANSWER.unpack(answer)[0]

    def close(self) -> None:
        self.forget()
        _end_group(self._process)

    def forget(self) -> None:
        self._socket.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


class _Interpreter:
    """New interpreters that find the same modules as this one, also when it has since gone elsewhere."""

    def __init__(self) -> None:
        if not sys.executable:
            raise EnvError("sys.executable is empty, so no worker process can be started. Use SerialVectorEnv instead.")
        self._directory = os.getcwd()
        self._path = list(sys.path)

    def run(self, module: str, function: str, descriptors: Sequence[int]) -> subprocess.Popen[Any]:
        """Call a function in a new interpreter with descriptors that it takes over from here."""
        program = (
            f"import sys; sys.path[:] = {self._path!r}\n"
            f"from {module} import {function}; {function}{tuple(descriptors)!r}"
        )
        return subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            cwd=self._directory,
            env={**_ONE_THREAD, **os.environ},
            start_new_session=True,  # signals of the terminal are for this process, not for its workers
        )


def _end_group(process: subprocess.Popen[Any]) -> int | None:
    """Kill a process that leads a group, with the whole group, and return its exit code as `subprocess` does."""
    with suppress(OSError):
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        return None


def launcher(start_method: str) -> Launcher:
    """Return the way to start workers that has this name."""
    ways: dict[str, Callable[[], Launcher]] = {"spawn": Spawner, "forkserver": Nursery}
    if start_method not in ways:
        raise EnvError(
            f"start_method={start_method!r}, but must be 'spawn' (a new interpreter each) or 'forkserver' (forked off "
            f"one that has loaded Gymnasium: quick to start again). A plain fork of this process could not be trusted."
        )
    if not hasattr(socket, "send_fds"):
        raise EnvError("Worker processes need Linux or macOS. Use SerialVectorEnv (vectorization='serial') here.")
    return ways[start_method]()
