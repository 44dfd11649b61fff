"""What twostep must be able to learn: its shipped configurations, and beside each what others have published."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Task:
    """One configuration, trained with several seeds."""

    env: str
    """What the table calls it."""
    config: str
    """Name of a configuration that twostep ships."""
    published: float
    """The return to reach; with `at_most`, the return to stay below."""
    source: str
    spread: float | None = None
    """Deviation that was published with it."""
    compared: str = "evaluation"
    """What the published figure is comparable with: `evaluation` (deterministic, after training) or `training`."""
    at_most: bool = False
    changes: dict[str, Any] = field(default_factory=dict)
    """Settings, by dotted names, in which the task differs from the configuration."""
    picture: str = ""
    """Tasks of one picture are drawn together; empty draws the task alone."""


ZOO = "RL Baselines3 Zoo, one run"
TIANSHOU = "Tianshou, 10 seeds"
CONTRIB = "the learning test of sb3-contrib"


def _cartpole_without_velocities(memory: str) -> Task:
    alone = memory == "none"
    return Task(
        env=f"CartPole-v1 without velocities, {'no memory' if alone else memory.upper()}",
        config="cartpole_no_velocity",
        published=100.0 if alone else 450.0,
        source="cannot be balanced without memory" if alone else CONTRIB,
        at_most=alone,
        changes={"agent.memory": memory},
        picture="cartpole-without-velocities",
    )


def _pendulum(name: str, **agent: str) -> Task:
    return Task(
        env=f"Pendulum-v1, {name}",
        config="pendulum",
        published=-172.2,
        source=ZOO,
        changes={f"agent.{setting}": value for setting, value in agent.items()},
        picture="pendulum",
    )


TASKS: dict[str, Task] = {
    "cartpole": Task(env="CartPole-v1", config="cartpole", published=500.0, source=ZOO),
    "acrobot": Task(env="Acrobot-v1", config="acrobot", published=-73.5, source=ZOO),
    "acrobot-500k": Task(
        env="Acrobot-v1",
        config="acrobot",
        published=-86.36,
        spread=1.32,
        source="CleanRL, 3 seeds",
        compared="training",
        changes={"trainer.total_timesteps": 500_000},
    ),
    "lunarlander": Task(env="LunarLander-v3", config="lunarlander", published=242.1, source=f"{ZOO} (v2)"),
    "pendulum": _pendulum("Gaussian"),
    "pendulum-fixed": _pendulum("Gaussian, fixed deviation", std="fixed"),
    "pendulum-state": _pendulum("Gaussian, deviation from the state", std="state"),
    "pendulum-squashed": _pendulum("squashed Gaussian", action_dist="squashed"),
    "pendulum-beta": _pendulum("Beta", action_dist="beta"),
    "halfcheetah": Task(
        env="HalfCheetah-v5", config="halfcheetah", published=5784.0, spread=1244.0, source=f"{TIANSHOU} (v3)"
    ),
    "hopper": Task(env="Hopper-v5", config="hopper", published=2609.0, spread=701.0, source=f"{TIANSHOU} (v3)"),
    "cartpole-gru": _cartpole_without_velocities("gru"),
    "cartpole-lstm": _cartpole_without_velocities("lstm"),
    "cartpole-blind": _cartpole_without_velocities("none"),
}
