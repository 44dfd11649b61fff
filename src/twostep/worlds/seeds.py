"""One seed for each of many environments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from twostep.errors import EnvError


def env_seeds(seed: int | Sequence[int] | None, num_envs: int) -> list[int]:
    """Return one seed per environment: those given, or as many as wanted from one, as every vector of twostep does."""
    if isinstance(seed, Sequence):
        if len(seed) != num_envs:
            raise EnvError(f"{len(seed)} seeds came for {num_envs} environments. Give one for each, or a single one.")
        return [int(one) for one in seed]
    if seed is not None and seed < 0:
        raise EnvError(f"seed={seed}, but seeds must be 0 or more. Use seed={-seed}.")
    words = np.random.SeedSequence(seed).generate_state(num_envs, np.uint32)
    return (words >> 1).tolist()
