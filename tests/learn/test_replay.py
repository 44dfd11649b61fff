"""Past experience: what is kept, what is drawn, how stale it is, and what learning from it does and does not touch."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep import ConfigError, PPOConfig, PPOOptimizer, PPOTrainer, RatioError, ReplayBuffer, RolloutBuffer
from twostep.checkpoint import load_state, save_state
from twostep.learn.revaluing import judged, revalued
from twostep.tree import tree_leaves, tree_map

METRICS = {"replay_share", "replay_kl", "replay_clipfrac", "replay_age", "replay_age_steps"}


def silent_policy(obs, state, episode_starts, **conditions):
    """Values every state at 0 and gives every action the log-probability 0."""
    zeros = torch.zeros(episode_starts.shape)
    return SimpleNamespace(values=zeros, distribution=SimpleNamespace(log_prob=lambda actions: zeros), state=state)


@pytest.fixture(scope="session")
def silent_learner():
    """What `draw` needs of a learner."""
    return SimpleNamespace(policy=silent_policy, config=PPOConfig(), device=torch.device("cpu"))


@pytest.fixture
def numbered(identifiable):
    """A function: a rollout whose numbers tell which one it is, besides step and row."""

    def build(number, steps, rows, length=1, valid=None):
        rollout = identifiable(steps, rows, length, valid)
        rollout.rewards += 100_000 * number
        rollout.logprobs -= 100_000 * number
        return rollout

    return build


def columns_of(rollout, step, row):
    """Everything that learning reads of one transition, besides what is computed anew."""
    trees = (rollout.obs, rollout.actions, rollout.logprobs, rollout.rewards, rollout.action_masks, rollout.context)
    leaves = [leaf[step, row].double().flatten() for leaf in tree_leaves(trees)]
    leaves += [leaf[step // rollout.sequence_length, row].double().flatten() for leaf in tree_leaves(rollout.states)]
    return torch.cat(leaves)


# ------------------------------------------------------------------ what is drawn


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=6),
    length=st.integers(1, 3),
    ratio=st.floats(0.05, 0.9),
    recency=st.floats(0.0, 5.0),
    seed=st.integers(0, 2**31),
)
def test_every_replayed_transition_is_a_real_one_and_comes_once(
    identifiable, silent_learner, sizes, length, ratio, recency, seed
):
    """J12, JB11: whatever is drawn was collected, with its own memory, mask and context, and so much of it as asked."""
    generator = torch.Generator().manual_seed(seed)
    replay = ReplayBuffer(ratio=ratio, recency=recency, keep=4, seed=seed)
    rollouts = []
    for number, (steps, rows) in enumerate(sizes):
        rollout = identifiable(
            length * steps, rows, length, torch.rand(length * steps, rows, generator=generator) < 0.8
        )
        rollout.rewards += 100_000 * number
        rollouts.append(rollout)
        replay.add(rollout)
    fresh = identifiable(8, 3, length)
    drawn = replay.draw(silent_learner, fresh)
    newest = [number for number, rollout in enumerate(rollouts) if rollout.valid.any()][-4:]
    there = sum(int(rollouts[number].valid.sum()) for number in newest)
    wanted = round(24 * ratio / (1 - ratio))
    if drawn.rollout is None:
        assert not there or not wanted
        return
    past = drawn.rollout
    seen = set()
    for step, row in past.valid.nonzero().tolist():
        number, place = divmod(past.rewards[step, row].item(), 100_000)
        original_step, original_row = divmod(int(place), 100)
        original = rollouts[int(number)]
        assert number in newest, "no others are kept"
        assert original.valid[original_step, original_row]
        assert torch.equal(columns_of(past, step, row), columns_of(original, original_step, original_row))
        seen.add((number, original_step, original_row))
    count = int(past.valid.sum())
    assert len(seen) == count, "none twice"
    assert min(wanted, there) <= count < min(wanted, there) + length
    assert drawn.metrics["replay_share"] == pytest.approx(count / (count + 24))


def test_a_rollout_in_which_no_step_counts_leaves_nothing_behind(numbered, tmp_path):
    """J12: neither a place among those kept nor a file that nobody removes."""
    replay = ReplayBuffer(tmp_path, keep=1)
    replay.add(numbered(0, 4, 2))
    replay.add(numbered(1, 4, 2, valid=torch.zeros(4, 2, dtype=torch.bool)))
    assert len(replay) == len(list(tmp_path.iterdir())) == 1
    assert replay.added == 2


def test_recent_rollouts_are_drawn_more_often(numbered, silent_learner):
    """J12: with weights exp(linspace(-2, 0)), the newest about 7 times as often as the oldest."""
    replay = ReplayBuffer(ratio=0.5, recency=2.0, keep=5, seed=3)
    for number in range(5):
        replay.add(numbered(number, 1, 2))
    draws = 600
    fresh = numbered(9, 1, 1)
    drawn = Counter(
        int(past.rewards[past.valid][0]) // 100_000
        for past in (replay.draw(silent_learner, fresh).rollout for _ in range(draws))
    )
    weights = np.exp(np.linspace(-2, 0, 5))
    expected = weights / weights.sum()
    for number, chance in enumerate(expected):
        deviation = np.sqrt(draws * chance * (1 - chance))
        assert abs(drawn[number] - draws * chance) < 4 * deviation


def test_the_same_seed_draws_the_same(numbered, silent_learner):
    """J12: and another seed something else."""
    results = []
    for seed in (1, 1, 2):
        replay = ReplayBuffer(ratio=0.5, seed=seed)
        for number in range(6):
            replay.add(numbered(number, 4, 3))
        fresh = numbered(9, 4, 2)
        pasts = [replay.draw(silent_learner, fresh).rollout for _ in range(3)]
        results.append(torch.cat([past.rewards[past.valid] for past in pasts]))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_nothing_is_drawn_where_nothing_is(numbered, silent_learner):
    """J12: the first update learns from fresh experience only, and reports the same metrics as later ones."""
    replay = ReplayBuffer(ratio=0.5)
    first = replay.draw(silent_learner, numbered(0, 4, 2))
    assert first.rollout is None
    assert first.metrics["replay_share"] == 0.0
    assert set(first.metrics) == METRICS
    assert ReplayBuffer(ratio=0.0).draw(silent_learner, numbered(0, 4, 2)) is None


def test_what_is_kept_is_a_copy(numbered, silent_learner):
    """J12: a collector that fills the same memory again changes nothing that is kept."""
    replay = ReplayBuffer(ratio=0.5)
    rollout = numbered(1, 4, 2)
    replay.add(rollout)
    rollout.rewards.zero_()
    tree_map(lambda leaf: leaf.zero_(), rollout.obs)
    past = replay.draw(silent_learner, numbered(2, 4, 2)).rollout
    assert bool((past.rewards[past.valid] >= 100_000).all())
    assert float(past.obs["where"].max()) == 3.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"ratio": 1.0}, "ratio=1.0 must be"), ({"keep": 0}, "keep=0 must be"), ({"recency": -1.0}, "recency=-1.0 must")],
)
def test_settings_that_cannot_work_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        ReplayBuffer(**wrong)


# ------------------------------------------------------------------ staleness


def test_staleness_is_measured_before_learning(collected):
    """JB11: approx_kl, clipfrac and age of past experience, as a plain loop over its steps finds them."""
    old, policy = collected(num_steps=24, memory="gru")
    learner = PPOOptimizer(policy, config=PPOConfig(lr=3e-3))
    replay = ReplayBuffer(ratio=0.5, keep=3)
    replay.add(old)
    learner.update(old)
    between, _ = collected(num_steps=24, policy=policy, seed=1)
    learner.update(between)
    fresh, _ = collected(num_steps=24, policy=policy, seed=2)
    drawn = replay.draw(learner, fresh)
    state, kl, clipped = old.states[0], [], []
    with torch.no_grad():
        for t in range(24):
            output = policy(old.obs[t : t + 1], state, old.episode_starts[t : t + 1])
            log_ratio = output.distribution.log_prob(old.actions[t : t + 1]) - old.logprobs[t : t + 1]
            kl.append((log_ratio.exp() - 1 - log_ratio).mean())
            clipped.append(((log_ratio.exp() - 1).abs() > 0.2).float().mean())
            state = output.state
    assert drawn.metrics["replay_kl"] == pytest.approx(float(torch.stack(kl).mean()), abs=1e-5)
    assert drawn.metrics["replay_clipfrac"] == pytest.approx(float(torch.stack(clipped).mean()), abs=1e-6)
    assert drawn.metrics["replay_kl"] > 1e-4
    assert drawn.metrics["replay_age"] == 1.0, "one rollout was added since, the fresh one"
    assert drawn.metrics["replay_age_steps"] == 96.0


def test_values_of_unknown_states_move_with_their_neighbours(collected):
    """JB11: far nearer to what the critic truly says behind the last step than what it once said."""
    rollout, policy = collected(num_steps=64, num_envs=8)
    half = RolloutBuffer.from_dict(
        {name: leaf[: 32 * 8] if torch.is_tensor(leaf) else leaf for name, leaf in rollout.to_dict().items()}
        | {"shape": [32, 8], "episodes": []}
    )
    learner = PPOOptimizer(policy, config=PPOConfig(lr=3e-3))
    for _ in range(8):
        learner.update(half)
    truth = judged(policy, rollout).values[32]
    goes_on = ~(half.terminated | half.truncated)[-1]
    moved = revalued(half, judged(policy, half).values).next_values[-1]
    error = (moved - truth)[goes_on].square().mean().sqrt()
    before = (half.next_values[-1] - truth)[goes_on].square().mean().sqrt()
    assert before > 1.0, "the critic has learned something"
    assert error < 0.25 * before


# ------------------------------------------------------------------ learning


def test_past_experience_is_learned_from_beside_the_fresh(collected):
    """J12, JB11: every replayed transition reaches the loss, values and advantages are those of the present critic."""
    old, policy = collected(num_steps=16, num_envs=4)
    learner = PPOOptimizer(policy, config=PPOConfig(lr=3e-3, update_epochs=1, num_minibatches=2))
    replay = ReplayBuffer(ratio=0.5)
    learner.update(old)
    replay.add(old)
    fresh, _ = collected(num_steps=16, num_envs=4, policy=policy, seed=1)
    seen = []

    def spy(policy, obs, actions, rewards, values, advantages):
        seen.append(obs)
        return 0.0 * values.sum()

    drawn = replay.draw(learner, fresh)
    assert not torch.allclose(drawn.rollout.values, old.values, atol=1e-4)
    metrics = learner.update(fresh, (spy,), drawn)
    learned = torch.cat([obs.flatten(0, 1) for obs in seen])
    wanted = torch.cat([fresh.obs.flatten(0, 1), old.obs.flatten(0, 1)])
    assert torch.equal(learned.sort(0).values, wanted.sort(0).values)
    assert metrics["replay_share"] == 0.5
    assert metrics["ratio_error"] < 1e-5, "that of the fresh part"


def test_normalisers_and_explained_variance_know_the_fresh_part_only(collected):
    """JB11: what was counted once is not counted again."""
    old, policy = collected(num_steps=16, num_envs=4)
    old.rewards += 1000.0
    old.obs, old.policy_version = old.obs + 500.0, None
    learner = PPOOptimizer(policy, config=PPOConfig(normalize_obs=True, normalize_returns=True))
    replay = ReplayBuffer(ratio=0.5)
    replay.add(old)
    fresh, _ = collected(num_steps=16, num_envs=4, policy=policy, seed=1)
    alone = PPOOptimizer(deepcopy(policy), config=PPOConfig(normalize_obs=True, normalize_returns=True))
    metrics = learner.update(fresh, (), replay.draw(learner, fresh))
    assert metrics["explained_variance"] == alone.update(fresh)["explained_variance"]
    mine, alike = (tree_leaves(one.observation_normalizer.state_dict()) for one in (learner, alone))
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(mine, alike, strict=True))
    assert learner.return_normalizer.scale == alone.return_normalizer.scale


def test_the_ratio_of_the_fresh_part_is_still_checked(collected):
    """JB11, R3: past experience beside it does not hide that the learner is not the policy that acted."""
    old, policy = collected()
    learner = PPOOptimizer(policy, config=PPOConfig())
    replay = ReplayBuffer(ratio=0.5)
    learner.update(old)
    replay.add(old)
    fresh, _ = collected(policy=policy, seed=1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    before = torch.cat([parameter.detach().flatten().clone() for parameter in policy.parameters()])
    with pytest.raises(RatioError, match="before the first step"):
        learner.update(fresh, (), replay.draw(learner, fresh))
    assert torch.equal(before, torch.cat([parameter.detach().flatten() for parameter in policy.parameters()]))


@pytest.mark.parametrize("agent", [{}, {"memory": "gru"}])
def test_training_with_replay(small_trainer, agent):
    """J12, JB11: what is collected is kept and learned from again; every update has all metrics."""
    trainer = small_trainer(agent=agent, replay=ReplayBuffer(ratio=0.25, keep=2))
    history = trainer.train(total_timesteps=320)
    assert set(history) >= METRICS
    assert history["replay_share"][0] == 0.0
    assert history["replay_share"][1:] == pytest.approx([0.25] * 4, abs=0.1)
    assert max(history["ratio_error"]) < 1e-4
    assert len(trainer.replay) == 2
    assert 1.0 <= history["replay_age"][-1] <= 2.0
    assert trainer.total_timesteps == 320, "past steps are not counted again"


def test_keeping_alone_asks_nothing_of_an_overridden_learn(small_trainer, tmp_path):
    """J7, J12: with a ratio of 0 rollouts are only saved, and `learn` is called as ever."""

    class Own(PPOTrainer):
        def learn(self, rollout_data):
            return super().learn(rollout_data)

    trainer = small_trainer(trainer=Own, replay=ReplayBuffer(tmp_path, ratio=0.0, keep=3))
    history = trainer.train(total_timesteps=320)
    assert not METRICS & set(history)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        f"step_{steps:012d}.safetensors" for steps in (192, 256, 320)
    ]


# ------------------------------------------------------------------ files, and going on


@pytest.mark.parametrize("on_disk", [False, True])
def test_going_on_draws_what_would_have_been_drawn(numbered, silent_learner, tmp_path, on_disk):
    """J12: state through a checkpoint, files by name and digest, memory whole."""
    folder = tmp_path / "rollouts" if on_disk else None
    replay = ReplayBuffer(folder, ratio=0.4, keep=4, seed=5)
    for number in range(6):
        replay.add(numbered(number, 4, 3, 2))
    fresh = numbered(9, 4, 3, 2)
    replay.draw(silent_learner, fresh)
    save_state(tmp_path / "state", replay.state_dict())
    again = ReplayBuffer(folder, ratio=0.4, keep=4, seed=77)
    again.load_state_dict(load_state(tmp_path / "state")[0])
    for _ in range(3):
        expected, got = replay.draw(silent_learner, fresh), again.draw(silent_learner, fresh)
        assert torch.equal(expected.rollout.rewards, got.rollout.rewards)
        assert torch.equal(expected.rollout.valid, got.rollout.valid)
        assert expected.metrics == got.metrics


def test_files_that_are_gone_are_named_and_later_ones_removed(numbered, silent_learner, tmp_path, caplog):
    """J12: what is missing on going on is dropped loudly; what would be collected again goes."""
    replay = ReplayBuffer(tmp_path, ratio=0.5, keep=4)
    for number in range(4):
        replay.add(numbered(number, 4, 3))
    state = replay.state_dict()
    first, second, *_ = sorted(tmp_path.iterdir())
    first.unlink()
    second.write_bytes(second.read_bytes()[:50])
    later = tmp_path / "step_000000009999.safetensors"
    later.write_bytes(b"")
    again = ReplayBuffer(tmp_path, ratio=0.5, keep=4)
    with caplog.at_level(logging.WARNING):
        again.load_state_dict(state)
    assert "2 of 4 rollouts are not where they were" in caplog.text
    assert first.name in caplog.text
    assert second.name in caplog.text
    assert len(again) == 2
    assert not later.exists()
    assert int(again.draw(silent_learner, numbered(9, 4, 3)).rollout.valid.sum()) == 12


def test_a_file_that_is_damaged_later_is_dropped_loudly(numbered, silent_learner, tmp_path, caplog):
    """J12: training goes on with the others."""
    replay = ReplayBuffer(tmp_path, ratio=0.5, keep=4)
    for number in range(2):
        replay.add(numbered(number, 4, 3))
    damaged = sorted(tmp_path.iterdir())[1]
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            replay.draw(silent_learner, numbered(9, 4, 3))
    assert caplog.text.count("is damaged") == 1
    assert len(replay) == 1


def test_a_disk_that_fails_is_warned_of_once_and_stops_nothing(small_trainer, tmp_path, caplog):
    """J12: training goes on without what could not be kept."""
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    trainer = small_trainer(replay=ReplayBuffer(in_the_way / "rollouts", ratio=0.5))
    with caplog.at_level(logging.WARNING):
        history = trainer.train(total_timesteps=256)
    assert len(history["loss"]) == 4
    assert history["replay_share"] == [0.0] * 4
    assert caplog.text.count("goes on without keeping") == 1


@pytest.mark.parametrize("agent", [{}, {"memory": "lstm"}])
def test_resuming_equals_never_having_stopped(small_trainer, tmp_path, agent):
    """J12, JB11: bit for bit, with what is kept as files of which newer ones took the place meanwhile."""

    def trainer(folder):
        return small_trainer(agent=agent, replay=ReplayBuffer(folder, ratio=0.5, keep=3, seed=4))

    through = trainer(tmp_path / "through")
    through.train(256)
    through.save_checkpoint(tmp_path / "checkpoint")
    shutil.copytree(tmp_path / "through", tmp_path / "stopped")
    through.train(512)
    again = trainer(tmp_path / "stopped")
    again.load_checkpoint(tmp_path / "checkpoint")
    again.train(512)
    ends = [torch.cat([p.detach().flatten() for p in one.policy.parameters()]) for one in (through, again)]
    assert torch.equal(*ends)
    names = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("through", "stopped")]
    assert names[0] == names[1]
