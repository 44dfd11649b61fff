"""One row of metrics to every sink, and no sink can stop the training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType

from twostep.protocols import Sink

_LOG = logging.getLogger("twostep.stats")


class StatsLogger:
    """Hands each row to all sinks; one that fails is dropped with a single warning, and the others go on.

    Warnings go through `logging`, which never raises, to the logger `twostep.stats`.
    """

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self.sinks = list(sinks)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one row everywhere; `step` counts agent steps."""
        for sink in list(self.sinks):
            self._attempt(sink, lambda sink=sink: sink.log(dict(metrics), step))

    def close(self) -> None:
        """Close every sink; harmless when called twice."""
        for sink in list(self.sinks):
            self._attempt(sink, sink.close)
        self.sinks = []

    def __enter__(self) -> StatsLogger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _attempt(self, sink: Sink, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self.sinks.remove(sink)
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            _LOG.warning("%s writes no more, training goes on: %s", type(sink).__name__, reason)
