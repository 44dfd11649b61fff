"""Machine code takes over from torch at a counted call, gives the same numbers, and a saved run goes on alike."""

from __future__ import annotations

import math
import os
from copy import deepcopy

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from twostep import (
    ActorCritic,
    AgentConfig,
    PPOConfig,
    PPOOptimizer,
    PPOTrainer,
    RecordableLoss,
    RolloutBuffer,
    make_env,
    make_policy,
)
from twostep.compiled import Compiled


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Start the compiler at the first call, and act in machine code after few."""
    monkeypatch.setattr("twostep.compiled.FIRST_CALLS", 1)
    monkeypatch.setattr("twostep.collect.acting.COMPILED_AFTER", 300)


def weights(learner):
    return torch.cat([parameter.detach().reshape(-1) for parameter in learner.parameters])


def learn(rollout, policy, updates, **settings):
    learner = PPOOptimizer(deepcopy(policy), config=PPOConfig(update_epochs=2, num_minibatches=2, **settings))
    for _ in range(updates):
        metrics = learner.update(rollout)
    return learner, metrics


def gone_over(function):
    assert list(function.state_dict().values()).count(-1) >= function.num_compiled
    return function.num_compiled


@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
def test_machine_code_learns_the_same_and_goes_on_the_same(collected, memory):
    """The weights agree up to rounding, and a run that was saved while compiled goes on to the last bit."""
    rollout, policy = collected(memory=memory)
    called, _ = learn(rollout, policy, 4, compile_after=0)
    compiled, _ = learn(rollout, policy, 3, compile_after=1200)
    resumed = PPOOptimizer(deepcopy(compiled.policy), config=compiled.config)
    resumed.load_state_dict(deepcopy(compiled.state_dict()))
    metrics = compiled.update(rollout)
    assert gone_over(compiled._compiled) == 1
    assert metrics["grad_norm"] > 0
    assert torch.allclose(weights(called), weights(compiled), atol=1e-4)
    assert not torch.equal(weights(called), weights(compiled)), "nothing was compiled"
    resumed.update(rollout)
    assert torch.equal(weights(resumed), weights(compiled))


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_a_run_that_is_cut_around_the_change_goes_on_to_the_last_bit(memory, cut):
    """Before the compiler is started, while it works, and after the change: acting and learning alike."""

    def trainer():
        env = make_env("CartPole-v1", num_envs=2, seed=3)
        policy = make_policy(env, AgentConfig(memory=memory, hidden_size=16, memory_size=16), seed=3)
        config = PPOConfig(rollout_steps=4, update_epochs=2, num_minibatches=1, compile_after=1000)
        return PPOTrainer(policy, env, config, device="cpu", seed=3)

    whole, first, second = trainer(), trainer(), trainer()

    def go_on(one, updates):
        for _ in range(updates):
            one.learn(one.collect_rollouts(4))

    go_on(whole, 5)
    go_on(first, cut)
    second.load_state_dict(deepcopy(first.state_dict()))
    go_on(second, 5 - cut)
    assert torch.equal(weights(whole.learner), weights(second.learner))
    assert gone_over(whole.learner._compiled) == gone_over(second.learner._compiled) == 1


def test_the_ratio_stays_1_in_machine_code():
    """What acts in machine code and what learns from it agree on every probability."""
    env = make_env("CartPole-v1", num_envs=4, seed=0)
    trainer = PPOTrainer(make_policy(env, seed=0), env, PPOConfig(rollout_steps=16, compile_after=600), device="cpu")
    for _ in range(6):
        rollout = trainer.collect_rollouts(16)
        first = PPOOptimizer(deepcopy(trainer.policy), config=PPOConfig(update_epochs=1, num_minibatches=1))
        assert first.update(RolloutBuffer.from_dict(rollout))["ratio_error"] < 2e-6
        trainer.learn(rollout)
    assert gone_over(trainer.learner._compiled) == 1
    (collector,) = trainer._collectors.values()
    assert gone_over(collector.actor._compiled) == 1


PAIR = spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)])
POLICIES = {
    "discrete": (spaces.Discrete(3), {}),
    "several": (spaces.MultiDiscrete([2, 3]), {}),
    "switches": (spaces.MultiBinary(3), {}),
    "gaussian": (spaces.Box(-1, 1, (2,), np.float32), {}),
    "state": (spaces.Box(-1, 1, (2,), np.float32), {"std": "state"}),
    "squashed": (spaces.Box(-2, 1, (2,), np.float32), {"action_dist": "squashed"}),
    "beta": (spaces.Box(-1, 1, (2,), np.float32), {"action_dist": "beta"}),
    "mixed": (PAIR, {"memory": "gru", "memory_size": 8}),
    "relu": (PAIR, {"activation": "relu"}),
    "elu": (PAIR, {"activation": "elu", "memory": "lstm", "memory_size": 8}),
    "silu": (PAIR, {"activation": "silu"}),
    "gelu": (PAIR, {"activation": "gelu", "shared": True}),
}


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_of_vectors_learns_in_machine_code(name, machine_code_at_once):
    """Nothing is left to torch, and what comes out is the same up to rounding."""
    action_space, agent = POLICIES[name]
    observation_space = spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float32), "b": spaces.Discrete(4)})
    config = AgentConfig(**({"hidden_size": 8} | agent))
    ends = []
    for after in (0, 1):
        torch.manual_seed(0)
        policy = ActorCritic(observation_space, action_space, config)
        env = make_env(lambda: Noise(observation_space, action_space), 3, seed=0)
        trainer = PPOTrainer(
            policy, env, PPOConfig(rollout_steps=8, num_minibatches=1, lr=1e-3, compile_after=after, bptt_length=4),
            device="cpu", seed=0,
        )  # fmt: skip
        if not after:
            rollout = trainer.collect_rollouts(8)
        trainer.learner.update(RolloutBuffer.from_dict(rollout))
        assert trainer.learner._compiled.num_compiled == after
        ends.append(weights(trainer.learner))
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-4)


class Noise(gym.Env):
    """Shows random observations for a while."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), float(self.steps), self.steps > 5, False, {}


def test_a_policy_of_another_type_is_not_taken_for_what_it_was(collected, machine_code_at_once):
    """The same parameters in double precision are not read as single precision; back in it they are compiled anew."""
    rollout, policy = collected()
    rollout.policy_version = None
    learner = PPOOptimizer(policy, config=PPOConfig(update_epochs=1, num_minibatches=1))
    learner.update(rollout)
    assert learner._compiled.num_compiled == 1
    policy.double()
    with pytest.raises(RuntimeError, match="dtype"):
        learner.update(rollout)
    assert learner._compiled.num_compiled == 0
    policy.float()
    learner.update(rollout)
    assert learner._compiled.num_compiled == 1


def test_short_runs_never_compile(collected, monkeypatch):
    monkeypatch.setattr("twostep.collect.acting.COMPILED_AFTER", math.inf)
    monkeypatch.setattr("twostep.compiled.machine_code", lambda *_: pytest.fail("compiled"))
    rollout, policy = collected()
    learner, _ = learn(rollout, policy, 10)
    assert gone_over(learner._compiled) == 0
    learner, _ = learn(rollout, policy, 30, compile_after=0)
    assert gone_over(learner._compiled) == 0


@pytest.mark.parametrize("code", [None, lambda *inputs: [torch.zeros(3)]])
def test_without_a_compiler_or_with_a_wrong_one_the_function_goes_on_being_called(monkeypatch, code):
    """What does not compile, or gives other numbers, is not used."""
    monkeypatch.setattr("twostep.compiled.machine_code", lambda *_: code)
    module = torch.nn.Linear(3, 1)
    function = Compiled(module, lambda tree: (tree[0] * 2,), after=9)
    for number in range(1, 12):
        (result,) = function((torch.full((3,), float(number)),))
        assert torch.equal(result, torch.full((3,), 2.0 * number))


def test_random_numbers_are_those_of_the_function():
    """The same draws from the same generator, in machine code as before it."""
    module = torch.nn.Linear(3, 1)

    def draws(after):
        generator = torch.Generator().manual_seed(5)

        def fn(tree):
            return (torch.empty(3).uniform_(generator=generator) + tree[0],)

        function = Compiled(module, fn, generator, after=after)
        return torch.stack([function((torch.zeros(3),))[0] for _ in range(12)])

    assert torch.equal(draws(after=12), draws(after=float("inf")))


def test_shapes_that_were_left_out_stay_left_out():
    """Which shapes are compiled is decided once, also for a run that goes on."""
    module = torch.nn.Linear(3, 1)
    function = Compiled(module, lambda tree: (tree[0] * 2 + 1,), after=1)
    for size in range(1, 9):
        function((torch.ones(size),))
    assert function.num_compiled == 6
    resumed = Compiled(module, lambda tree: (tree[0] * 2 + 1,), after=1)
    resumed.load_state_dict(function.state_dict())
    for size in (8, 7, 1):
        for _ in range(3):
            resumed((torch.ones(size),))
    assert resumed.num_compiled == 1


def test_another_default_type_changes_nothing(monkeypatch):
    """Machine code takes and gives single precision, whatever the process prefers."""
    module, generator = torch.nn.Linear(3, 1), torch.Generator().manual_seed(0)

    def fn(tree):
        return (tree[0] + torch.empty(3, dtype=torch.float32).normal_(generator=generator), tree[0].sum())

    function = Compiled(module, fn, generator, after=1)
    function((torch.zeros(3),))
    torch.set_default_dtype(torch.float64)
    try:
        drawn = torch.stack([function((torch.zeros(3, dtype=torch.float32),))[0] for _ in range(200)])
    finally:
        torch.set_default_dtype(torch.float32)
    assert drawn.dtype == torch.float32
    assert 0.8 < drawn.std() < 1.2


def test_a_forked_process_compiles_too():
    """What the parent's threads were doing is not waited for."""
    module = torch.nn.Linear(3, 1)
    Compiled(module, lambda tree: (tree[0] * 2,), after=1)((torch.ones(3),))
    child = os.fork()
    if not child:
        function = Compiled(module, lambda tree: (tree[0] * 3,), after=1)
        os._exit(0 if function((torch.ones(3),))[0][0] == 3 and function.num_compiled == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_same_settings_again_change_nothing(collected):
    """A run that is told its settings before each piece of training is one run."""
    rollout, policy = collected()
    learner, _ = learn(rollout, policy, 2, compile_after=10_000)
    before = learner._compiled.state_dict()
    assert before
    learner.reconfigure(PPOConfig(**vars(learner.config)))
    assert learner._compiled.state_dict() == before


def test_losses_of_ones_own_go_on_where_they_were(collected, machine_code_at_once):
    """A state that was loaded is kept when the first minibatch brings its losses."""
    rollout, policy = collected()
    rollout.policy_version = None
    loss = RecordableLoss(lambda policy, obs, actions, rewards, values, advantages: values.square().mean())
    learner = PPOOptimizer(deepcopy(policy), config=PPOConfig(update_epochs=1, num_minibatches=1))
    learner.update(rollout, [loss])
    resumed = PPOOptimizer(deepcopy(learner.policy), config=learner.config)
    resumed.load_state_dict(deepcopy(learner.state_dict()))
    learner.update(rollout, [loss])
    resumed.update(rollout, [loss])
    assert resumed._compiled.num_compiled == learner._compiled.num_compiled == 1
    assert torch.equal(weights(resumed), weights(learner))
