"""A rollout in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twostep.advantages import explained_variance
from twostep.columns import TREES
from twostep.rollout import RolloutBuffer
from twostep.tree import tree_items

FEW_KINDS = 64
"""Whole numbers with more different values than this are no choices."""


@dataclass(frozen=True)
class Spread:
    """Those of some numbers that are finite, in four; NaN where there are none."""

    mean: float
    std: float
    low: float
    high: float

    @classmethod
    def of(cls, numbers: Iterable[float]) -> Spread:
        """Measure them; the deviation is that of a population."""
        given = np.asarray(list(numbers), dtype=np.float64)
        known = given[np.isfinite(given)]
        if not known.size:
            return cls(math.nan, math.nan, math.nan, math.nan)
        return cls(float(known.mean()), float(known.std()), float(known.min()), float(known.max()))


@dataclass(frozen=True)
class Column:
    """One tensor of a rollout; its numbers are measured where a step counts."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    numbers: Spread
    not_finite: int
    """Numbers that are NaN or infinite at steps that count."""
    never_change: int
    """Of the numbers per step, how many are the same at every step that counts."""
    per_step: int


@dataclass(frozen=True)
class ActionPart:
    """What was done: how often each choice was taken in one place of the action, or how far its numbers spread."""

    name: str
    counts: dict[int, int] | None
    """By choice; None for numbers that are no choices."""
    dimensions: tuple[Spread, ...] = ()


@dataclass(frozen=True)
class RolloutSummary:
    """Everything of a rollout that can be said in a few numbers."""

    steps: int
    rows: int
    sequence_length: int
    has_memory: bool
    valid_steps: int
    nbytes: int
    policy_version: int | None
    terminated: int
    truncated: int
    running: int
    """Rows whose episode went on when the rollout ended."""
    returns: Spread
    """Of the episodes that ended here, undiscounted."""
    lengths: Spread
    episodes: int
    rewards: Spread
    value_error: float
    """Root of the mean square of return minus value; NaN where advantages are not computed."""
    explained_variance: float
    has_advantages: bool
    columns: tuple[Column, ...]
    actions: tuple[ActionPart, ...]

    @property
    def transitions(self) -> int:
        """Steps times rows, whether they count or not."""
        return self.steps * self.rows

    @property
    def valid_share(self) -> float:
        """Part of the transitions that count."""
        return self.valid_steps / self.transitions if self.transitions else math.nan


def summarize(rollout: RolloutBuffer) -> RolloutSummary:
    """Measure a rollout; only steps that count are looked at."""
    rollout = rollout.to("cpu")
    valid = rollout.valid
    ended = rollout.terminated | rollout.truncated
    error = variance = math.nan
    if rollout.returns is not None and bool(valid.any()):
        error = float((rollout.returns - rollout.values)[valid].double().square().mean().sqrt())
        variance = float(explained_variance(rollout.values, rollout.returns, valid))
    return RolloutSummary(
        steps=rollout.num_steps,
        rows=rollout.num_rows,
        sequence_length=rollout.sequence_length,
        has_memory=any(True for _ in tree_items(rollout.states)),
        valid_steps=int(valid.sum()),
        nbytes=rollout.nbytes,
        policy_version=rollout.policy_version,
        terminated=int((rollout.terminated & valid).sum()),
        truncated=int((rollout.truncated & valid & ~rollout.terminated).sum()),
        running=int((~ended[-1] & valid[-1]).sum()) if rollout.num_steps else 0,
        returns=Spread.of(episode.ret for episode in rollout.episodes),
        lengths=Spread.of(float(episode.length) for episode in rollout.episodes),
        episodes=len(rollout.episodes),
        rewards=Spread.of(rollout.rewards[valid].tolist()),
        value_error=error,
        explained_variance=variance,
        has_advantages=rollout.advantages is not None,
        columns=tuple(_column(name, leaf, valid) for part in TREES for name, leaf in _leaves(rollout, part)),
        actions=tuple(part for name, leaf in _leaves(rollout, "actions") for part in _action_parts(name, leaf[valid])),
    )


def _leaves(rollout: RolloutBuffer, name: str) -> Iterable[tuple[str, Tensor]]:
    return tree_items(getattr(rollout, name), name)


def _column(name: str, leaf: Tensor, valid: Tensor) -> Column:
    per_step = math.prod(leaf.shape[2:])
    counted = leaf[valid] if leaf.shape[:2] == valid.shape else leaf.flatten(0, 1)
    numbers = counted.reshape(len(counted), per_step).double()
    finite = numbers.isfinite()
    known = numbers[finite]
    measured = Spread(math.nan, math.nan, math.nan, math.nan)
    if known.numel():
        deviation, mean = torch.std_mean(known, correction=0)
        measured = Spread(float(mean), float(deviation), float(known.min()), float(known.max()))
    still = int((numbers == numbers[:1]).all(0).sum()) if len(numbers) > 1 else 0
    return Column(
        name=name,
        shape=tuple(leaf.shape),
        dtype=str(leaf.dtype).removeprefix("torch."),
        nbytes=leaf.numel() * leaf.element_size(),
        numbers=measured,
        not_finite=int((~finite).sum()),
        never_change=still,
        per_step=per_step,
    )


def _action_parts(name: str, taken: Tensor) -> Iterable[ActionPart]:
    """Count choices, each of several by itself; measure what is no choice."""
    flat = taken.flatten(1) if taken.dim() > 1 else taken[:, None]
    columns = flat.unbind(1)
    counted = [_counts(column) for column in columns]
    if flat.is_floating_point() or any(len(counts) > FEW_KINDS for counts in counted):
        return (ActionPart(name, None, tuple(Spread.of(column.tolist()) for column in columns)),)
    names = [name] if len(columns) == 1 else [f"{name}[{i}]" for i in range(len(columns))]
    return tuple(ActionPart(part, counts) for part, counts in zip(names, counted, strict=True))


def _counts(column: Tensor) -> dict[int, int]:
    kinds, counts = column.long().unique(return_counts=True)
    return dict(zip(kinds.tolist(), counts.tolist(), strict=True))
