"""One row of metrics to every sink, and no sink can stop the training, or slow it down."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType

from twostep.protocols import Sink
from twostep.stats.background import BackgroundSink

_LOG = logging.getLogger("twostep.stats")


class StatsLogger:
    """Hands each row to all sinks; one that fails is dropped with a single warning, and the others go on.

    A sink is called from a thread of its own, one row after the other, unless it says of itself that it is
    `immediate = True`: then a row is written when `log` returns. Warnings go through `logging`, which never raises, to
    the logger `twostep.stats`.
    """

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self.sinks = [sink if getattr(sink, "immediate", False) else BackgroundSink(sink) for sink in sinks]
        self._added: dict[str, list[float]] = {}

    def add_stats(self, stats: Mapping[str, float | Iterable[float]]) -> None:
        """Take in what happens more often than rows are written; the next row has the mean of each."""
        for name, values in stats.items():
            several = values if isinstance(values, Iterable) else (values,)
            self._added.setdefault(name, []).extend(float(value) for value in several)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one row everywhere; `step` counts agent steps."""
        added, self._added = self._added, {}
        means = {name: sum(values) / len(values) for name, values in added.items() if values}
        for sink in list(self.sinks):
            self._attempt(sink, lambda sink=sink: sink.log({**metrics, **means}, step))

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
            name = type(sink.sink if isinstance(sink, BackgroundSink) else sink).__name__
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            _LOG.warning("%s writes no more, training goes on: %s", name, reason)
