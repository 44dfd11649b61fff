"""A sink that may take its time: rows wait in a queue, and a thread of its own writes them."""

from __future__ import annotations

import logging
import queue
import threading
import time

from twostep.protocols import Sink

ROWS_IN_WAITING = 1000
"""Rows that a slow sink may be behind; those that come after are left out."""
SECONDS_TO_FINISH = 30.0
"""What a sink gets at the end to write what waits and to close."""

_LOG = logging.getLogger("twostep.stats")
_Row = tuple[dict[str, float], int]


class BackgroundSink:
    """Hands rows to another sink without ever waiting for it.

    Whatever the other sink raises is raised by the next call of `log` or `close`. A sink that is stuck is left behind:
    its thread does not keep the process alive.
    """

    immediate = True

    def __init__(
        self, sink: Sink, *, capacity: int = ROWS_IN_WAITING, seconds_to_finish: float = SECONDS_TO_FINISH
    ) -> None:
        self.sink, self.seconds_to_finish = sink, seconds_to_finish
        self.left_out = 0
        self._name = type(sink).__name__
        self._rows: queue.Queue[_Row | None] = queue.Queue(capacity)
        self._thread = threading.Thread(target=self._write, name=self._name, daemon=True)
        self._error: Exception | None = None
        self._abandoned = self._closed = False

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Put one row in the queue, or leave it out where the queue is full."""
        self._raise_error()
        self._start()
        try:
            self._rows.put_nowait((dict(metrics), step))
        except queue.Full:
            self.left_out += 1
            if self.left_out == 1:
                _LOG.warning("%s is %d rows behind: rows are left out until it is done", self._name, self._rows.maxsize)

    def close(self) -> None:
        """Wait, not for ever, until all rows are written and the sink is closed; harmless when called twice."""
        if self._closed:
            return
        self._closed = True
        self._start()
        deadline = time.monotonic() + self.seconds_to_finish
        waiting = self._rows.qsize()
        try:
            self._rows.put(None, timeout=self.seconds_to_finish)
            self._thread.join(max(0.0, deadline - time.monotonic()))
        except queue.Full:
            pass
        self._abandoned = self._thread.is_alive()
        if self._abandoned:
            raise TimeoutError(f"{waiting} rows were waiting, and {self.seconds_to_finish:g} seconds were not enough")
        self._raise_error()

    def _start(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(self) -> None:
        try:
            while (row := self._rows.get()) is not None:
                if self._abandoned:
                    return
                self.sink.log(*row)
            self.sink.close()
        except Exception as error:  # whatever a foreign library raises is for the caller's thread
            self._error = error
