"""What the numbers of a rollout mean, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from twostep.inspection.summary import ActionPart, Column, RolloutSummary
from twostep.stats.health import FAIR_EXPLAINED_VARIANCE, GOOD_EXPLAINED_VARIANCE, State

FEW_VALID = 0.5
ONE_SIDED = 0.95
WIDE = 100.0


@dataclass(frozen=True)
class Remark:
    """One finding about a rollout."""

    state: State
    words: str


def remarks(summary: RolloutSummary) -> list[Remark]:
    """Say what is remarkable, the worst first; that nothing is, where nothing is."""
    found = [*_numbers(summary), *_steps(summary), *_ends(summary), *_values(summary), *_behaviour(summary)]
    order = {"poor": 0, "fair": 1, "good": 2}
    found.sort(key=lambda remark: order[remark.state])
    return found or [Remark("good", "Nothing is remarkable: all numbers are finite, every step counts.")]


def _numbers(summary: RolloutSummary) -> Iterator[Remark]:
    for column in summary.columns:
        if column.not_finite:
            yield Remark("poor", f"{column.name} holds {column.not_finite:,} numbers that are NaN or infinite.")
        if column.name.startswith("obs"):
            yield from _observations(column)
    low, high = summary.rewards.low, summary.rewards.high
    if summary.valid_steps > 1 and low == high:
        yield Remark("fair", f"Every reward is {low:g}: nothing tells one action from another but how long it goes on.")


def _observations(column: Column) -> Iterator[Remark]:
    largest = max(abs(column.numbers.low), abs(column.numbers.high))
    if largest > WIDE and column.dtype.startswith("float"):
        yield Remark("fair", f"{column.name} reaches {largest:.4g}: normalize_obs brings such numbers to one scale.")
    if column.never_change and column.per_step > 1:
        share = column.never_change / column.per_step
        words = f"{column.never_change:,} of {column.per_step:,} numbers of {column.name} never change."
        yield Remark("fair" if share > FEW_VALID else "good", words)


def _steps(summary: RolloutSummary) -> Iterator[Remark]:
    share = 1 - summary.valid_share
    if not summary.valid_steps:
        yield Remark("poor", "No step counts: there is nothing to learn from.")
    elif share > 0:
        words = f"{_percent(share)} of the steps are not valid: nobody was there, or the action was ignored."
        yield Remark("fair" if share > FEW_VALID else "good", words)
    if summary.policy_version is None:
        yield Remark("fair", "Which policy acted is not known: learning cannot check that the first ratio is 1.")


def _ends(summary: RolloutSummary) -> Iterator[Remark]:
    if not summary.episodes and not summary.terminated + summary.truncated:
        yield Remark("fair", "No episode ended here: collect more steps to see returns.")
    elif summary.truncated and not summary.terminated:
        yield Remark("good", f"All {summary.truncated:,} ends are cuts: no episode ended by itself.")


def _values(summary: RolloutSummary) -> Iterator[Remark]:
    if not summary.has_advantages:
        yield Remark("fair", "Advantages are not computed: learn does it, or compute_gae().")
        return
    variance = summary.explained_variance
    if math.isnan(variance):
        return
    words = f"The critic explains {round(variance, 2) + 0.0:.0%} of the variance of the returns"
    if variance < FAIR_EXPLAINED_VARIANCE:
        yield Remark("fair", f"{words}: little, which is normal at first.")
    elif variance > GOOD_EXPLAINED_VARIANCE:
        yield Remark("good", f"{words}.")


def _behaviour(summary: RolloutSummary) -> Iterator[Remark]:
    for part in summary.actions:
        yield from _choices(part) if part.counts is not None else _stillness(part, summary.valid_steps)


def _choices(part: ActionPart) -> Iterator[Remark]:
    counts = part.counts or {}
    total = sum(counts.values())
    if not total:
        return
    favourite = max(counts, key=lambda choice: counts[choice])
    share = counts[favourite] / total
    if share > ONE_SIDED and total > 1:
        yield Remark("fair", f"{part.name} is {favourite} in {_percent(share)} of the steps: hardly any exploration.")


def _stillness(part: ActionPart, steps: int) -> Iterator[Remark]:
    still = sum(spread.std == 0 for spread in part.dimensions)
    if still and steps > 1:
        yield Remark("fair", f"{still} of {len(part.dimensions)} numbers of {part.name} never change.")


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else f"{share:.2%}"
