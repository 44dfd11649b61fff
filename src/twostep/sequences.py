"""From a rollout to shuffled minibatches of whole sequences.

A rollout `[T, B]` is cut into sequences of L steps: the memory entering each is stored with the rollout. Sequences are
shuffled across rows and time; no valid step is dropped: a last sequence shorter than L is filled up with invalid steps,
and minibatches differ by at most one sequence. Without memory L is 1 and a sequence is a transition.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from twostep.tree import Tree, tree_map

if TYPE_CHECKING:
    from twostep.rollout import RolloutBuffer


@dataclass(slots=True)
class Minibatch:
    """N sequences of L steps; tensors are `[L, N, ...]`, memory `[N, ...]`."""

    obs: Tree
    actions: Tree
    logprobs: Tensor
    values: Tensor
    """What the critic said when acting."""
    advantages: Tensor
    returns: Tensor
    rewards: Tensor
    episode_starts: Tensor
    states: Tree
    valid: Tensor | None
    """Which steps count; None for all."""
    count: int
    """How many steps count."""
    conditions: dict[str, Any] = field(default_factory=dict[str, Any])
    """What else the policy was conditioned on, by keyword: `action_masks` and what the rollout's context names."""

    def tensors(self) -> Tree:
        """Return everything that the loss reads as one tree."""
        everything = (self.obs, self.actions, self.logprobs, self.values, self.advantages, self.returns, self.rewards)
        return (*everything, self.episode_starts, self.states, self.valid, self.conditions)

    def with_tensors(self, tree: Tree) -> Minibatch:
        """Return a minibatch like this one that holds the tensors of such a tree."""
        return Minibatch(*tree[:-1], count=self.count, conditions=tree[-1])

    def pieces(self, number: int) -> Iterator[Minibatch]:
        """Split along sequences, so that a large minibatch goes through the network in parts."""
        size = self.logprobs.shape[1]
        bounds = [size * i // number for i in range(number + 1)]
        for start, stop in pairwise(bounds):
            if stop > start:
                yield self._narrow(start, stop)

    def _narrow(self, start: int, stop: int) -> Minibatch:
        def cut(leaf: Tensor) -> Tensor:
            return leaf[:, start:stop].contiguous()

        valid = None if self.valid is None else cut(self.valid)
        return Minibatch(
            obs=tree_map(cut, self.obs),
            actions=tree_map(cut, self.actions),
            logprobs=cut(self.logprobs),
            values=cut(self.values),
            advantages=cut(self.advantages),
            returns=cut(self.returns),
            rewards=cut(self.rewards),
            episode_starts=cut(self.episode_starts),
            states=tree_map(lambda leaf: leaf[start:stop], self.states),
            valid=valid,
            count=(stop - start) * self.logprobs.shape[0] if valid is None else int(valid.sum()),
            conditions={name: tree_map(cut, tree) for name, tree in self.conditions.items()},
        )


class Sequences:
    """The sequences of one rollout, cut once and shuffled anew for every epoch."""

    def __init__(self, rollout: RolloutBuffer, advantages: Tensor, returns: Tensor) -> None:
        """Cut `rollout` along its own `sequence_length`; of those without a valid step few are kept."""
        steps, rows = rollout.rewards.shape
        self.length = rollout.sequence_length
        per_row = -(-steps // self.length)
        self.full = bool(rollout.valid.all()) and steps % self.length == 0
        self.starts, self.rows, self.valid_counts = _index(rollout.valid, self.length, per_row)
        self.num_rows, self.num_steps = rows, steps
        columns = (rollout.logprobs, rollout.values, advantages, returns, rollout.rewards)
        self.scalars = torch.stack(columns).flatten(1, 2)  # [5, T * B]
        self.rollout = rollout
        self.device = rollout.rewards.device

    def __len__(self) -> int:
        """Return the number of sequences."""
        return self.starts.shape[0]

    def minibatch_count(self, minibatch_size: int | None, num_minibatches: int) -> int:
        """Return how many minibatches an epoch has: by transitions where given, at least one sequence in each."""
        if minibatch_size is not None:
            num_minibatches = -(-len(self) // max(1, round(minibatch_size / self.length)))
        return max(1, min(num_minibatches, len(self)))

    def epoch(self, number: int, generator: torch.Generator | None = None) -> Iterator[Minibatch]:
        """Yield `number` minibatches, at most one per sequence, that hold every sequence once in a new random order.

        Everything is gathered once in the order of the epoch; minibatches are slices of it.
        """
        number = min(number, len(self))
        if not number:
            return
        shuffled = torch.randperm(len(self), generator=generator)
        order = shuffled.to(self.device, non_blocking=True)
        sizes = [len(self) * (i + 1) // number - len(self) * i // number for i in range(number)]
        steps = torch.arange(self.length, device=self.device)[:, None]
        flat: list[Tensor] = []
        inside: list[Tensor] = []
        for chosen in order.split(sizes):
            at = self.starts[chosen] + steps  # [L, n]
            if not self.full:
                inside.append((at < self.num_steps).flatten())
                at = at.clamp(max=self.num_steps - 1)
            flat.append((at * self.num_rows + self.rows[chosen]).flatten())
        index = torch.cat(flat)
        rollout = self.rollout
        gathered = {
            "obs": _gather(rollout.obs, index),
            "actions": _gather(rollout.actions, index),
            "episode_starts": rollout.episode_starts.flatten().index_select(0, index),
            "scalars": self.scalars.index_select(1, index),
            "states": _gather_at(rollout.states, self.starts[order] // self.length, self.rows[order]),
            "action_masks": _gather(rollout.action_masks, index),
            "context": _gather_at(rollout.context, index // self.num_rows, index % self.num_rows),
            "valid": None if self.full else rollout.valid.flatten().index_select(0, index) & torch.cat(inside),
        }
        if gathered["valid"] is not None:
            _make_finite(gathered["obs"], gathered["valid"])
        counts = None if self.full else self.valid_counts[shuffled]
        yield from self._slices(gathered, sizes, counts)

    def _slices(self, gathered: dict[str, Any], sizes: list[int], counts: Tensor | None) -> Iterator[Minibatch]:
        done = 0
        for size in sizes:
            here = slice(done * self.length, (done + size) * self.length)
            shape = (self.length, size)

            def cut(leaf: Tensor, here: slice = here, shape: tuple[int, int] = shape) -> Tensor:
                return leaf[here].view(*shape, *leaf.shape[1:])

            scalars = gathered["scalars"][:, here].reshape(-1, *shape)
            conditions = dict(gathered["context"] or {})
            if gathered["action_masks"] is not None:
                conditions["action_masks"] = gathered["action_masks"]
            yield Minibatch(
                obs=tree_map(cut, gathered["obs"]),
                actions=tree_map(cut, gathered["actions"]),
                logprobs=scalars[0],
                values=scalars[1],
                advantages=scalars[2],
                returns=scalars[3],
                rewards=scalars[4],
                episode_starts=cut(gathered["episode_starts"]),
                states=tree_map(lambda leaf, a=done, b=done + size: leaf[a:b], gathered["states"]),
                valid=None if gathered["valid"] is None else cut(gathered["valid"]),
                count=size * self.length if counts is None else int(counts[done : done + size].sum()),
                conditions={name: tree_map(cut, tree) for name, tree in conditions.items()},
            )
            done += size


LARGEST = 1e30
"""What a number that was seen where nobody acted stays below: sums of larger ones overflow."""
GRAINS = 16
"""Sequences are counted in sixteenths of the rollout, so that minibatches have few different sizes."""


def _index(valid: Tensor, length: int, per_row: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return first step, row and number of valid steps of every sequence that has any, and of a few that have none."""
    padded = torch.nn.functional.pad(valid, (0, 0, 0, per_row * length - valid.shape[0]))
    counts = padded.unflatten(0, (per_row, length)).sum(1).flatten()  # [T / L * B]
    grain = max(1, counts.numel() // GRAINS)
    number = -(-int((counts > 0).sum()) // grain) * grain
    chosen = (counts == 0).byte().argsort(stable=True)[:number]
    rows = valid.shape[1]
    return chosen // rows * length, chosen % rows, counts[chosen].cpu()


def _gather(tree: Tree, index: Tensor) -> Tree:
    return tree_map(lambda leaf: leaf.flatten(0, 1).index_select(0, index), tree)


def _gather_at(tree: Tree, steps: Tensor, rows: Tensor) -> Tree:
    """Gather by step and row without first flattening, for leaves that are views of one value per row."""
    return tree_map(lambda leaf: leaf[steps, rows], tree)


def _make_finite(tree: Tree, valid: Tensor) -> None:
    """Replace, where nobody was, numbers that overflow: times a gradient of 0 they would still give NaN."""

    def replace(leaf: Tensor) -> None:
        if leaf.is_floating_point():
            nobody = ~valid.view(-1, *[1] * (leaf.dim() - 1))
            leaf.masked_fill_(nobody & ~(leaf.abs() < LARGEST), 0.0)

    tree_map(replace, tree)
