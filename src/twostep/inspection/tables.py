"""What is in a rollout, as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from twostep.columns import size_in_words
from twostep.inspection.remarks import Remark, remarks
from twostep.inspection.summary import ActionPart, Column, RolloutSummary, Spread
from twostep.policies.versions import updates_of

if TYPE_CHECKING:
    from rich.console import RenderableType

COLORS = {"good": "green", "fair": "yellow", "poor": "red"}
_BAR, _MOST_CHOICES, _MOST_NUMBERS, _MOST_PARTS = 30, 24, 8, 8


def rollout_tables(summary: RolloutSummary) -> Group:
    """Show everything: what happened, every column, what was done, and remarks."""
    parts: list[RenderableType] = [_overview(summary), Text(), _columns(summary.columns), Text()]
    parts += [*_actions(summary), Text(), remark_lines(remarks(summary))]
    return Group(*parts)


def facts(rows: Iterator[tuple[str, str]] | list[tuple[str, str]]) -> Table:
    """Show names and what is to be said of them."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", min_width=10, no_wrap=True)
    for name, words in rows:
        table.add_row(Text(f"  {name}"), Text(words))
    return table


def remark_lines(found: list[Remark]) -> Table:
    """Show remarks, each with a light."""
    table = Table.grid(padding=(0, 1))
    for remark in found:
        table.add_row(Text("  ●", style=COLORS[remark.state]), Text(remark.words))
    return table


def figure(value: float) -> str:
    """Write a number in few digits."""
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e9 else f"{value:.4g}"


def _overview(summary: RolloutSummary) -> Table:
    return facts(_said(summary))


def _said(summary: RolloutSummary) -> Iterator[tuple[str, str]]:
    size = f"{summary.steps:,} steps x {summary.rows:,} rows = {summary.transitions:,} transitions"
    yield "size", f"{size}, {summary.valid_share:.1%} of them valid, {size_in_words(summary.nbytes)}"
    if summary.policy_version is None:
        yield "policy", "not known which"
    else:
        yield "policy", f"after {updates_of(summary.policy_version):,} updates (version {summary.policy_version})"
    yield "memory", f"kept every {summary.sequence_length} steps" if summary.has_memory else "none"
    ends = f"{summary.terminated:,} ended, {summary.truncated:,} cut, {summary.running:,} going on"
    yield "episodes", f"{summary.episodes:,} complete; {ends}"
    if summary.episodes:
        yield "return", _spread(summary.returns)
        yield "length", _spread(summary.lengths)
    yield "reward", f"{_spread(summary.rewards)} per step"
    if summary.has_advantages:
        error = f"off by {figure(summary.value_error)} (root mean square)"
        yield "critic", f"explained variance {round(summary.explained_variance, 2) + 0.0:.2f}, {error}"


def _spread(spread: Spread) -> str:
    between = f"from {figure(spread.low)} to {figure(spread.high)}"
    return f"{figure(spread.mean)} ± {figure(spread.std)}, {between}"


def _columns(columns: tuple[Column, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=True, header_style="bold", padding=(0, 1))
    table.add_column("column", no_wrap=True)
    for name in ("shape", "type", "size", "min", "mean", "max", "not finite"):
        table.add_column(name, justify="left" if name in ("shape", "type") else "right", no_wrap=True)
    for column in columns:
        numbers = column.numbers
        measured = (figure(value) for value in (numbers.low, numbers.mean, numbers.high))
        table.add_row(
            column.name,
            " x ".join(f"{size:,}" for size in column.shape),
            column.dtype,
            size_in_words(column.nbytes),
            *measured,
            Text(f"{column.not_finite:,}", style=COLORS["poor"] if column.not_finite else "dim"),
        )
    return table


def _actions(summary: RolloutSummary) -> Iterator[RenderableType]:
    for part in summary.actions[:_MOST_PARTS]:
        yield Text(f"  {part.name}", style="bold")
        yield _choices(part.counts) if part.counts is not None else _numbers(part)
    if len(summary.actions) > _MOST_PARTS:
        yield Text(f"  and {len(summary.actions) - _MOST_PARTS} more", style="dim")


def _choices(counts: dict[int, int]) -> Table:
    total, most = max(1, sum(counts.values())), max(counts.values(), default=1)
    table = Table.grid(padding=(0, 1))
    shown = sorted(counts, key=lambda choice: -counts[choice])[:_MOST_CHOICES]
    for choice in sorted(shown):
        bar = "█" * max(1, round(_BAR * counts[choice] / most))
        table.add_row(f"  {choice:>4}", Text(bar, style="magenta"), f"{counts[choice] / total:.1%}")
    if len(counts) > len(shown):
        table.add_row("", Text(f"and {len(counts) - len(shown)} rarer ones", style="dim"), "")
    return table


def _numbers(part: ActionPart) -> Table:
    rows = [(f"  {i}", _spread(spread)) for i, spread in enumerate(part.dimensions[:_MOST_NUMBERS])]
    if len(part.dimensions) > _MOST_NUMBERS:
        rows.append(("", f"and {len(part.dimensions) - _MOST_NUMBERS} more"))
    return facts(rows)
