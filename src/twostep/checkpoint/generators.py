"""Where random generators stand, as states to save."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch

from twostep.checkpoint.packing import State


def generator_state(generator: torch.Generator | np.random.Generator) -> State:
    """Return where a generator stands, as a state to save."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return generator.bit_generator.state


def restore_generator(generator: torch.Generator | np.random.Generator, state: State) -> None:
    """Let a generator of the same kind go on from where `generator_state` was taken.

    A device cannot go on with the random numbers of another kind of device; its generator starts anew from a seed that
    the saved state decides, so that the run stays repeatable.
    """
    if isinstance(generator, torch.Generator):
        if state.shape == generator.get_state().shape:
            generator.set_state(state)
        else:
            generator.manual_seed(seed_from(state))
    else:
        generator.bit_generator.state = state


def process_generators() -> State:
    """Return where the generators stand that all code of this process shares: those of torch, NumPy and Python."""
    return {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(legacy=False),
        "python": random.getstate(),
    }


def restore_process_generators(state: State) -> None:
    """Let the generators that all code of this process shares go on from where `process_generators` was called."""
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


def seed_from(state: State) -> int:
    """Return a seed that the state of a torch generator decides."""
    return int.from_bytes(hashlib.sha256(state.cpu().numpy().tobytes()).digest()[:7], "big")
