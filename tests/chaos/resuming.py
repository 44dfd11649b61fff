"""Runs that are cut and go on, beside the same runs never cut: every number must be the same, bit for bit.

Small in tests, twenty cuts of every configuration in `benchmarks/resume.py`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from twostep import AgentConfig, PPOTrainer, VectorEnv, make_policy
from twostep.checkpoint import pack
from twostep.vector.serial import SerialVectorEnv

NETS: dict[str, dict[str, Any]] = {
    "mlp": {},
    "cnn": {"picture": True},
    "gru": {"memory": "gru"},
    "lstm": {"memory": "lstm"},
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3),
    "continuous": spaces.Box(-1, 1, (2,), np.float32),
    "mixed": spaces.Dict({"push": spaces.Box(-1, 1, (1,), np.float32), "turn": spaces.MultiDiscrete([2, 3])}),
}
NUM_ENVS, STEPS = 4, 12
TIMES = ("collect_time", "learn_time", "steps_per_second")
SETTINGS: dict[str, Any] = {
    "rollout_steps": STEPS,
    "bptt_length": 5,
    "update_epochs": 2,
    "num_minibatches": 3,
    "normalize_obs": True,
    "normalize_returns": True,
    "norm_adv": "minibatch",
    "lr": 1e-2,
}


class Drift(gym.Env):
    """Drifts by chance and by what is done, ends by chance, and is cut after a while; all of it in plain attributes."""

    def __init__(self, actions: str, picture: bool) -> None:
        self.action_space = ACTIONS[actions]
        self.observation_space = spaces.Box(-50, 50, (3,), np.float32)
        if picture:
            self.observation_space = spaces.Box(0, 255, (1, 36, 36), np.uint8)
        self.picture = picture

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=3)
        self.left = int(self.np_random.integers(3, 30))
        self.history: list[float] = []
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        if not self.picture:
            return self.place.astype(np.float32)
        picture = np.zeros((1, 36, 36), np.uint8)
        x, y = np.clip(18 + 6 * self.place[:2], 0, 35).astype(int)
        picture[0, x, y] = 255
        return picture

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        done = action if isinstance(action, dict) else {"": action}
        self.history.append(float(sum(np.sum(part) for part in done.values())))
        self.place = 0.9 * self.place + 0.1 * self.history[-1] + self.np_random.normal(size=3) / 10
        self.left -= 1
        ended = bool(self.np_random.random() < 0.02)
        return self.observe(), -float(np.abs(self.place).sum()), ended, self.left <= 0, {"past": len(self.history)}


class Sealed(Drift):
    """The same, but something in it is no plain data."""

    def __init__(self, actions: str, picture: bool) -> None:
        super().__init__(actions, picture)
        self.handle = object()


def trainer_of(net: str, actions: str, workers: int, seed: int = 1, env: type = Drift, **changes: Any) -> PPOTrainer:
    """Make a small trainer; `workers` processes step its environments, or this one where there are none."""
    agent = dict(NETS[net])
    picture = agent.pop("picture", False)
    makers = [lambda: env(actions, picture)] * NUM_ENVS
    rows: Any = SerialVectorEnv(makers, seed=seed)
    if workers:
        rows = VectorEnv(NUM_ENVS, makers, num_workers=workers, seed=seed, start_method="forkserver")
    settings = {**SETTINGS, "lr_schedule": "adaptive_kl" if actions == "mixed" else "cosine", **changes}
    settings |= {"normalize_obs": not picture}
    policy = make_policy(rows, AgentConfig(hidden_size=16, memory_size=8, **agent), seed=seed)
    return PPOTrainer(policy, rows, device="cpu", seed=seed, **settings)


def rows_of(trainer: PPOTrainer, updates: int, total: int, each: Any = None) -> list[dict[str, float]]:
    """Train up to `updates` of a run of `total` and return what was measured, times left out."""
    rows: list[dict[str, float]] = []

    def after(_: PPOTrainer, metrics: dict[str, float]) -> bool:
        rows.append({name: value for name, value in metrics.items() if name not in TIMES})
        if each is not None:
            each(len(rows))
        return trainer.n_updates < updates

    trainer.train(total * NUM_ENVS * STEPS, callback=after)
    return rows


def require_same(one: Any, other: Any) -> None:
    """Compare whole states: every tensor bit for bit, and all that is said about them."""
    tensors, others = one[0], other[0]
    assert list(tensors) == list(others)
    different = [name for name in tensors if not torch.equal(_bits(tensors[name]), _bits(others[name]))]
    assert not different, different
    assert json.dumps(one[1]) == json.dumps(other[1])


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def exactness(
    net: str, actions: str, before: int, after: int, cuts: int, folder: Path, updates: int = 6
) -> dict[str, Any]:
    """C16: cut a run at random updates, go on from the disk in a trainer of another seed, and compare everything.

    `before` and `after` say how many processes step the environments; 0 steps them in this one.
    """
    chosen = sorted(random.Random(f"{net} {actions} {before} {after}").sample(range(1, updates), cuts))
    whole = trainer_of(net, actions, before)

    def save(update: int) -> None:
        if update in chosen:
            whole.save_checkpoint(folder / f"{update}")

    rows = rows_of(whole, updates, updates, save)
    expected = packed(whole)
    whole.env.close()
    resumed = trainer_of(net, actions, after, seed=99)
    for cut in chosen:
        resumed.load_checkpoint(folder / f"{cut}")
        assert not resumed.restart_reason
        again = rows_of(resumed, updates, updates)
        assert [json.dumps(row) for row in again] == [json.dumps(row) for row in rows[cut:]]
        require_same(packed(resumed), expected)
    resumed.env.close()
    return {"cuts": cuts, "updates": updates, "numbers in a state": sum(map(torch.numel, expected[0].values()))}


def packed(trainer: PPOTrainer) -> Any:
    """Return the whole state as tensors and structure, without what the parent of workers keeps for its messages."""
    state = trainer.state_dict()
    state["collection"]["running"]["envs"].pop("ledger", None)
    return pack(state)
