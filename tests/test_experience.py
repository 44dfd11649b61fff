"""Rollouts as a whole: joined so that learning sees the union, and kept in files that are whole or refused."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from twostep import (
    Episode,
    PPOConfig,
    PPOOptimizer,
    RolloutBuffer,
    RolloutError,
    combine_rollouts,
    create_fake_rollout_data,
    load_rollouts,
    save_rollouts,
)
from twostep.experience import _digest
from twostep.sequences import Sequences
from twostep.tree import tree_items, tree_structure

COLUMNS = (
    *("obs", "actions", "logprobs", "values", "rewards", "next_values", "terminated", "truncated", "episode_starts"),
    *("valid", "states", "action_masks", "context", "advantages", "returns"),
)


def require_equal(first, second):
    """Demand the same columns bit for bit, in the same structure and types."""
    for name in COLUMNS:
        mine, theirs = getattr(first, name), getattr(second, name)
        assert tree_structure(mine) == tree_structure(theirs), name
        for (path, leaf), (_, other) in zip(tree_items(mine, name), tree_items(theirs, name), strict=True):
            assert leaf.dtype == other.dtype, path
            assert torch.equal(leaf, other), path
    for name in ("sequence_length", "policy_version", "episodes"):
        assert getattr(first, name) == getattr(second, name), name


@pytest.fixture
def full_rollout(identifiable):
    """A rollout that has everything a rollout can have."""
    valid, starts, terminated, truncated = torch.rand(4, 10, 3, generator=torch.Generator().manual_seed(0)) < 0.4
    rollout = identifiable(10, 3, 4, valid, starts)
    rollout.terminated, rollout.truncated = terminated, truncated
    rollout.episodes = [
        Episode(1.5, 3, 2, 7, {"won": True, "level": "ä", "score": float("inf")}),
        Episode(-0.1, 1, 0, 9),
    ]
    rollout.policy_version = 2**61 + 1
    return rollout


# ------------------------------------------------------------------ combining


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3)), min_size=1, max_size=4),
    length=st.integers(1, 4),
    as_dicts=st.booleans(),
)
def test_combined_rollouts_hold_every_transition_once(identifiable, sizes, length, as_dicts):
    """J13, J14, J23, J37, LB11: different lengths and rows, empty ones too; rows stay rows."""
    rollouts = [identifiable(steps, rows, length) for steps, rows in sizes]
    for number, rollout in enumerate(rollouts):
        rollout.rewards += 10_000 * number
        rollout.episodes = [Episode(float(number), 1, rollout.num_rows - 1, 0)] if rollout.num_steps else []
    expected = sorted(reward for rollout in rollouts for reward in rollout.rewards.flatten().tolist())
    combined = combine_rollouts([rollout.to_dict() for rollout in rollouts] if as_dicts else rollouts)
    assert isinstance(combined, dict if as_dicts else RolloutBuffer)
    joined = RolloutBuffer.from_dict(combined) if as_dicts else combined
    assert sorted(joined.rewards[joined.valid].tolist()) == expected
    for minibatch in Sequences(joined, joined.advantages, joined.returns).epoch(3):
        valid = torch.ones_like(minibatch.values, dtype=torch.bool) if minibatch.valid is None else minibatch.valid
        places = minibatch.states[0].squeeze(-1) + 100 * torch.arange(length)[:, None]
        assert torch.equal(minibatch.values[valid], places[valid]), "memory belongs to its sequence"
    for episode in joined.episodes:
        assert joined.rewards[0, episode.row].item() // 10_000 == episode.ret, "episodes know their row in the union"


def test_advantages_computed_after_joining_are_those_computed_before(identifiable):
    """J13, J23: padding adds nothing and nothing passes through it."""
    rollouts = [identifiable(steps, 2, 3) for steps in (4, 9, 6)]
    for rollout in rollouts:
        rollout.rewards += torch.rand(rollout.rewards.shape)
        rollout.compute_gae(gamma=0.9, gae_lambda=0.8)
    combined = combine_rollouts(rollouts)
    before = combined.advantages[combined.valid]
    combined.compute_gae(gamma=0.9, gae_lambda=0.8)
    torch.testing.assert_close(combined.advantages[combined.valid], before)


def test_advantages_are_kept_only_where_all_have_them(identifiable):
    rollouts = [identifiable(4, 1), identifiable(4, 1)]
    rollouts[1].advantages = None
    assert combine_rollouts(rollouts).advantages is None
    assert combine_rollouts(rollouts[:1]).advantages is not None


def test_the_version_is_kept_only_where_one_policy_acted(identifiable):
    """JB11: data of several policies are nobody's, so no ratio is expected to be 1."""
    rollouts = [identifiable(4, 1), identifiable(4, 1)]
    rollouts[0].policy_version = rollouts[1].policy_version = 7
    assert combine_rollouts(rollouts).policy_version == 7
    rollouts[1].policy_version = 8
    assert combine_rollouts(rollouts).policy_version is None


def test_short_rollouts_with_memory_join_long_ones(collected):
    """J23: a rollout shorter than a sequence has one sequence, whatever their length."""
    short, policy = collected(num_steps=5, bptt_length=8, memory="gru")
    long, _ = collected(num_steps=20, bptt_length=8, policy=policy, seed=1)
    assert (short.sequence_length, long.sequence_length) == (5, 8)
    combined = combine_rollouts([short, long])
    assert combined.sequence_length == 8
    assert combined.policy_version == policy.version
    metrics = PPOOptimizer(policy, config=PPOConfig()).update(combined)
    assert metrics["ratio_error"] < 1e-4


def test_nothing_to_join(identifiable):
    """J37, J38."""
    empty = identifiable(0, 2).to_dict()
    assert combine_rollouts([empty, empty])["rewards"].numel() == 0
    assert len(combine_rollouts([empty, identifiable(3, 2).to_dict()])["rewards"]) == 6
    with pytest.raises(RolloutError, match="at least one"):
        combine_rollouts([])


def test_dicts_and_buffers_may_be_mixed(identifiable):
    combined = combine_rollouts([identifiable(3, 1), identifiable(3, 1).to_dict()])
    assert combined.rewards.shape == (3, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: setattr(r, "obs", r.obs["where"]), r"Rollout 1 has obs leaf, rollout 0 has \{picture, where\}"),
        (
            lambda r: r.obs.update(where=torch.zeros(8, 2, 5)),
            r"Rollout 1 has obs/where of \(5,\) torch.float32 per step",
        ),
        (lambda r: r.obs.update(where=r.obs["where"].double()), r"Rollout 1 has obs/where of \(2,\) torch.float64"),
        (lambda r: setattr(r, "context", None), r"Rollout 1 has context nothing"),
        (lambda r: setattr(r, "sequence_length", 2), "Rollout 1 stores memory every 2 steps, rollout 0 every 4"),
    ],
)
def test_rollouts_that_do_not_fit_are_refused(identifiable, change, message):
    """J38: the first thing that differs is named."""
    rollouts = [identifiable(8, 2, 4), identifiable(8, 2, 4)]
    change(rollouts[1])
    if rollouts[1].sequence_length == 2:
        rollouts[1] = identifiable(8, 2, 2)
    with pytest.raises(RolloutError, match=message):
        combine_rollouts(rollouts)


def test_learning_normalises_over_the_union(collected):
    """JB4, R4, J41: one rollout's advantages are a thousand times the other's, and stay so."""
    first, policy = collected(num_steps=16, num_envs=2)
    second, _ = collected(num_steps=16, num_envs=3, policy=policy, seed=1)
    second.rewards *= 1000.0
    for rollout in (first, second):
        rollout.compute_gae(gamma=0.99, gae_lambda=0.95)
    union = torch.cat([first.advantages.flatten(), second.advantages.flatten()])
    expected = ((union - union.mean()) / (union.std() + 1e-8)).sort().values
    seen = []

    def spy(policy, obs, actions, rewards, values, advantages):
        seen.append(advantages.flatten())
        return 0.0 * values.sum()

    learner = PPOOptimizer(policy, config=PPOConfig(update_epochs=1, num_minibatches=3))
    learner.update(RolloutBuffer.from_dict(combine_rollouts([first.to_dict(), second.to_dict()])), [spy])
    torch.testing.assert_close(torch.cat(seen).sort().values, expected, rtol=1e-4, atol=1e-5)
    assert expected.abs().max().item() > 10 * ((first.advantages - first.advantages.mean()) / union.std()).abs().max()


# ------------------------------------------------------------------ files


@pytest.mark.parametrize("as_dict", [False, True])
def test_saved_rollouts_come_back_bit_for_bit(full_rollout, tmp_path, as_dict):
    """J12, J19: nested observations, memory, masks, context, flags, episodes, version; no other file stays."""
    path = save_rollouts(full_rollout.to_dict() if as_dict else full_rollout, tmp_path / "deep" / "rollout.safetensors")
    assert [file.name for file in path.parent.iterdir()] == ["rollout.safetensors"]
    require_equal(load_rollouts(path), full_rollout)


@settings(max_examples=15, deadline=None)
@given(num_steps=st.integers(0, 7), num_rows=st.integers(1, 3), length=st.integers(1, 4))
def test_rollouts_of_all_sizes_survive(identifiable, tmp_path_factory, num_steps, num_rows, length):
    """J37: the empty one too."""
    rollout = identifiable(num_steps, num_rows, length)
    path = save_rollouts(rollout, tmp_path_factory.mktemp("rollouts") / "rollout")
    require_equal(load_rollouts(str(path)), rollout)


def test_a_plain_rollout_survives(collected, tmp_path):
    """Feed-forward, collected, nothing computed yet."""
    rollout, policy = collected(num_steps=12)
    assert rollout.states == ()
    back = load_rollouts(save_rollouts(rollout, tmp_path / "rollout"))
    require_equal(back, rollout)
    assert PPOOptimizer(policy, config=PPOConfig()).update(back)["ratio_error"] < 1e-5


def test_saving_again_replaces(identifiable, tmp_path):
    for steps in (9, 4):
        save_rollouts(identifiable(steps, 2), tmp_path / "rollout")
    assert load_rollouts(tmp_path / "rollout").num_steps == 4


def test_damaged_files_are_refused(full_rollout, tmp_path):
    """Every cut, and every changed byte of the data, is noticed."""
    path = save_rollouts(full_rollout, tmp_path / "rollout")
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for place in (start, start + 100, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RolloutError, match="damaged"):
            load_rollouts(path)
    for size in (0, 5, 8, 100, start, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(RolloutError, match="not a whole rollout file"):
            load_rollouts(path)
    path.write_bytes(whole.replace(b'\\"length\\": 3', b'\\"length\\": 4'))
    with pytest.raises(RolloutError, match="damaged"):
        load_rollouts(path)


class Exploit:
    """What a pickle may do when it is loaded."""

    def __reduce__(self):
        return (pytest.fail, ("code of the file ran",))


def test_pickles_are_refused(tmp_path):
    """No file can run code, whatever its name."""
    (tmp_path / "a.safetensors").write_bytes(pickle.dumps(Exploit()))
    torch.save({"rewards": torch.zeros(3)}, tmp_path / "b.safetensors")
    for name in ("a", "b"):
        with pytest.raises(RolloutError, match="not a whole rollout file"):
            load_rollouts(tmp_path / f"{name}.safetensors")


@pytest.mark.parametrize("metadata", [None, {"twostep": "[]"}, {"twostep": "{}"}, {"other": "x"}, {"twostep": "null"}])
def test_other_tensor_files_are_refused(tmp_path, metadata):
    """J38: somebody's weights are no rollout."""
    save_file({"rewards": torch.zeros(3)}, tmp_path / "weights", metadata=metadata)
    with pytest.raises(RolloutError, match="no rollout"):
        load_rollouts(tmp_path / "weights")


def test_newer_formats_and_missing_files_say_so(tmp_path):
    save_file({"rewards": torch.zeros(3)}, tmp_path / "new", metadata={"twostep": json.dumps({"format": 2})})
    with pytest.raises(RolloutError, match=r"format 2.*Upgrade"):
        load_rollouts(tmp_path / "new")
    with pytest.raises(RolloutError, match="no rollout file at"):
        load_rollouts(tmp_path / "nothing")


# ------------------------------------------------------------------ made-up data


def test_fake_data_are_a_rollout_to_learn_from(collected):
    """J31, J32, C39: the loss on unit-variance returns is above 0."""
    data = create_fake_rollout_data(n_samples=200, obs_dim=4, n_actions=2, seed=0)
    assert {len(column) for column in data.values()} == {200}
    _, policy = collected(num_steps=4)
    metrics = PPOOptimizer(policy, config=PPOConfig()).update(RolloutBuffer.from_dict(data))
    assert metrics["loss"] > 0
    same, other = (create_fake_rollout_data(50, seed=seed)["rewards"] for seed in (1, 2))
    assert torch.equal(same, create_fake_rollout_data(50, seed=1)["rewards"])
    assert not torch.equal(same, other)
    assert create_fake_rollout_data(0)["observations"].shape == (0, 4)


def forged(path, rollout, change):
    """Write a file with a right digest around something that `save_rollouts` would not write."""
    save_rollouts(rollout, path)
    with safe_open(path, framework="pt") as file:
        described = json.loads(file.metadata()["twostep"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    change(tensors, described)
    save_file(tensors, path, metadata={"twostep": json.dumps(described), "sha256": _digest(tensors, described)})


@pytest.mark.parametrize(
    "change",
    {
        "format is text": lambda tensors, said: said.update(format="1"),
        "no structure": lambda tensors, said: said.pop("structure"),
        "structure is a list": lambda tensors, said: said.update(structure=[1]),
        "an unknown column": lambda tensors, said: said["structure"].update(weights="leaf"),
        "a missing column": lambda tensors, said: said["structure"].pop("rewards"),
        "a missing tensor": lambda tensors, said: tensors.pop("values"),
        "another number of steps": lambda tensors, said: tensors.update(values=torch.zeros(3, 2)),
        "another number of rows": lambda tensors, said: tensors.update(valid=torch.zeros(8, 5, dtype=torch.bool)),
        "too many numbers": lambda tensors, said: tensors.update(values=torch.zeros(8, 2, 2)),
        "no steps at all": lambda tensors, said: tensors.update(rewards=torch.zeros(())),
        "memory of other sequences": lambda tensors, said: said.update(sequence_length=2),
        "sequences of nothing": lambda tensors, said: said.update(sequence_length=0),
        "episodes of another kind": lambda tensors, said: said.update(episodes=[{"score": 1}]),
        "episodes are a number": lambda tensors, said: said.update(episodes=3),
    }.values(),
)
def test_files_with_a_right_digest_and_wrong_contents_are_refused(identifiable, tmp_path, change):
    """J38, JB15: whoever forges a file gets an error that names it, not a crash further on."""
    path = tmp_path / "forged.safetensors"
    forged(path, identifiable(8, 2, 4), change)
    with pytest.raises(RolloutError, match=r"forged\.safetensors (was not written by|holds tensors but no)"):
        load_rollouts(path)


def test_the_forger_can_write_a_good_file(identifiable, tmp_path):
    """Without a change, what is forged is what would have been saved."""
    path = tmp_path / "forged.safetensors"
    rollout = identifiable(8, 2, 4)
    forged(path, rollout, lambda tensors, said: None)
    require_equal(load_rollouts(path), rollout)
