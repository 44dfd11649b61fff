"""One seed grows into the seeds of everything that draws random numbers while training."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class TrainingSeeds(NamedTuple):
    """What starts the environments, draws the actions and orders the minibatches."""

    env: int | None
    """None leaves it to the environment, where nobody asked for a run that can be repeated."""
    actions: int
    order: int


def training_seeds(seed: int | None) -> TrainingSeeds:
    """Spawn independent seeds from one; None spawns them from the system's entropy."""
    env, actions, order = (int(part.generate_state(1)[0]) for part in np.random.SeedSequence(seed).spawn(3))
    return TrainingSeeds(None if seed is None else env, actions, order)
