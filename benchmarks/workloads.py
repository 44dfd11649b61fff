"""What is measured: the workloads, the same for every library, and the environments they share.

Importing this module imports neither torch nor gymnasium, so that each library pays for its own imports.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One setting in which all libraries train the same network on the same environments."""

    title: str
    env: str
    """`cartpole`, `cartpole-vector`, `cartpole-no-velocities`, `halfcheetah`, `pong` or `locomotion`."""
    rows: int
    steps: int
    """Steps per row in one rollout."""
    epochs: int
    minibatches: int
    target: float
    """What twostep's steps per second must be, as a multiple of the best peer's."""
    target_against: dict[str, float] = field(default_factory=dict)
    """Further multiples, each against one named peer."""
    peers: tuple[str, ...] = ("sb3", "rsl_rl")
    entropy: float = 0.01
    lr: float = 2.5e-4
    threads: int = 1
    activation: str = "tanh"
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of each of the two networks, behind the memory where there is one."""
    memory: str = "none"
    memory_size: int = 64
    bptt_length: int | None = None
    """Steps per sequence in twostep; None takes the whole rollout, as the peers do."""
    matmul: str = "highest"
    """Argument of `torch.set_float32_matmul_precision`."""
    needs: str | None = None
    """A package that the environments need besides Gymnasium."""

    @property
    def batch(self) -> int:
        """Transitions per rollout."""
        return self.rows * self.steps

    @property
    def minibatch(self) -> int:
        """Transitions per minibatch."""
        return self.batch // self.minibatches


CLIP = 0.2
GAMMA = 0.99
GAE_LAMBDA = 0.95
VALUE_WEIGHT = 0.5
MAX_GRADIENT_NORM = 0.5

_CARTPOLE = {"steps": 128, "epochs": 4, "minibatches": 4}
_NO_VELOCITIES = {
    "env": "cartpole-no-velocities",
    "rows": 8,
    "steps": 128,
    "epochs": 4,
    "minibatches": 4,
    "hidden": (64,),
}
_AGAINST_CONTRIB = {"sb3-contrib": 4.0, "sb3-contrib-shared": 4.0}
_CHEETAH = {
    "env": "halfcheetah",
    "epochs": 10,
    "minibatches": 32,
    "entropy": 0.0,
    "lr": 3e-4,
    "target": 1.5,
    "needs": "mujoco",
}

WORKLOADS: dict[str, Workload] = {
    "A8": Workload(title="CartPole, 8 envs", env="cartpole", rows=8, target=3.0, **_CARTPOLE),
    "A64": Workload(title="CartPole, 64 envs", env="cartpole", rows=64, target=2.0, **_CARTPOLE),
    "A64v": Workload(
        title="CartPole, 64 envs in one vector env", env="cartpole-vector", rows=64, target=2.5, **_CARTPOLE
    ),
    "B1": Workload(title="HalfCheetah, 1 env x 2048", rows=1, steps=2048, **_CHEETAH),
    "B8": Workload(title="HalfCheetah, 8 envs x 256", rows=8, steps=256, **_CHEETAH),
    "C-LSTM": Workload(
        title="CartPole without velocities, LSTM 64",
        memory="lstm",
        target=2.0,
        target_against=_AGAINST_CONTRIB,
        peers=("sb3-contrib", "sb3-contrib-shared", "rsl_rl"),
        **_NO_VELOCITIES,
    ),
    "C-LSTM-16": Workload(
        title="CartPole without velocities, LSTM 64; twostep in sequences of 16",
        memory="lstm",
        target=2.0,
        target_against=_AGAINST_CONTRIB,
        peers=("sb3-contrib", "sb3-contrib-shared", "rsl_rl"),
        bptt_length=16,
        **_NO_VELOCITIES,
    ),
    "C-GRU": Workload(
        title="CartPole without velocities, GRU 64", memory="gru", target=2.0, peers=("rsl_rl",), **_NO_VELOCITIES
    ),
    "C-GRU-16": Workload(
        title="CartPole without velocities, GRU 64; twostep in sequences of 16",
        memory="gru",
        target=2.0,
        peers=("rsl_rl",),
        bptt_length=16,
        **_NO_VELOCITIES,
    ),
    "D": Workload(
        title="Pong, NatureCNN, two threads",
        env="pong",
        rows=8,
        steps=128,
        epochs=4,
        minibatches=4,
        target=1.0,
        peers=("sb3",),
        threads=2,
        hidden=(),
        needs="ale_py",
    ),
    "E": Workload(
        title="Locomotion-shaped, 1,024 rows, GRU 256",
        env="locomotion",
        rows=1024,
        steps=24,
        epochs=5,
        minibatches=4,
        target=1.0,
        peers=("rsl_rl",),
        lr=3e-4,
        activation="elu",
        hidden=(256, 128),
        memory="gru",
        memory_size=256,
        matmul="medium",
    ),
}

GYM_IDS = {"cartpole": "CartPole-v1", "cartpole-no-velocities": "CartPole-v1", "halfcheetah": "HalfCheetah-v5"}


def make_gym_env(name: str) -> Any:
    """Build one Gymnasium env of the three kinds that are stepped one by one."""
    import gymnasium

    env = gymnasium.make(GYM_IDS[name], disable_env_checker=True)
    return without_velocities(env) if name == "cartpole-no-velocities" else env


def cartpole_without_velocities() -> Any:
    """Build CartPole in the form that only memory can balance."""
    return make_gym_env("cartpole-no-velocities")


def without_velocities(env: Any) -> Any:
    """Show only CartPole's two positions, so that the velocities have to be remembered."""
    from gymnasium import spaces
    from gymnasium.wrappers import TransformObservation

    positions = np.array([0, 2])
    full = env.observation_space
    seen = spaces.Box(full.low[positions], full.high[positions], dtype=full.dtype)
    return TransformObservation(env, lambda obs: obs[positions], seen)


def make_gym_vector_env(workload: Workload) -> Any:
    """Build the one vector env of the workloads whose envs are stepped together outside Python."""
    import gymnasium

    if workload.env == "cartpole-vector":
        return gymnasium.make_vec("CartPole-v1", num_envs=workload.rows, vectorization_mode="vector_entry_point")
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv("pong", num_envs=workload.rows, num_threads=workload.threads, autoreset_mode="SameStep")
