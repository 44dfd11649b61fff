"""How signals end a run: after the update that it is in, with everything saved; at once when a second one comes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

SIGNALS = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")
"""Ctrl-C; the polite way to end a process; what clusters send before they take a machine away; a terminal closed."""


class Stopping:
    """While it is entered, the first signal only asks for an end; only the main thread can do that."""

    def __init__(self) -> None:
        self.received: int | None = None
        """The signal that asked, if one did."""
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """What a shell calls this end: 128 and the signal's number; 0 where none came."""
        return 0 if self.received is None else 128 + self.received

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in SIGNALS if hasattr(signal, name)):
                before = signal.getsignal(number)
                if before is not signal.SIG_IGN:  # as under nohup
                    self._before[number] = before
                    signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}

    def _take(self, number: int, _: FrameType | None) -> None:
        if self.received is not None:
            raise SystemExit(128 + number)
        self.received = number
        name = signal.Signals(number).name
        words = (
            f"\ntwostep: {name}: this update is finished and saved, then the run stops; once more stops it at once.\n"
        )
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, words.encode())
