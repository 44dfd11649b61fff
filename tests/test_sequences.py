"""Minibatches: every valid transition once per epoch, contiguous in time, with the memory that entered it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.sequences import Sequences
from twostep.tree import tree_map

SHAPES = {
    "num_steps": st.integers(1, 13),
    "num_rows": st.integers(1, 4),
    "length": st.integers(1, 6),
    "number": st.integers(1, 7),
    "valid_share": st.sampled_from([1.0, 0.7, 0.3]),
    "seed": st.integers(0, 2**31),
}


def sequences_of(rollout):
    return Sequences(rollout, rollout.advantages, rollout.returns)


def random_flags(num_steps, num_rows, share, seed):
    return torch.rand(num_steps, num_rows, generator=torch.Generator().manual_seed(seed)) < share


def transitions(minibatch):
    """Return 100 t + b of all valid transitions."""
    valid = torch.ones_like(minibatch.values, dtype=torch.bool) if minibatch.valid is None else minibatch.valid
    return minibatch.values[valid].tolist()


def check_identities(minibatch, rollout):
    """Every number of a valid transition is of one and the same step and row, and so is the memory before it."""
    length, size = minibatch.values.shape
    valid = torch.ones(length, size, dtype=torch.bool) if minibatch.valid is None else minibatch.valid
    hidden, cell = minibatch.states[0].squeeze(-1), minibatch.states[1]["cell"].flatten(1).squeeze(-1)
    where = hidden + 100.0 * torch.arange(length)[:, None]  # rows stay, steps follow each other
    assert torch.equal(cell, hidden + 0.75)
    assert torch.equal(hidden % 100 + 100 * length * (hidden // (100 * length)), hidden)
    seen = {
        "values": minibatch.values,
        "logprobs": -minibatch.logprobs,
        "rewards": minibatch.rewards - 0.25,
        "advantages": minibatch.advantages - 1000,
        "returns": minibatch.returns - 2000,
        "choices": minibatch.actions[0].float(),
        "pushes": minibatch.actions[1]["push"].squeeze(-1) - 0.5,
        "obs": 100 * minibatch.obs["where"][..., 0] + minibatch.obs["where"][..., 1],
        "pictures": 100.0 * minibatch.obs["picture"][..., 0, 0, 0] + minibatch.obs["picture"][..., 1, 0, 0],
    }
    for name, numbers in seen.items():
        assert torch.equal(numbers[valid], where[valid]), name
    steps, rows = (where[valid] // 100).long(), (where[valid] % 100).long()
    assert torch.equal(minibatch.episode_starts[valid], rollout.episode_starts[steps, rows])
    assert torch.equal(minibatch.conditions["task"][valid], rows.float())
    assert torch.equal(minibatch.conditions["action_masks"][valid], rollout.action_masks[steps, rows])
    assert bool(rollout.valid[steps, rows].all())


@settings(max_examples=120, deadline=None)
@given(**SHAPES)
def test_every_valid_transition_once_per_epoch(identifiable, num_steps, num_rows, length, number, valid_share, seed):
    """LB11, EB4, LB12, R6: nothing dropped, nothing twice, nothing invalid, all columns aligned, leftovers used."""
    valid = random_flags(num_steps, num_rows, valid_share, seed)
    starts = random_flags(num_steps, num_rows, 0.3, seed + 1)
    rollout = identifiable(num_steps, num_rows, length, valid, starts)
    sequences = sequences_of(rollout)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(2):
        minibatches = list(sequences.epoch(min(number, max(1, len(sequences))), generator))
        seen = sorted(where for minibatch in minibatches for where in transitions(minibatch))
        assert seen == sorted(rollout.values[valid].tolist())
        for minibatch in minibatches:
            check_identities(minibatch, rollout)
            assert minibatch.count == len(transitions(minibatch))


@settings(max_examples=40, deadline=None)
@given(**SHAPES, pieces=st.integers(1, 9))
def test_pieces_are_the_minibatch(identifiable, num_steps, num_rows, length, number, valid_share, seed, pieces):
    """MB6: what accumulation goes through is the minibatch, in order, with memory and conditions."""
    rollout = identifiable(num_steps, num_rows, length, random_flags(num_steps, num_rows, valid_share, seed))
    for minibatch in sequences_of(rollout).epoch(number if valid_share == 1.0 else 1):
        parts = list(minibatch.pieces(pieces))
        assert sum(part.count for part in parts) == minibatch.count
        assert len(parts) == min(pieces, minibatch.values.shape[1])
        assert torch.equal(torch.cat([part.values for part in parts], dim=1), minibatch.values)
        assert torch.equal(torch.cat([part.states[0] for part in parts]), minibatch.states[0])
        for part in parts:
            check_identities(part, rollout)


@pytest.mark.parametrize(("steps", "length", "expected"), [(12, 4, None), (13, 4, 4), (3, 4, 1)])
def test_a_last_short_sequence_is_filled_up_with_steps_that_do_not_count(identifiable, steps, length, expected):
    """LB11: T need not be a multiple of L."""
    sequences = sequences_of(identifiable(steps, 2, length))
    (minibatch,) = sequences.epoch(1)
    assert minibatch.values.shape == (length, 2 * math.ceil(steps / length))
    assert minibatch.count == 2 * steps
    if expected is None:
        assert minibatch.valid is None
    else:
        assert len(sequences) == 2 * expected
        assert int(minibatch.valid.sum()) == 2 * steps


def test_sequences_without_a_valid_step_cost_nothing(identifiable):
    """EB4: rows where nobody is left are not computed."""
    valid = torch.ones(8, 3, dtype=torch.bool)
    valid[:, 1] = False
    valid[4:, 2] = False
    (minibatch,) = sequences_of(identifiable(8, 3, 4, valid)).epoch(1)
    assert minibatch.values.shape == (4, 3)
    assert minibatch.count == 12


def test_minibatches_mix_rows_and_time_and_every_epoch_anew(identifiable):
    """EB5: not a stretch of time of all rows, not one permutation for all epochs."""
    sequences = sequences_of(identifiable(64, 4))
    generator = torch.Generator().manual_seed(0)
    first, second = ([transitions(m) for m in sequences.epoch(8, generator)] for _ in range(2))
    for minibatch in first:
        assert len({where % 100 for where in minibatch}) > 1
        assert max(minibatch) // 100 - min(minibatch) // 100 > 32
    assert [sorted(minibatch) for minibatch in first] != [sorted(minibatch) for minibatch in second]
    again = [transitions(m) for m in sequences.epoch(8, torch.Generator().manual_seed(0))]
    assert again == first, "the same generator gives the same order (R10)"


def test_minibatch_sizes_differ_by_at_most_one_sequence(identifiable):
    """LB11: 10 sequences in 4 minibatches; no tiny rest."""
    sizes = [minibatch.values.shape[1] for minibatch in sequences_of(identifiable(10, 1)).epoch(4)]
    assert sorted(sizes) == [2, 2, 3, 3]


@pytest.mark.parametrize(
    ("minibatch_size", "num_minibatches", "length", "expected"),
    [(None, 4, 1, 4), (None, 1000, 1, 48), (16, 4, 1, 3), (20, 4, 1, 3), (1, 4, 1, 48), (1000, 4, 1, 1), (16, 4, 4, 3),
     (1, 4, 4, 12), (None, 4, 24, 2)],
)  # fmt: skip
def test_number_of_minibatches(identifiable, minibatch_size, num_minibatches, length, expected):
    """LB11, J35: 24 steps of 2 rows; a size in transitions becomes whole sequences, at least one."""
    assert sequences_of(identifiable(24, 2, length)).minibatch_count(minibatch_size, num_minibatches) == expected


@pytest.mark.parametrize("num_valid", [1, 15, 16, 17, 250, 255, 256])
def test_minibatches_have_few_sizes_however_many_steps_count(identifiable, num_valid):
    """J34: sizes come in sixteenths of the rollout, filled up with steps that do not count; the rest is the same."""
    valid = torch.zeros(256, dtype=torch.bool)
    valid[torch.randperm(256, generator=torch.Generator().manual_seed(0))[:num_valid]] = True
    rollout = identifiable(64, 4, 1, valid.view(64, 4))
    sequences = sequences_of(rollout)
    assert len(sequences) % 16 == 0
    assert 0 <= len(sequences) - num_valid < 16
    (minibatch,) = sequences.epoch(1)
    assert minibatch.count == num_valid
    assert sorted(transitions(minibatch)) == sorted(rollout.values[rollout.valid].tolist())


def test_nothing_valid_gives_no_minibatch(identifiable):
    """J37."""
    rollout = identifiable(6, 2, 3, torch.zeros(6, 2, dtype=torch.bool))
    assert len(sequences_of(rollout)) == 0
    assert list(sequences_of(rollout).epoch(1)) == []


def test_what_is_not_finite_where_nobody_was_does_not_reach_the_network(identifiable):
    """EB4: 0 times NaN is NaN, so a gradient of 0 would not be enough; the rollout itself stays as it is."""
    valid = torch.ones(6, 2, dtype=torch.bool)
    valid[2:4, 1] = False
    rollout = identifiable(6, 2, 3, valid)
    rollout.obs["where"][2:4, 1] = math.nan
    (minibatch,) = sequences_of(rollout).epoch(1)
    assert bool(minibatch.obs["where"].isfinite().all())
    check_identities(minibatch, rollout)
    assert int(rollout.obs["where"].isnan().sum()) == 4


def test_minibatches_are_copies(identifiable):
    """R9: an optimizer may do with them what it likes."""
    rollout = identifiable(4, 2, 2)
    before = rollout.to_dict()
    before = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, before)
    for minibatch in sequences_of(rollout).epoch(1):
        tree_map(lambda leaf: leaf.zero_(), (minibatch.obs, minibatch.actions, minibatch.states, minibatch.conditions))
        minibatch.values.zero_()
        minibatch.advantages.zero_()
    after = rollout.to_dict()
    for name in ("values", "advantages"):
        assert torch.equal(before[name], after[name])
    assert torch.equal(before["observations"]["where"], after["observations"]["where"])
    assert torch.equal(before["states"][0], after["states"][0])
    assert torch.equal(before["context"]["task"], after["context"]["task"])
