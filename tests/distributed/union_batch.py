"""What several processes learn from their own rows of a rollout, beside what one process learns from all of them.

Run as a program under torchrun, each process learns from its part of every case and rank 0 writes what came out.
Small in tests, larger in `benchmarks/union.py`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from twostep import AgentConfig, PPOConfig, RolloutBuffer, make_env, make_policy
from twostep.checkpoint import save_state
from twostep.collect.collector import RolloutCollector
from twostep.group import Group, joined_group
from twostep.learn.ppo import PPOOptimizer
from twostep.tree import tree_map

BASE: dict[str, Any] = {"rollout_steps": 16, "bptt_length": 5, "update_epochs": 3, "num_minibatches": 3, "lr": 1e-3}
CASES: dict[str, dict[str, Any]] = {
    "ff-batch": {},
    "ff-minibatch": {"norm_adv": "minibatch", "normalize_obs": True, "normalize_returns": True, "accumulate": 2},
    "gru-batch": {
        "memory": "gru",
        "lr_schedule": "adaptive_kl",
        "normalize_returns": True,
        "recompute_advantages": True,
    },
    "gru-minibatch": {"memory": "gru", "norm_adv": "minibatch", "minibatch_size": 20, "optimizer": "adamw"},
    "early-stop": {"target_kl": 5e-5, "update_epochs": 8, "lr": 1e-3},
    "one-has-nothing": {"gone": "rank 1", "norm_adv": "minibatch", "normalize_obs": True},
    "holes": {"gone": "some", "memory": "gru", "normalize_obs": True, "normalize_returns": True},
    "growing": {"adaptive_minibatch": (8, 64)},
    "custom": {"custom": True, "num_minibatches": 2},
    "wrapped": {"wrapped": True},
}
UPDATES = 3


def push(policy: Any, obs: Any, actions: Any, rewards: Tensor, values: Tensor, advantages: Tensor) -> Any:
    """Pull values towards 1: a custom loss that measures something."""
    return (values - 1).square().mean(), {"largest_push": values.abs().mean()}


def learned(case: str, group: Group, rows: int = 7, size: int = 8, device: str = "cpu") -> dict[str, Any]:
    """Learn from this group's part of a few rollouts, and return weights, statistics and metrics."""
    settings = {**BASE, **CASES[case]}
    agent = AgentConfig(hidden_size=size, memory=settings.pop("memory", "none"), memory_size=size)
    gone, custom, wrapped = (settings.pop(name, "") for name in ("gone", "custom", "wrapped"))
    env = make_env("CartPole-v1", rows)
    policy = make_policy(env, agent, seed=1)
    collector = RolloutCollector(env, policy, num_steps=BASE["rollout_steps"], bptt_length=5, seed=2, env_seed=3)
    rollouts = [collector.rollout() for _ in range(UPDATES)]
    env.close()
    shown = DistributedDataParallel(policy.to(device)) if wrapped and group.size > 1 else policy
    learner = PPOOptimizer(shown, None, device, PPOConfig(**settings), seed=4 + group.rank, group=group)
    metrics: list[dict[str, float]] = []
    for number, rollout in enumerate(rollouts):
        rollout.policy_version = None
        rollout.valid &= remaining(gone, rollout.valid.shape, number)
        metrics.append(learner.update(part_of(rollout, group), [push] if custom else []))
    return {
        "weights": dict(policy.state_dict()),
        "normalizers": learner.state_dict()["normalizers"],
        "minibatch_size": learner.minibatch_size,
        "metrics": metrics,
    }


def remaining(gone: str, shape: torch.Size, number: int) -> Tensor:
    """Return which steps are left."""
    valid = torch.ones(shape, dtype=torch.bool)
    if gone == "rank 1":
        valid[:, first_row(shape[1], 2, 1) :] = False
    if gone == "some":
        valid = torch.rand(shape, generator=torch.Generator().manual_seed(number)) < torch.linspace(0.2, 1.0, shape[1])
    return valid


def first_row(rows: int, size: int, rank: int) -> int:
    """Give the first processes fewer rows."""
    return rows * rank * (rank + 1) // (size * (size + 1))


def part_of(rollout: RolloutBuffer, group: Group) -> RolloutBuffer:
    """Return the rows of one process; the shares are not equal."""
    rows = slice(*(first_row(rollout.num_rows, group.size, rank) for rank in (group.rank, group.rank + 1)))
    names = ("obs", "actions", "logprobs", "values", "rewards", "next_values", "terminated", "truncated")
    names += ("episode_starts", "valid", "states")
    return replace(rollout, **{name: tree_map(lambda x: x[:, rows].clone(), getattr(rollout, name)) for name in names})


def main(folder: str | Path) -> None:
    """Learn every case together with the other processes."""
    with joined_group(patience=60) as group:
        results = {case: learned(case, group) for case in CASES}
        if group.leads:
            save_state(Path(folder) / "together", results)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1])
