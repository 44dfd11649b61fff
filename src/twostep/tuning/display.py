"""A search as it happens: a bar for the whole and one for each training on a terminal, a line per trial anywhere."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from twostep.stats.console import BAR_WIDTH, REFRESHES_PER_SECOND
from twostep.stats.console import number as shown


class SearchProgress:
    """Shows how far a study is; a context manager."""

    def __init__(self, trials: int, ended: int = 0, *, stream: TextIO | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        stream = stream or sys.stdout
        console = Console(file=stream, soft_wrap=True, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(BAR_WIDTH), TextColumn("{task.fields[words]}"))
        self._progress = Progress(
            *columns,
            TimeElapsedColumn(),
            console=console,
            transient=True,
            refresh_per_second=REFRESHES_PER_SECOND,
            disable=not console.is_terminal,
        )
        self._trials = trials
        self._ended = ended
        self._all = self._progress.add_task("trials", total=trials, completed=ended, words=f"{ended} of {trials}")
        self._running: dict[int, Any] = {}

    def __enter__(self) -> SearchProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def reached(self, number: int, share: float, value: float) -> None:
        """Show how far a training is, and what it reaches there."""
        if number not in self._running:
            self._running[number] = self._progress.add_task(f"  {number}", total=1.0, words="")
        self._progress.update(self._running[number], completed=share, words=shown(value))

    def ended(self, number: int, line: str) -> None:
        """Show for good how a trial ended."""
        if number in self._running:
            self._progress.remove_task(self._running.pop(number))
        self._ended += 1
        self._progress.update(self._all, advance=1, words=f"{self._ended} of {self._trials}")
        self._progress.console.print(line, markup=False)
