"""Training as it happens: a live display on a terminal, a plain line every few seconds anywhere else."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TextIO

from twostep.stats.health import Advice, entropy_range, health

SPARKS = "▁▂▃▄▅▆▇█"
BAR_WIDTH = 26
SECONDS_BETWEEN_LINES = 5.0
REFRESHES_PER_SECOND = 4
_COLORS = {"good": "green", "fair": "yellow", "poor": "red"}


class Progress:
    """Shows how far training is, what it reaches and whether it is healthy. A sink, and a context manager.

    What is shown is judged at every update, and drawn only as often as eyes can follow. The display begins with the
    context or with the first row.
    """

    immediate = True

    def __init__(
        self,
        title: str,
        total_timesteps: int,
        *,
        first_step: int = 0,
        action_space: Any = None,
        solved_at: float | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self.title, self.total_timesteps, self.solved_at = title, total_timesteps, solved_at
        self.action_space, self.first_step = action_space, first_step
        self.stream = stream or sys.stdout
        self.history: list[float] = []
        self.remark = ""
        self._entropy_range: tuple[float, float] | None = None
        self._metrics: dict[str, float] = {}
        self._steps = first_step
        self._started = self._shown = time.monotonic()
        self._begun = False
        self._live: Any = None

    def __enter__(self) -> Progress:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Take in one update."""
        if not self._begun:
            self._begin()
        self._metrics, self._steps = dict(metrics), step
        if self._entropy_range is None and "entropy" in metrics:
            self._entropy_range = entropy_range(self.action_space, metrics["entropy"])
        reached = metrics.get("mean_reward", math.nan)
        if math.isfinite(reached):
            self.history.append(reached)
        now = time.monotonic()
        pause = 1.0 / REFRESHES_PER_SECOND if self._live is not None else SECONDS_BETWEEN_LINES
        if now - self._shown >= pause:
            self._show(now)

    def note(self, words: str) -> None:
        """Show a remark from now on, such as how the last evaluation went."""
        self.remark = words

    def say(self, words: str) -> None:
        """Show words once, on a line of their own."""
        if self._live is not None:
            self._live.console.print(words, highlight=False, markup=False)
        else:
            print(words, file=self.stream, flush=True)

    def close(self) -> None:
        """Show the last state and give the terminal back; harmless when called twice."""
        if self._live is not None:
            self._show(time.monotonic())
            self._live.stop()
            self._live = None

    def line(self) -> str:
        """Return the state on one line of plain text."""
        parts = [f"{self._steps:,} / {self.total_timesteps:,} steps ({self._share():.0%})"]
        if self.history:
            parts.append(f"return {number(self.history[-1])}")
        if self.remark:
            parts.append(self.remark)
        parts.append(f"{self._speed():,.0f} steps/s")
        parts.append(f"{duration(self._seconds_left())} left")
        parts += [f"{advice.topic} {advice.words}" for advice in self.advice() if advice.state != "good"]
        return " | ".join(parts)

    def advice(self) -> list[Advice]:
        """Judge the last update."""
        return health(self._metrics, self._entropy_range)

    def render(self) -> Any:
        """Return the live display's picture of the state."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        bar, rows = Table.grid(padding=(0, 1)), Table.grid(padding=(0, 1))
        for width in (1, 14, 9, 1):
            rows.add_column(min_width=width)
        speed = f"{self._speed():,.0f} steps/s · {duration(self._seconds_left())} left"
        bar.add_row(
            ProgressBar(
                total=1.0, completed=self._share(), width=BAR_WIDTH, complete_style="cyan", finished_style="green"
            ),
            Text(f"{self._share():4.0%} of {self.total_timesteps:,} steps · {speed}", no_wrap=True),
        )
        for advice in self.advice():
            color = _COLORS[advice.state]
            measure = f"{advice.measure} · {advice.hint}" if advice.hint else advice.measure
            cells = (("●", color), (advice.topic, ""), (advice.words, color), (measure, "dim"))
            rows.add_row(*(Text(words, style=style, no_wrap=True) for words, style in cells))
        remark = [Text(self.remark, no_wrap=True)] if self.remark else []
        return Group(Text(self.title, style="bold"), bar, Text(self._return(), no_wrap=True), *remark, rows)

    def _begin(self) -> None:
        self._begun = True
        self._started = self._shown = time.monotonic()
        if self.stream.isatty():
            self._live = _start_live(self.stream, self.title)

    def _return(self) -> str:
        if not self.history:
            return "return: no episode has ended yet"
        aim = "" if self.solved_at is None else f" · solved at {self.solved_at:g}"
        curve = sparkline(self.history, BAR_WIDTH)
        return f"{curve:{BAR_WIDTH}}  {number(self.history[-1])} mean return{aim}"

    def _show(self, now: float) -> None:
        self._shown = now
        if self._live is not None:
            self._live.update(self.render(), refresh=True)
        else:
            print(self.line(), file=self.stream, flush=True)

    def _share(self) -> float:
        return min(1.0, self._steps / self.total_timesteps)

    def _speed(self) -> float:
        return (self._steps - self.first_step) / max(time.monotonic() - self._started, 1e-9)

    def _seconds_left(self) -> float:
        return max(0, self.total_timesteps - self._steps) / max(self._speed(), 1e-9)


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw values as one line of blocks, at most `width` of them, from the lowest value to the highest."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    count = min(width, len(finite))
    edges = [position * len(finite) // count for position in range(count + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if high <= low:
        return SPARKS[0] * count
    return "".join(SPARKS[round((mean - low) / (high - low) * (len(SPARKS) - 1))] for mean in means)


def duration(seconds: float) -> str:
    """Write seconds as `0:07`, `12:30`, `3:05:00`, `2 d 4 h`; what has no end as `?`."""
    if not math.isfinite(seconds) or seconds > 1e8:
        return "?"
    whole = round(seconds)
    if whole >= 2 * 86400:
        return f"{whole // 86400} d {whole % 86400 // 3600} h"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def number(value: float) -> str:
    """Write a return with the digits that matter."""
    if not math.isfinite(value):
        return "none yet"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _start_live(stream: TextIO, title: str) -> Any:
    from rich.console import Console
    from rich.live import Live

    live = Live(title, console=Console(file=stream), auto_refresh=False)
    live.start()
    return live
