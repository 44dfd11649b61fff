"""Numbers that are not finite, put at random places: found in the same update, named, and kept from the weights."""

from __future__ import annotations

import logging
import random
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from twostep import AgentConfig, NumericsError, PPOTrainer, make_policy
from twostep.vector.serial import SerialVectorEnv

NUM_ENVS, STEPS, UPDATES = 3, 10, 3
PLACES = ("observation", "reward", "loss", "gradient")
NUMBERS = (np.nan, np.inf, -np.inf)


class Fine(gym.Env):
    """Gives finite numbers, but for the one that was put somewhere."""

    observation_space = gym.spaces.Dict({"lidar": gym.spaces.Box(-9, 9, (3,)), "speed": gym.spaces.Box(-9, 9, (2,))})

    def __init__(self, box: bool) -> None:
        self.action_space = gym.spaces.Box(-1, 1, (2,)) if box else gym.spaces.Discrete(3)
        self.total = self.steps = 0
        self.poison: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def observe(self) -> dict[str, np.ndarray]:
        return {name: self.np_random.normal(size=space.shape) for name, space in self.observation_space.spaces.items()}

    def step(self, action: Any) -> Any:
        assert np.isfinite(action).all(), "what is no number never reaches an environment unnoticed"
        obs, reward = self.observe(), 1.0
        self.steps += 1
        self.total += 1
        if self.poison is not None and self.total == self.poison[0]:
            _, key, index, number = self.poison
            if key == "reward":
                reward = number
            else:
                obs[key][index] = number
        return obs, reward, self.steps >= 7, False, {}


def trainer_of(seed: int, policy: str, memory: str) -> PPOTrainer:
    env = SerialVectorEnv([lambda: Fine(box=seed % 2 == 0)] * NUM_ENVS, seed=seed, check=False)
    net = make_policy(env, AgentConfig(hidden_size=8, memory=memory, memory_size=4), seed=seed)
    settings = {"rollout_steps": STEPS, "update_epochs": 2, "minibatch_size": 15, "device": "cpu", "bptt_length": 5}
    return PPOTrainer(net, env, seed=seed, on_nonfinite=policy, **settings)


def weights(trainer: PPOTrainer) -> list[torch.Tensor]:
    state = [value for one in trainer.optimizer.state.values() for value in one.values()]
    return [tensor.detach().clone() for tensor in (*trainer.policy.parameters(), *state)]


def injections(count: int, seed: int = 0) -> dict[str, Any]:
    """D18: so many numbers at random places; each found in its update, with its place, and none in a weight."""
    logger = logging.getLogger("twostep")
    level = logger.level
    logger.setLevel(logging.ERROR)  # what is left out is warned of each time
    generator, figures = random.Random(seed), dict.fromkeys(("stop", "skip", "reset", *PLACES), 0)
    try:
        for number in range(count):
            place, policy = PLACES[number % len(PLACES)], ("stop", "skip", "reset")[number // len(PLACES) % 3]
            _inject(generator, number, place, policy)
            figures[place] += 1
            figures[policy] += 1
    finally:
        logger.setLevel(level)
    return {"numbers": count, "found in their update": count, **figures}


def _inject(generator: random.Random, seed: int, place: str, policy: str) -> None:
    trainer = trainer_of(seed, policy, generator.choice(["none", "gru"]))
    update, env = generator.randrange(UPDATES), generator.randrange(NUM_ENVS)
    value = generator.choice(NUMBERS)
    learn = {"observation": _spoil_step, "reward": _spoil_step, "loss": _spoil_loss, "gradient": _spoil_gradient}[place]
    for number in range(UPDATES):
        before = weights(trainer)
        if number != update:
            trainer.learn(trainer.collect_rollouts(STEPS))
        else:
            learn(trainer, generator, env, place, value, policy, before)
        assert all(bool(tensor.isfinite().all()) for tensor in weights(trainer))
    data = trainer.collect_rollouts(STEPS)
    assert bool(data["values"].isfinite().all()), "nothing is left of it, in memory either"
    assert all(np.isfinite(trainer.episode_rewards))
    trainer.env.close()


def _spoil_step(
    trainer: PPOTrainer, generator: random.Random, env: int, place: str, value: float, policy: str, before: Any
) -> None:
    single = trainer.env.envs[env]
    key = "reward" if place == "reward" else generator.choice(["lidar", "speed"])
    # Of observations those that are acted from: what ends an episode is shown to nobody, the last one begins the next.
    usable = [at for at in range(STEPS) if key == "reward" or (at < STEPS - 1 and (single.steps + at + 1) % 7)]
    step, index = generator.choice(usable), generator.randrange(2)
    single.poison = (single.total + step + 1, key, index, value)
    named = rf"rewards is .* at step {step}" if key == "reward" else rf"obs/{key}\[{index}\] is .* at step {step + 1}"
    words = rf"{named} of the rollout, row {env} \(env {env}, seed \d+, episode \d+\)"
    if policy == "stop":
        with pytest.raises(NumericsError, match=words):
            trainer.learn(trainer.collect_rollouts(STEPS))
        assert all(map(torch.equal, weights(trainer), before))
        return
    data = trainer.collect_rollouts(STEPS)
    valid = data["valid"].reshape(STEPS, NUM_ENVS)
    left_out = [0 if row == env else STEPS for row in range(NUM_ENVS)]
    # An action that is no number is refused by this environment: then the whole rollout was begun anew.
    assert valid.sum(0).tolist() == left_out or (bool(valid.all()) and key != "reward")
    metrics = trainer.learn(data)
    assert np.isfinite(metrics["loss"])


def _spoil_loss(
    trainer: PPOTrainer, generator: random.Random, env: int, place: str, value: float, policy: str, before: Any
) -> None:
    at, calls = generator.randrange(4), []

    def poisonous(net: Any, obs: Any, actions: Any, rewards: Any, values: torch.Tensor, advantages: Any) -> Any:
        calls.append(values)
        return values.mean() * (value if len(calls) == at + 1 else 0.0)

    trainer.custom_losses = (poisonous,)
    _learn_from_poison(trainer, policy, at, before, "poisonous is")
    trainer.custom_losses = ()


def _spoil_gradient(
    trainer: PPOTrainer, generator: random.Random, env: int, place: str, value: float, policy: str, before: Any
) -> None:
    at, calls = generator.randrange(4), []

    class Spoils(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
            return values.sum() * 0.0

        @staticmethod
        def backward(context: Any, grad: torch.Tensor) -> torch.Tensor:
            return torch.full_like(calls[-1], value)

    def quiet(net: Any, obs: Any, actions: Any, rewards: Any, values: torch.Tensor, advantages: Any) -> Any:
        calls.append(values)
        return Spoils.apply(values) if len(calls) == at + 1 else values.mean() * 0.0

    trainer.custom_losses = (quiet,)
    _learn_from_poison(trainer, policy, at, before, "grad_norm is")
    trainer.custom_losses = ()


def _learn_from_poison(trainer: PPOTrainer, policy: str, at: int, before: list[torch.Tensor], words: str) -> None:
    data = trainer.collect_rollouts(STEPS)
    if policy != "stop":
        metrics = trainer.learn(data)
        assert metrics["skipped_minibatches"] == 1
        assert np.isfinite(metrics["loss"])
        return
    with pytest.raises(NumericsError, match=words) as caught:
        trainer.learn(data)
    assert f"in minibatch {at} of this update" in str(caught.value)
    assert re.search(r"first in the gradient of [\w.]+", str(caught.value))
    if at == 0:
        assert all(map(torch.equal, weights(trainer), before))
