"""One seed grows into the seeds of everything that draws random numbers while training."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from twostep.errors import EnvError

Seeds = int | Sequence[int] | npt.NDArray[np.integer[Any]]
"""One seed from which all others are derived, or one for each."""


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


def process_seed(seed: int, rank: int) -> int:
    """Return what the randomness of one of several processes grows from; for the first, rank 0, the run's own seed."""
    return seed if rank == 0 else int(np.random.SeedSequence(seed, spawn_key=(rank,)).generate_state(1)[0])


def row_seeds(seed: int, num_rows: int) -> list[int]:
    """Derive one seed per row from a run's seed.

    Rows of neighbouring run seeds share nothing, which `seed + row` would not give; the first rows stay the same
    whatever the number of rows. Seeds fit 31 bits, as simulators written in C want it.
    """
    if seed < 0:
        raise EnvError(f"seed={seed}, but seeds must be 0 or more. Use seed={-seed}.")
    words = np.random.SeedSequence(seed).generate_state(num_rows, np.uint32)
    return (words >> 1).tolist()


def resets(
    seed: Seeds | None, num_envs: int, indices: Sequence[int] | npt.NDArray[np.integer[Any]] | None
) -> list[tuple[int, int | None]]:
    """List which environments begin anew, each with its seed: derived from one, or its own of those given, or None."""
    chosen = list(range(num_envs)) if indices is None else whole_numbers("indices", indices)
    wrong = [index for index in chosen if not 0 <= index < num_envs]
    if wrong or len(set(chosen)) < len(chosen):
        raise EnvError(
            f"indices={chosen}, but each must be one of the {num_envs} environments, named once. "
            f"Use numbers from 0 to {num_envs - 1}."
        )
    if seed is None:
        return [(index, None) for index in chosen]
    if not isinstance(seed, Sequence) and np.ndim(seed) == 0:
        seeds = row_seeds(_as_seeds([seed])[0], num_envs)
        return [(index, seeds[index]) for index in chosen]
    own = _as_seeds(seed)
    if len(own) != len(chosen):
        raise EnvError(f"{len(own)} seeds came for {len(chosen)} environments. Give one for each, or a single one.")
    return list(zip(chosen, own, strict=True))


def _as_seeds(values: Any) -> list[int]:
    seeds = whole_numbers("seed", values)
    for seed in seeds:
        if seed < 0:
            raise EnvError(f"seed={seed}, but seeds must be 0 or more. Use seed={-seed}.")
    return seeds


def whole_numbers(name: str, values: Any) -> list[int]:
    """Return whole numbers of any kind, from whatever holds them, as plain ones; nothing is rounded."""
    try:
        if any(isinstance(value, (bool, np.bool_)) for value in values):
            raise TypeError
        return [operator.index(value) for value in values]
    except TypeError:
        raise EnvError(
            f"{name}={values!r}, but only whole numbers can be taken. Use integers, such as [0, 1]."
        ) from None
