"""Collecting against a plain step loop over the same environments, in every autoreset mode, with and without memory."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from twostep import AgentConfig, RolloutBuffer, make_env, make_policy
from twostep.collect.collector import RolloutCollector
from twostep.errors import NumericsError, RolloutError
from twostep.tensors import TensorEnv
from twostep.tree import tree_leaves, tree_map, tree_stack
from twostep.vector import SerialVectorEnv, as_env, row_seeds

NUM_ROWS, SEED, ACTION_SEED = 3, 7, 11
MODES = ("serial", "next_step", "same_step", "disabled")
MEMORIES = ("none", "gru", "lstm")
COLUMNS = ("logprobs", "values", "rewards", "next_values", "terminated", "truncated", "episode_starts", "valid")


class WanderEnv(gym.Env):
    """A walk that every action bends; episodes of random length, half of them cut, half of them over.

    Every observation is written into the same array, as many environments do.
    """

    observation_space = gym.spaces.Dict(
        {"place": gym.spaces.Box(-9, 9, (3,), np.float32), "phase": gym.spaces.Discrete(4, start=1)}
    )

    def __init__(self, continuous=False, masks=False):
        self.action_space = gym.spaces.Box(-0.4, 0.4, (3,), np.float32) if continuous else gym.spaces.Discrete(3)
        self.masks = masks
        self.place = np.zeros(3, dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place[:] = self.np_random.normal(size=3)
        self.steps, self.length = 0, int(self.np_random.integers(1, 8))
        return self._obs(), self._info()

    def step(self, action):
        push = np.eye(3)[action] if np.ndim(action) == 0 else np.asarray(action)
        self.place[:] = 0.7 * self.place + push + 0.3 * self.np_random.normal(size=3)
        self.steps += 1
        over = bool(self.steps == self.length and self.np_random.random() < 0.5)
        return self._obs(), float(self.place.sum()), over, self.steps >= self.length and not over, self._info()

    def _obs(self):
        return {"place": self.place, "phase": 1 + self.steps % 4}

    def _info(self):
        if not self.masks:
            return {}
        mask = self.np_random.random(3) < 0.5
        mask[self.steps % 3] = True
        return {"action_mask": mask}


def vector_of(mode, make=WanderEnv):
    if mode == "serial":
        return SerialVectorEnv([make] * NUM_ROWS, check=False)
    # Gymnasium's SAME_STEP hands out an environment's own array as the last observation: ours are used again.
    makes = [(lambda: CopiedObs(make())) if mode == "same_step" else make] * NUM_ROWS
    return as_env(SyncVectorEnv(makes, autoreset_mode=AutoresetMode[mode.upper()]))


class CopiedObs(gym.ObservationWrapper):
    def observation(self, observation):
        return {name: np.array(part) for name, part in observation.items()}


def lively(env, seed=0, **agent):
    """Return a net whose heads say something different everywhere."""
    policy = make_policy(env, AgentConfig(**{"hidden_size": 8, "memory_size": 5, **agent}), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return policy


def plain_loop(policy, make, num_steps, phantoms=False, context=None):
    """The definition of a rollout: environments as they are, one step at a time, nothing carried in buffers."""
    envs = [make() for _ in range(NUM_ROWS)]
    pairs = [env.reset(seed=seed) for env, seed in zip(envs, row_seeds(SEED, NUM_ROWS), strict=True)]
    starts, resetting = [True] * NUM_ROWS, [False] * NUM_ROWS
    state = policy.initial_state(NUM_ROWS)
    conditions = {} if context is None else {"context": context[None]}
    torch.manual_seed(ACTION_SEED)
    steps = []
    for _ in range(num_steps):
        obs = batch([seen for seen, _ in pairs])
        now = {"obs": tree_map(lambda leaf: leaf[0], obs), "state": state, "episode_starts": torch.tensor(starts)}
        given = dict(conditions)
        if "action_mask" in pairs[0][1]:
            masks = torch.as_tensor(np.stack([info["action_mask"] for _, info in pairs]))
            given["action_masks"], now["action_masks"] = masks[None], masks
        output = policy(obs, state, torch.tensor([starts]), **given)
        actions, state = output.distribution.sample(), output.state
        now |= {"actions": actions[0], "logprobs": output.distribution.log_prob(actions)[0], "values": output.values[0]}
        outward = policy.to_env(actions[0]).numpy()
        results = [(None, 0.0, False, False) if resetting[row] else envs[row].step(outward[row]) for row in range(3)]
        pairs = [
            envs[row].reset() if resetting[row] else (copied(result[0]), result[4])
            for row, result in enumerate(results)
        ]
        not_started = torch.zeros(1, NUM_ROWS, dtype=torch.bool)
        now["next_values"] = policy(batch([seen for seen, _ in pairs]), state, not_started, **conditions).values[0]
        now["rewards"] = torch.tensor([result[1] for result in results])
        now["terminated"] = torch.tensor([result[2] for result in results])
        now["truncated"] = torch.tensor([result[3] for result in results])
        now["valid"] = ~torch.tensor(resetting)
        starts, resetting = resetting, [result[2] or result[3] for result in results]
        if not phantoms:
            pairs = [envs[row].reset() if resetting[row] else pairs[row] for row in range(NUM_ROWS)]
            starts, resetting = resetting, [False] * NUM_ROWS
        steps.append(now)
    return steps


def copied(obs):
    return {name: np.array(part) for name, part in obs.items()}


def batch(observations):
    return tree_map(
        torch.as_tensor, tree_stack(lambda leaves: np.stack(leaves)[None], [copied(o) for o in observations])
    )


def assert_equals_loop(rollout, steps, first=0):
    """Compare every column; the next value of a terminated or phantom step is never used."""
    for t, step in enumerate(steps[first : first + rollout.num_steps]):
        for name in ("obs", "actions", "action_masks", *COLUMNS):
            found, expected = getattr(rollout, name), step.get(name)
            if name == "next_values":
                found = torch.where(rollout.valid & ~rollout.terminated, found, 0.0)
                expected = torch.where(step["valid"] & ~step["terminated"], expected, 0.0)
            for ours, theirs in zip(tree_leaves(found), tree_leaves(expected), strict=True):
                close = torch.isclose(ours[t].double(), theirs.double(), atol=1e-5)
                assert close.all(), f"{name} of step {t}: {ours[t]} instead of {theirs}"
        if t % rollout.sequence_length == 0:
            stored = tree_leaves(rollout.states)
            for ours, theirs in zip(stored, tree_leaves(step["state"]), strict=True):
                assert torch.allclose(ours[t // rollout.sequence_length], theirs, atol=1e-5)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("mode", MODES)
@torch.no_grad()
def test_equals_a_plain_step_loop(mode, memory):
    """JB1, JB2, JB3, EB3, MB5, LB6, LB9, MB2, M5: three rollouts in a row are what a literal loop gives.

    Observations, memory entering each sequence, sampled actions, flags, rewards, and the values of the states that
    actions truly led to, cut or not, with the memory the row had there. Longer than it takes to record the policy.
    """
    env = vector_of(mode)
    policy = lively(env, memory=memory, memory_layers=2)
    collector = RolloutCollector(env, policy, bptt_length=6, seed=ACTION_SEED, env_seed=SEED)
    steps = plain_loop(policy, WanderEnv, 75, phantoms=mode == "next_step")
    for first in (0, 25, 50):
        assert_equals_loop(collector.rollout(25), steps, first)
    env.close()
    ended = sum(int((step["terminated"] | step["truncated"]).sum()) for step in steps)
    assert ended > 30
    assert any(bool(step["truncated"].any()) for step in steps)
    assert any(bool(step["terminated"].any()) for step in steps)
    assert any(not step["valid"].all() for step in steps) is (mode == "next_step")


@pytest.mark.parametrize("mode", MODES)
@torch.no_grad()
def test_masks_are_what_the_environment_said(mode):
    """Masks belong to the observation they came with; the ignored action of a phantom step may be any."""

    def make():
        return WanderEnv(masks=True)

    env = vector_of(mode, make)
    policy = lively(env)
    rollout = RolloutCollector(env, policy, num_steps=60, seed=ACTION_SEED, env_seed=SEED).rollout()
    env.close()
    assert not rollout.action_masks.all()
    allowed = rollout.action_masks.gather(-1, rollout.actions[..., None])[..., 0]
    assert allowed[rollout.valid].all()
    if mode == "serial":
        assert_equals_loop(rollout, plain_loop(policy, make, 60))


@pytest.mark.parametrize("memory", MEMORIES)
@torch.no_grad()
def test_context_is_seen_and_kept(memory):
    """JB6: what conditioned the policy is in the data, held once; it conditions the values of next states too."""
    env = vector_of("serial")
    policy = lively(env, memory=memory, context_size=2)
    context = torch.randn(NUM_ROWS, 2, generator=torch.Generator().manual_seed(0))
    collector = RolloutCollector(env, policy, num_steps=30, seed=ACTION_SEED, env_seed=SEED)
    rollout = collector.rollout(context={"context": context})
    env.close()
    assert_equals_loop(rollout, plain_loop(policy, WanderEnv, 30, context=context))
    assert torch.equal(rollout.context["context"], context.expand(30, NUM_ROWS, 2))
    assert rollout.context["context"].untyped_storage().nbytes() == context.untyped_storage().nbytes()


def test_one_context_for_all_rows():
    env = vector_of("serial")
    collector = RolloutCollector(env, lively(env, context_size=2), num_steps=3)
    rollout = collector.rollout(context={"context": torch.tensor([[1.0, 2.0]])})
    assert torch.equal(rollout.context["context"], torch.tensor([1.0, 2.0]).expand(3, NUM_ROWS, 2))
    with pytest.raises(RolloutError, match=f"shape \\(2, 2\\).*must be {NUM_ROWS}"):
        collector.rollout(context={"context": torch.zeros(2, 2)})
    env.close()


@torch.no_grad()
def test_continuous_actions_are_kept_as_sampled():
    """EB6, LB2: the data hold the sample whose probability is stored; only the environment gets the clipped one."""
    taken = []

    class Watched(WanderEnv):
        def step(self, action):
            taken.append(np.array(action))
            return super().step(action)

    env = SerialVectorEnv([lambda: Watched(continuous=True)] * NUM_ROWS, check=False)
    policy = lively(env)
    collector = RolloutCollector(env, policy, num_steps=20, seed=ACTION_SEED, env_seed=SEED)
    rollout = collector.rollout()
    env.close()
    assert_equals_loop(rollout, plain_loop(policy, lambda: WanderEnv(continuous=True), 20))
    assert rollout.actions.abs().max() > 0.4
    assert np.array_equal(np.stack(taken).reshape(20, NUM_ROWS, 3), rollout.actions.clamp(-0.4, 0.4).numpy())


class StepAsValue(nn.Module):
    """Says that a state is worth ten times what it shows first, and favours the first action 3 to 1."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([0.75, 0.25]).log())

    def forward(self, obs):
        return self.logits.expand(obs.shape[0], -1), 10 * obs[:, 0]


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_literal_values_of_next_states(counting_env, ending):
    """JB1, JB2, JB3, EB3, MB5, LB6: the state behind the last step, and the one a time limit cut, worked by hand."""
    env = make_env(lambda: counting_env(length=3, ending=ending), num_envs=1)
    rollout = RolloutCollector(env, StepAsValue(), num_steps=5).rollout()
    env.close()
    assert rollout.obs[:, 0, 0].tolist() == [0, 1, 2, 0, 1]
    assert rollout.values[:, 0].tolist() == [0, 10, 20, 0, 10]
    assert rollout.episode_starts[:, 0].tolist() == [True, False, False, True, False]
    assert getattr(rollout, ending)[:, 0].tolist() == [False, False, True, False, False]
    if ending == "truncated":
        assert rollout.next_values[:, 0].tolist() == [10, 20, 30, 10, 20]
    rollout.rewards.fill_(1.0)
    rollout.compute_gae(gamma=0.5, gae_lambda=0.0)
    cut_or_over = 1 + 0.5 * 30 - 20 if ending == "truncated" else 1 - 20
    assert rollout.advantages[:, 0].tolist() == [6, 1, cut_or_over, 6, 1]


def test_actions_are_sampled(counting_env):
    """LB1: not the likeliest action every time, but each as often as the policy says."""
    env = make_env(counting_env, num_envs=50)
    rollout = RolloutCollector(env, StepAsValue(), num_steps=40, seed=0).rollout()
    env.close()
    assert float(rollout.actions.float().mean()) == pytest.approx(0.25, abs=0.04)
    expected = torch.tensor([0.75, 0.25]).log()[rollout.actions]
    assert torch.allclose(rollout.logprobs, expected)
    assert torch.equal(rollout.rewards, 0.5 + rollout.actions.float())


def test_time_comes_first(counting_env):
    """MB1: `[T, B]`, whatever the numbers of both."""
    for rows in (1, 4):
        env = make_env(lambda: counting_env(length=100), num_envs=rows)
        rollout = RolloutCollector(env, StepAsValue(), num_steps=6).rollout()
        env.close()
        assert torch.equal(rollout.obs[..., 0], torch.arange(6.0)[:, None].expand(6, rows))


@pytest.mark.parametrize("memory", MEMORIES)
def test_two_rollouts_are_one_that_was_cut(memory):
    """LB9: observation, memory, running episodes and random numbers carry over."""

    def collected(*lengths):
        env = vector_of("serial")
        collector = RolloutCollector(env, lively(env, memory=memory), bptt_length=5, seed=1, env_seed=2)
        rollouts = [collector.rollout(length) for length in lengths]
        env.close()
        return rollouts

    (whole,), halves = collected(40), collected(20, 20)
    for name in ("obs", "actions", "states", *COLUMNS):
        pieces = tree_stack(torch.cat, [getattr(half, name) for half in halves])
        for ours, theirs in zip(tree_leaves(pieces), tree_leaves(getattr(whole, name)), strict=True):
            assert torch.allclose(ours.double(), theirs.double(), atol=1e-6), name
    offsets = [(episode, 20 * n) for n, half in enumerate(halves) for episode in half.episodes]
    assert [(e.row, e.step + at, e.length) for e, at in offsets] == [(e.row, e.step, e.length) for e in whole.episodes]
    assert [e.ret for e, _ in offsets] == pytest.approx([e.ret for e in whole.episodes])


def test_the_same_seeds_give_the_same_rollout_and_leave_others_alone():
    """Nothing else that draws random numbers notices."""

    def collected(seed):
        env = vector_of("serial")
        collector = RolloutCollector(env, lively(env), num_steps=30, seed=seed, env_seed=2)
        torch.manual_seed(4)
        rollout = collector.rollout()
        env.close()
        return rollout, torch.rand(3)

    (first, drawn), (second, _), (third, _) = collected(0), collected(0), collected(1)
    torch.manual_seed(4)
    assert torch.equal(torch.rand(3), drawn)
    assert torch.equal(first.actions, second.actions)
    assert torch.equal(first.rewards, second.rewards)
    assert not torch.equal(first.actions, third.actions)


def test_reset_starts_every_row_anew(counting_env):
    env = make_env(lambda: counting_env(length=9), num_envs=2)
    collector = RolloutCollector(env, StepAsValue(), num_steps=4)
    collector.rollout()
    collector.reset()
    rollout = collector.rollout(12)
    env.close()
    assert rollout.obs[0, :, 0].tolist() == [0, 0]
    assert rollout.episode_starts[0].all()
    assert [episode.length for episode in rollout.episodes] == [9, 9]


def test_memory_can_be_handed_over():
    """E11: memory goes in and comes out; what comes out is a copy."""
    env = vector_of("serial")
    collector = RolloutCollector(env, lively(env, memory="lstm"), num_steps=5)
    given = tree_map(lambda leaf: torch.randn(leaf.shape), collector.policy.initial_state(NUM_ROWS))
    collector.set_memory(given)
    rollout = collector.rollout()
    for stored, leaf in zip(tree_leaves(rollout.states), tree_leaves(given), strict=True):
        assert torch.equal(stored[0], leaf)
    after = collector.memory()
    for leaf in tree_leaves(after):
        leaf.zero_()
    assert all(leaf.any() for leaf in tree_leaves(collector.memory()))
    env.close()


def experience_for(env, policy, num_steps, step, **kwargs):
    obs = tree_map(torch.as_tensor, step.obs)
    actions = torch.zeros(env.num_rows, dtype=torch.int64)
    return RolloutBuffer.create(num_steps, env.num_rows, obs, actions, **kwargs)


@pytest.mark.parametrize("mode", ["serial", "next_step"])
def test_experience_is_filled_again_in_place(mode):
    """M5: the same memory every time, and numbers that tell what happened."""
    env = vector_of(mode)
    policy = lively(env, memory="gru")
    state = policy.initial_state(NUM_ROWS)
    experience = experience_for(env, policy, 12, env.reset(), state=state, sequence_length=4)
    collector = RolloutCollector(env, policy, experience, "cpu", seed=ACTION_SEED, env_seed=SEED)
    places = {name: getattr(experience, name).data_ptr() for name in COLUMNS}
    with torch.no_grad():
        steps = plain_loop(policy, WanderEnv, 36, phantoms=mode == "next_step")
    for first in (0, 12, 24):
        stats, num_steps = collector.collect()
        assert_equals_loop(experience, steps, first)
        assert num_steps == int(experience.valid.sum())
        assert stats["episodes"] == len(experience.episodes) > 0
        assert stats["mean_length"] == pytest.approx(np.mean([e.length for e in experience.episodes]))
        assert stats["mean_reward"] == pytest.approx(np.mean([e.ret for e in experience.episodes]))
        assert experience.advantages is None
        assert experience.policy_version == policy.version
        experience.compute_gae()
    env.close()
    assert places == {name: getattr(experience, name).data_ptr() for name in COLUMNS}


def test_phantom_steps_do_not_count():
    """NEXT_STEP: the step that only resets is invalid, worth nothing, and adds to no episode's length."""
    env = vector_of("next_step")
    rollout = RolloutCollector(env, lively(env), num_steps=50, env_seed=SEED).rollout()
    env.close()
    ended = rollout.terminated | rollout.truncated
    assert torch.equal(~rollout.valid[1:], ended[:-1])
    assert (rollout.rewards[~rollout.valid] == 0).all()
    assert torch.equal(rollout.episode_starts[1:], ~rollout.valid[:-1])
    lengths = sum(episode.length for episode in rollout.episodes)
    running = sum(int(rollout.valid[:, row].sum()) for row in range(NUM_ROWS)) - lengths
    assert 0 <= running < NUM_ROWS * 8
    assert len(rollout.episodes) == int(ended.sum())


def test_experience_of_another_shape_is_refused():
    """What would otherwise be lost in silence (masks), or fail somewhere inside."""
    env = vector_of("serial", lambda: WanderEnv(masks=True))
    policy, step = lively(env), env.reset()
    with pytest.raises(RolloutError, match="action_masks"):
        RolloutCollector(env, policy, experience_for(env, policy, 4, step)).collect()
    memory = lively(env, memory="gru")
    masks = torch.ones(NUM_ROWS, 3, dtype=torch.bool)
    with pytest.raises(RolloutError, match="state"):
        RolloutCollector(env, memory, experience_for(env, memory, 4, step, action_masks=masks)).collect()
    env.close()


def test_no_number_of_steps_is_refused(counting_env):
    env = make_env(counting_env, num_envs=1)
    with pytest.raises(RolloutError, match="num_steps=None"):
        RolloutCollector(env, StepAsValue()).rollout()
    with pytest.raises(RolloutError, match="num_steps=0"):
        RolloutCollector(env, StepAsValue(), num_steps=5).rollout(0)
    env.close()


class FaultyEnv(gym.Env):
    """Gives one number that is not finite, once."""

    observation_space = gym.spaces.Dict(
        {"a": gym.spaces.Box(-9, 9, (2,), np.float32), "b": gym.spaces.Box(-9, 9, (2,), np.float32)}
    )
    action_space = gym.spaces.Discrete(2)

    def __init__(self, what, number, at):
        self.what, self.number, self.at = what, number, at

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self._obs(), {}

    def step(self, action):
        self.steps += 1
        fault = self.what == "rewards" and self.steps == self.at + 1
        return self._obs(), self.number if fault else 1.0, False, False, {}

    def _obs(self):
        obs = {"a": np.zeros(2, dtype=np.float32), "b": np.zeros(2, dtype=np.float32)}
        if self.what == "obs" and self.steps == self.at:
            obs["b"][1] = self.number
        return obs


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("what", "message"),
    [("rewards", "rewards is {} at step 5 .*row 2"), ("obs", "obs/b\\[1\\] is {} at step 5 .*row 2 .env 2, seed")],
)
def test_numbers_that_are_not_finite_are_found(what, number, message):
    """Which, in which step and row; nothing was learned from them."""
    faults = [("none", 0.0), ("none", 0.0), (what, number)]
    env = SerialVectorEnv([FaultyEnv(*pair, at=5) for pair in faults], check=False)
    collector = RolloutCollector(env, lively(env), num_steps=10)
    with pytest.raises(NumericsError, match=message.format(number)):
        collector.rollout()
    env.close()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_middle_is_followed_by_new_episodes(counting_env, error):
    """Steps that no rollout holds must not be missing inside an episode."""
    env = SerialVectorEnv([counting_env] * 2, check=False)
    collector = RolloutCollector(env, StepAsValue(), num_steps=7)
    collector.rollout()

    def fail(single):
        if single.num_steps == 3:
            raise error

    env.envs[1].on_step = fail
    with pytest.raises(error):
        collector.rollout()
    env.envs[1].on_step = None
    rollout = collector.rollout()
    env.close()
    assert rollout.obs[:, :, 0].T.tolist() == [[0, 1, 2, 3, 4, 0, 1]] * 2
    assert [(episode.length, episode.step) for episode in rollout.episodes] == [(5, 4)] * 2


class CountingSimulator:
    """The counting environment as a simulator of tensors, which writes every observation into the same memory."""

    num_envs = 2
    single_observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
    single_action_space = gym.spaces.Discrete(2)

    def reset(self):
        self.memory = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
        return self.memory, {}

    def step(self, actions):
        self.memory[:, 0] += 1
        over = self.memory[:, 0] >= 5
        final = self.memory.clone()
        self.memory[over] = torch.stack((torch.zeros(2), self.memory[:, 1] + 1), 1)[over]
        return self.memory, 0.5 + actions.float(), torch.zeros_like(over), over, {"final_obs": final}


@pytest.mark.parametrize("memory", MEMORIES)
def test_tensors_and_arrays_are_collected_alike(counting_env, memory):
    """A simulator of tensors gives the rollout that the same environments give as arrays."""
    arrays = SerialVectorEnv([lambda: counting_env(length=5, ending="truncated")] * 2, check=False)
    tensors = TensorEnv(CountingSimulator())
    rollouts = []
    for env in (arrays, tensors):
        collector = RolloutCollector(env, lively(env, memory=memory), num_steps=60, seed=3)
        rollouts.append(collector.rollout())
        env.close()
    for name in ("obs", "actions", "states", *COLUMNS):
        pairs = zip(*(tree_leaves(getattr(rollout, name)) for rollout in rollouts), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in pairs), name
    assert [e.ret for e in rollouts[0].episodes] == pytest.approx([e.ret for e in rollouts[1].episodes])
    assert len(rollouts[0].episodes) == 24
