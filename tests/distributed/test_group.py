"""What processes that learn together agree on: statistics over all rows, the same minibatches, the same counters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_group import together
from torch import Tensor

from twostep import RunningMeanStd, TerrainGrid, make_env
from twostep.advantages import explained_variance
from twostep.collect.tasks import TaskRows
from twostep.errors import RolloutError
from twostep.group import ALONE
from twostep.launch import Launch, launch
from twostep.learn.losses import normalized
from twostep.rollout import Episode
from twostep.sequences import Minibatch, Sequences
from twostep.training_state import TrainingState
from twostep.worlds.lock import CombinationLock

SHARES = st.lists(st.integers(1, 4), min_size=2, max_size=3)
"""Rows of each process."""


def masks(shares: list[int], steps: int, seed: int, density: float) -> Tensor:
    return torch.rand(steps, sum(shares), generator=torch.Generator().manual_seed(seed)) < density


def part(leaf: Tensor, shares: list[int], rank: int) -> Tensor:
    return leaf.split(shares, dim=1)[rank]


def steps_of(minibatch: Minibatch) -> list[float]:
    """Return what tells each step that counts, in order."""
    valid = torch.ones_like(minibatch.returns, dtype=torch.bool) if minibatch.valid is None else minibatch.valid
    return sorted(minibatch.returns[valid].tolist())


@settings(max_examples=25, deadline=None)
@given(
    shares=SHARES,
    steps=st.integers(1, 9),
    length=st.integers(1, 4),
    number=st.integers(1, 5),
    density=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    seed=st.integers(0, 99),
)
def test_parts_of_minibatches_make_the_minibatches_of_one_process(
    identifiable: Any, shares: list[int], steps: int, length: int, number: int, density: float, seed: int
) -> None:
    """L27: every process holds its own steps of every minibatch that one process would draw from all rows."""
    valid = masks(shares, steps, seed, density)
    whole = identifiable(steps, sum(shares), length, valid)

    def drawn(sequences: Sequences) -> list[Minibatch]:
        return list(sequences.epoch(number, torch.Generator().manual_seed(seed)))

    def own(group: Any) -> list[Minibatch]:
        rollout = identifiable(steps, shares[group.rank], length, part(valid, shares, group.rank))
        returns = part(whole.returns, shares, group.rank)
        return drawn(Sequences(rollout, rollout.advantages, returns, group))

    expected = drawn(Sequences(whole, whole.advantages, whole.returns))
    found = together(len(shares), own)
    assert {len(minibatches) for minibatches in found} == {len(expected)}
    for one, parts in zip(expected, zip(*found, strict=True), strict=True):
        assert sorted(step for piece in parts for step in steps_of(piece)) == steps_of(one)
        assert {piece.whole for piece in parts} == {one.whole} == {sum(piece.count for piece in parts)}
        assert [piece.count for piece in parts] == [len(steps_of(piece)) for piece in parts]


@settings(max_examples=20, deadline=None)
@given(shares=SHARES, offset=st.sampled_from([0.0, 1e4]), density=st.sampled_from([0.05, 0.7]), seed=st.integers(0, 99))
def test_statistics_are_over_the_rows_of_all(shares: list[int], offset: float, density: float, seed: int) -> None:
    """L10, L16, L27: advantages, explained variance and running moments, also where some have nothing."""
    numbers = torch.randn(6, sum(shares), generator=torch.Generator().manual_seed(seed)).double() + offset
    values, valid = numbers * 0.5, masks(shares, 6, seed + 1, density)
    valid[0, 0] = valid[1, -1] = True
    moments = RunningMeanStd()
    moments.update(numbers, valid)

    def own(group: Any) -> tuple[Tensor, float, Any]:
        mine = [part(leaf, shares, group.rank) for leaf in (numbers, values, valid)]
        running = RunningMeanStd(group=group)
        running.update(mine[0], mine[2])
        variance = float(explained_variance(mine[1], mine[0], mine[2], group))
        return normalized(mine[0], mine[2], group), variance, [float(running.mean), float(running.var), running.count]

    found = together(len(shares), own)
    together_normal = torch.cat([advantages for advantages, *_ in found], 1)
    torch.testing.assert_close(together_normal[valid], normalized(numbers, valid)[valid], rtol=1e-6, atol=1e-6)
    for _, variance, measured in found:
        assert variance == pytest.approx(float(explained_variance(values, numbers, valid)), abs=1e-9)
        assert measured == pytest.approx([float(moments.mean), float(moments.var), moments.count], rel=1e-9)


def test_numbers_that_are_all_alike_stay_exactly_zero() -> None:
    """L10: as in one process, also where one number is all there is."""
    for valid in (torch.ones(3, 2, dtype=torch.bool), torch.eye(2, dtype=torch.bool)[:1].expand(1, 2)):
        same = torch.full(valid.shape, 0.1)
        found = together(2, lambda group, s=same, v=valid: normalized(s[:, group.rank], v[:, group.rank], group))
        assert torch.stack(found, 1)[valid].abs().max() == 0.0


def test_episodes_of_all_are_counted_in_the_order_in_which_they_ended(identifiable: Any) -> None:
    """L18: the last hundred are those of all processes, and the counters are the same everywhere."""
    ended = [[(3, 30.0), (7, 70.0)], [(1, 10.0), (7, 71.0), (9, 90.0)]]

    def own(group: Any) -> TrainingState:
        state, rollout = TrainingState(group=group), identifiable(10, 2 + group.rank)
        rollout.episodes = [Episode(ret, 5 + group.rank, 0, step) for step, ret in ended[group.rank]]
        assert state.count(rollout) == 50
        return state

    first, second = together(2, own)
    assert first == second
    assert (first.agent_steps, first.episodes) == (50, 5)
    assert list(first.episode_rewards) == [10.0, 30.0, 70.0, 71.0, 90.0]
    assert list(first.episode_lengths) == [6, 5, 5, 6, 6]


def test_rollouts_of_unequal_length_are_refused(identifiable: Any) -> None:
    """L27: everywhere at once, so that nobody waits."""

    def own(group: Any) -> None:
        rollout = identifiable(4 + group.rank, 2)
        with pytest.raises(RolloutError, match=r"sequences per row.*same rollout_steps"):
            Sequences(rollout, rollout.advantages, rollout.returns, group)

    together(2, own)


def test_who_is_alone_asks_nobody() -> None:
    """L27: one process pays nothing."""
    numbers = torch.randn(5)
    assert ALONE.sum(numbers) is numbers
    assert ALONE.max(numbers) is numbers
    assert ALONE.tell({"a": math.inf}) == [{"a": math.inf}]
    assert launch() == Launch()


@pytest.mark.parametrize(("total", "size"), [(8, 3), (3, 3), (4096, 7)])
def test_shares_are_whole_and_nearly_equal(total: int, size: int) -> None:
    """L27: environments are shared out without one left over."""
    shares = [Launch(rank, size).share(total) for rank in range(size)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


def test_a_curriculum_knows_how_many_episodes_run_in_all_processes() -> None:
    """L26, L27: what each has drawn and not completed; what was given up for new episodes is not waited for."""

    def own(group: Any) -> int:
        grid = TerrainGrid(("flat",), 1, seed=group.rank)
        rows = TaskRows(make_env(lambda: CombinationLock(1), 4, 0), grid, group=group)
        for _ in range(3):
            rows.reset(0)
        rows.complete([])
        return grid.grid["flat/0"].running

    assert together(2, own) == [16, 16], "of each of 8 environments the present episode and the next"
