"""How fast are environments in processes? twostep's VectorEnv beside Gymnasium's and stable-baselines3's.

All three step the same environments with the same actions, in turns within one run; a figure is the median of the
rounds, a ratio the median of the rounds' ratios, with the lowest and the highest in brackets. Steps per second count
every environment. The costly environment does a fixed amount of work, about a millisecond on an idle core.

    python benchmarks/vector_speed.py
    python benchmarks/vector_speed.py --rounds 3 --seconds 0.5 --envs 8
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import SubprocVecEnv

from twostep.vector import VectorEnv

TARGET = 1.5
"""Against the best of the others where overhead dominates; nowhere may it be below 1."""


class Costly(gym.Env):
    """Works for as many rounds of arithmetic as it is told to in every step."""

    observation_space = gym.spaces.Box(-1, 1, (16,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, rounds: int) -> None:
        self.rounds, self.t = rounds, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(16, dtype=np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Work; an episode has 200 steps."""
        work(self.rounds)
        self.t += 1
        return np.full(16, 0.5, dtype=np.float32), 1.0, False, self.t >= 200, {}


def work(rounds: int) -> float:
    """Do so much arithmetic."""
    total = 0.0
    for number in range(rounds):
        total += math.sqrt(number)
    return total


def rounds_of_a_millisecond() -> int:
    """Return how many rounds of `work` take a millisecond here, in the best of many tries."""
    best = min(_timed(lambda: work(10_000)) for _ in range(50))
    return round(10_000 * 1e-3 / best)


def _timed(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def ours(make: Callable[[], gym.Env], num_envs: int) -> Any:
    """Return twostep's, with a worker per core."""
    env = VectorEnv(num_envs, make, start_method="forkserver")
    env.reset(0)
    return env


def gymnasium_async(make: Callable[[], gym.Env], num_envs: int) -> Any:
    """Return Gymnasium's, with a process per environment, observations in shared memory and not copied."""
    env = gym.vector.AsyncVectorEnv([make] * num_envs, shared_memory=True, copy=False)
    env.reset(seed=0)
    return env


def sb3_subproc(make: Callable[[], gym.Env], num_envs: int) -> Any:
    """Return stable-baselines3's, with a process per environment, forked so that none loads PyTorch again."""
    env = SubprocVecEnv([make] * num_envs, start_method="fork")
    env.seed(0)
    env.reset()
    return env


CONTESTANTS = {"twostep": ours, "gymnasium": gymnasium_async, "stable-baselines3": sb3_subproc}


def rate(contestant: Any, num_envs: int, seconds: float) -> float:
    """Return environment steps per second over about so many seconds."""
    actions = np.arange(num_envs) % 2
    for _ in range(10):
        contestant.step(actions)
    began, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds:
        contestant.step(actions)
        count += 1
    return count * num_envs / elapsed


def measure(make: Callable[[], gym.Env], num_envs: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Return the rates of all contestants, round by round, each living for the time of its turn only."""
    rates: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for number in range(rounds):
        names = list(CONTESTANTS)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            contestant = CONTESTANTS[name](make, num_envs)
            rates[name].append(rate(contestant, num_envs, seconds))
            contestant.close()
    return rates


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--envs", type=int, nargs="+", default=[8, 64])
    arguments = parser.parse_args()
    per_millisecond = rounds_of_a_millisecond()
    kinds: dict[str, Callable[[], gym.Env]] = {
        "CartPole": lambda: gym.make("CartPole-v1"),
        "1 ms of work": lambda: Costly(per_millisecond),
    }
    print(f"{len(os.sched_getaffinity(0))} cores; load before: {os.getloadavg()[0]:.2f}; {arguments.rounds} rounds")
    print("| environment | number | twostep, steps/s | against Gymnasium's Async | against SB3's Subproc |")
    print("|---|---|---|---|---|")
    for kind, make in kinds.items():
        for num_envs in arguments.envs:
            rates = measure(make, num_envs, arguments.rounds, arguments.seconds)
            cells = []
            for other in list(CONTESTANTS)[1:]:
                ratios = [ours / theirs for ours, theirs in zip(rates["twostep"], rates[other], strict=True)]
                cells.append(f"{median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})")
            print(f"| {kind} | {num_envs} | {median(rates['twostep']):,.0f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
