"""From a rollout to shuffled minibatches of whole sequences.

A rollout `[T, B]` is cut into sequences of L steps: the memory entering each is stored with the rollout. Sequences are
shuffled across rows and time; no valid step is dropped: a last sequence shorter than L is filled up with invalid steps,
and minibatches differ by at most one sequence. Without memory L is 1 and a sequence is a transition.

Several processes shuffle the sequences of all of them in one order, and each takes out of every minibatch those that it
has: the minibatches are the same, however many processes share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from twostep.errors import RolloutError
from twostep.group import ALONE, Group
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
    """How many steps count here."""
    whole: int
    """How many count in the whole minibatch, of which this may be a piece, or the part of one process."""
    conditions: dict[str, Any] = field(default_factory=dict[str, Any])
    """What else the policy was conditioned on, by keyword: `action_masks` and what the rollout's context names."""

    def tensors(self) -> Tree:
        """Return everything that the loss reads as one tree."""
        everything = (self.obs, self.actions, self.logprobs, self.values, self.advantages, self.returns, self.rewards)
        return (*everything, self.episode_starts, self.states, self.valid, self.conditions)

    def with_tensors(self, tree: Tree) -> Minibatch:
        """Return a minibatch like this one that holds the tensors of such a tree."""
        return Minibatch(*tree[:-1], count=self.count, whole=self.whole, conditions=tree[-1])

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
            whole=self.whole,
            conditions={name: tree_map(cut, tree) for name, tree in self.conditions.items()},
        )


class Sequences:
    """The sequences of one rollout, cut once and shuffled anew for every epoch.

    Of a group each process has some rows of the rollout; sequences are numbered over all of them.
    """

    def __init__(self, rollout: RolloutBuffer, advantages: Tensor, returns: Tensor, group: Group = ALONE) -> None:
        """Cut `rollout` along its own `sequence_length`; of those without a valid step few are kept."""
        steps, rows = rollout.rewards.shape
        self.length, self.sharers = rollout.sequence_length, group.size
        self.shared = self.sharers > 1
        self.full = not self.shared and bool(rollout.valid.all()) and steps % self.length == 0
        counts, first_row = _counts_of_all(_counts(rollout.valid, self.length), group)
        self.starts, self.rows, self.valid_counts = _index(counts, self.length)
        if self.shared:
            self._find_own(first_row, rows)
        self.num_rows, self.num_steps = rows, steps
        columns = (rollout.logprobs, rollout.values, advantages, returns, rollout.rewards)
        self.scalars = torch.stack(columns).flatten(1, 2)  # [5, T * B]
        self.rollout = rollout
        self.device = rollout.rewards.device

    def _find_own(self, first_row: int, rows: int) -> None:
        """Note which sequences are here, number their rows from 0, and add an empty one to fill minibatches up with."""
        own = (self.rows >= first_row) & (self.rows < first_row + rows)
        self.is_own = own.cpu()
        self.starts = torch.cat((self.starts, self.starts.new_full((1,), _NOWHERE)))
        self.rows = torch.cat((torch.where(own, self.rows - first_row, 0), self.rows.new_zeros(1)))
        self.valid_counts = torch.cat((self.valid_counts, self.valid_counts.new_zeros(1)))

    def __len__(self) -> int:
        """Return the number of sequences, over all processes."""
        return self.starts.shape[0] - self.shared

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
        sizes = [len(self) * (i + 1) // number - len(self) * i // number for i in range(number)]
        wholes = self._valid_in(shuffled, sizes)
        if self.shared:
            shuffled, sizes = self._own_part(shuffled, sizes)
        order = shuffled.to(self.device, non_blocking=True)
        starts, rows = self.starts[order], self.rows[order]
        at, lanes = starts, rows
        if self.length > 1:
            steps = torch.arange(self.length, device=self.device)[:, None]
            at = torch.cat([(part + steps).flatten() for part in starts.split(sizes)])  # [L, n] of each minibatch
            lanes = torch.cat([part.repeat(self.length) for part in rows.split(sizes)])
        inside = None if self.full else at < self.num_steps
        index = (at if inside is None else at.clamp(max=self.num_steps - 1)) * self.num_rows + lanes
        rollout = self.rollout
        gathered = {
            "obs": _gather(rollout.obs, index),
            "actions": _gather(rollout.actions, index),
            "episode_starts": rollout.episode_starts.flatten().index_select(0, index),
            "scalars": self.scalars.index_select(1, index),
            "states": _gather_at(rollout.states, self._entries(starts), rows),
            "action_masks": _gather(rollout.action_masks, index),
            "context": _gather_at(rollout.context, index // self.num_rows, index % self.num_rows),
            "valid": None if inside is None else rollout.valid.flatten().index_select(0, index) & inside,
        }
        if gathered["valid"] is not None:
            _make_finite(gathered["obs"], gathered["valid"])
        counts = self._valid_in(shuffled, sizes) if self.shared else wholes
        yield from self._slices(gathered, sizes, zip(counts, wholes, strict=True))

    def _entries(self, starts: Tensor) -> Tensor:
        """Return at which sequence of their rows those that begin at these steps are."""
        entries = starts // self.length
        return entries.clamp(max=(self.num_steps - 1) // self.length) if self.shared else entries

    def _valid_in(self, order: Tensor, sizes: list[int]) -> list[int]:
        """Return how many steps count in each minibatch of such sizes."""
        if self.full:
            return [size * self.length for size in sizes]
        return [int(part.sum()) for part in self.valid_counts[order].split(sizes)]

    def _own_part(self, shuffled: Tensor, sizes: list[int]) -> tuple[Tensor, list[int]]:
        """Return what of each minibatch is here, filled up with the empty sequence so that there are few sizes."""
        grain = max(2, len(self) // len(sizes) // self.sharers // PORTIONS)
        parts: list[Tensor] = []
        for part in shuffled.split(sizes):
            own = part[self.is_own[part]]
            parts += [own, own.new_full((-len(own) % grain or grain * (not len(own)),), len(self))]
        filled = [len(own) + len(empty) for own, empty in zip(parts[::2], parts[1::2], strict=True)]
        return torch.cat(parts), filled

    def _slices(
        self, gathered: dict[str, Any], sizes: list[int], counts: Iterable[tuple[int, int]]
    ) -> Iterator[Minibatch]:
        done = 0
        for size, (count, whole) in zip(sizes, counts, strict=True):
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
                count=count,
                whole=whole,
                conditions={name: tree_map(cut, tree) for name, tree in conditions.items()},
            )
            done += size


_NOWHERE = 2**40
"""A first step behind the end of any rollout."""
LARGEST = 1e30
"""What a number that was seen where nobody acted stays below: sums of larger ones overflow."""
GRAINS = 16
"""Sequences are counted in sixteenths of the rollout, so that minibatches have few different sizes."""
PORTIONS = 8
"""A process's part of a minibatch is filled up to whole eighths of a usual one, likewise."""


def _counts(valid: Tensor, length: int) -> Tensor:
    """Return how many steps count in each sequence, `[T / L, B]`."""
    padded = torch.nn.functional.pad(valid, (0, 0, 0, -valid.shape[0] % length))
    return padded.unflatten(0, (-1, length)).sum(1)


def _counts_of_all(counts: Tensor, group: Group) -> tuple[Tensor, int]:
    """Return such counts with the rows of all processes side by side, and where those of this one begin."""
    if group.size == 1:
        return counts, 0
    shapes = group.gather(torch.tensor(counts.shape)).tolist()
    if len({entries for entries, _ in shapes}) > 1:
        raise RolloutError(
            f"Processes that learn together have rollouts of {[entries for entries, _ in shapes]} sequences per row; "
            "all must be equally long. Collect with the same rollout_steps and bptt_length everywhere."
        )
    rows = [rows for _, rows in shapes]
    parts = group.gather(torch.nn.functional.pad(counts, (0, max(rows) - counts.shape[1])))
    return torch.cat([part[:, :own] for part, own in zip(parts, rows, strict=True)], 1), sum(rows[: group.rank])


def _index(counts: Tensor, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return first step, row and number of valid steps of every sequence that has any, and of a few that have none."""
    rows, counts = counts.shape[1], counts.flatten()  # [T / L * B]
    grain = max(1, counts.numel() // GRAINS)
    number = -(-int((counts > 0).sum()) // grain) * grain
    chosen = (counts == 0).byte().argsort(stable=True)[:number]
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
