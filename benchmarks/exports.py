"""Export of every kind of policy to ONNX: how far each file is from PyTorch, and how long writing takes.

python benchmarks/exports.py            all of them
python benchmarks/exports.py lstm       those whose name holds a word
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from gymnasium import spaces

from twostep import ActorCritic, AgentConfig, export_policy

VECTOR = spaces.Box(-np.inf, np.inf, (5,), np.float32)
GROUPS = spaces.Dict(
    {
        "proprioception": VECTOR,
        "contact": spaces.MultiBinary(4),
        "mode": spaces.Discrete(3, start=2),
        "privileged": spaces.Box(-1.0, 1.0, (3,)),
    }
)
PICTURE = spaces.Box(0, 255, (36, 36, 2), np.uint8)
SIDES = spaces.Box(np.float32([-2.0, 0.0, -50.0]), np.float32([3.0, 1.0, 50.0]))
CHOICES = spaces.Dict(
    {
        "arm": spaces.Box(-1.0, 1.0, (2,)),
        "gears": spaces.MultiDiscrete([2, 3], start=[0, 1]),
        "horn": spaces.MultiBinary(2),
        "way": spaces.Discrete(5, start=1),
    }
)

POLICIES: dict[str, tuple[spaces.Space, spaces.Space, AgentConfig]] = {
    "gru, groups, tanh": (
        GROUPS,
        SIDES,
        AgentConfig(
            memory="gru", action_dist="squashed", encoders={"proprioception": (16,)}, critic_only=("privileged",)
        ),
    ),
    "choices with masks": (VECTOR, CHOICES, AgentConfig(hidden_size=16)),
    "lstm, two layers, beta": (VECTOR, SIDES, AgentConfig(memory="lstm", memory_layers=2, action_dist="beta")),
    "picture": (PICTURE, spaces.Discrete(6), AgentConfig()),
    "picture and numbers, gru": (spaces.Dict({"eye": PICTURE, "speed": VECTOR}), SIDES, AgentConfig(memory="gru")),
    "state-dependent deviation, elu": (VECTOR, SIDES, AgentConfig(std="state", activation="elu", action_hidden=(8,))),
    "told by a context": (VECTOR, SIDES, AgentConfig(context_size=3, shared=True, activation="silu")),
    "tuple": (spaces.Tuple((VECTOR, spaces.MultiDiscrete([2, 2]))), spaces.Discrete(2), AgentConfig(activation="gelu")),
}


def make(name: str, seed: int = 0) -> ActorCritic:
    """Build one of the policies, with weights and statistics of observations as after some training."""
    torch.manual_seed(seed)
    policy = ActorCritic(*POLICIES[name])
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    sizes = {path: vector.out_features for path, vector in policy.encoder.vectors().items()}
    policy.set_observation_statistics({path: (np.arange(n) - 1.0, np.arange(n) + 0.5) for path, n in sizes.items()})
    return policy


def main() -> None:
    """Export those that were asked for, and print how it went."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    with TemporaryDirectory() as folder:
        for name, (_, action_space, _) in POLICIES.items():
            if word in name:
                began = time.perf_counter()
                file = Path(folder) / "policy.onnx"
                exported = export_policy(make(name), file, masks=action_space is CHOICES)
                print(f"{name:32} {time.perf_counter() - began:5.1f} s  {exported.parity}")


if __name__ == "__main__":
    main()
