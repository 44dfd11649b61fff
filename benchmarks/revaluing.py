"""How well old experience is valued anew where the state behind it was not stored.

Rollouts are collected twice as long as what is learned from, so that the state behind the last step is known. After
some updates the critic's true value of it is compared with the value that was stored when acting, and with that value
moved as the state before it has moved.

    python benchmarks/revaluing.py
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from twostep import PPOConfig, PPOOptimizer, RolloutBuffer, RolloutCollector, make_env, make_policy
from twostep.columns import TREES
from twostep.learn.revaluing import judged, revalued
from twostep.tree import tree_map

AGES = (1, 5, 20)
ROWS = 8


@dataclass(frozen=True)
class Errors:
    """Roots of mean squares over the rows whose episodes went on: how far from the critic's own value."""

    env_id: str
    age: int
    stored: float
    """The value as it was when acting."""
    moved: float
    """As `revalued` has it."""


def measure(
    env_id: str, *, steps: int = 64, ages: tuple[int, ...] = AGES, seed: int = 0, lr: float = 3e-4
) -> list[Errors]:
    """Train for as many updates as the oldest age, and value rollouts of each age anew."""
    env = make_env(env_id, num_envs=ROWS, seed=seed)
    policy = make_policy(env, seed=seed)
    collector = RolloutCollector(env, policy, seed=seed, env_seed=seed)
    learner = PPOOptimizer(policy, config=PPOConfig(lr=lr), seed=seed)
    rollouts: list[RolloutBuffer] = []
    for _ in range(max(ages)):
        rollouts.append(collector.rollout(2 * steps))
        learner.update(first_steps(rollouts[-1], steps))
    env.close()
    found: list[Errors] = []
    for age in ages:
        whole = rollouts[-age]
        half = first_steps(whole, steps)
        values = judged(policy, whole).values
        goes_on = ~(half.terminated | half.truncated)[-1]
        moved = revalued(half, values[:steps]).next_values[-1]
        errors = (_error(guess, values[steps], goes_on) for guess in (half.next_values[-1], moved))
        found.append(Errors(env_id, age, *errors))
    return found


def first_steps(rollout: RolloutBuffer, steps: int) -> RolloutBuffer:
    """Return the first steps of a rollout without memory."""
    columns = {name: tree_map(lambda leaf: leaf[:steps], getattr(rollout, name)) for name in TREES}
    return replace(rollout, **columns, episodes=[])


def _error(guess: Tensor, truth: Tensor, counted: Tensor) -> float:
    return float((guess - truth)[counted].square().mean().sqrt())


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("env             updates ago   value as stored   value moved")
    for name in ("CartPole-v1", "Acrobot-v1", "Pendulum-v1"):
        for one in measure(name):
            print(f"{one.env_id:15} {one.age:11}   {one.stored:15.3f}   {one.moved:11.3f}")
