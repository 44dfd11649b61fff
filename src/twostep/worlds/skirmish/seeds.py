"""Where the seeds of matches come from."""

from __future__ import annotations

from typing import Any

import numpy as np

from twostep.errors import EnvError


class MatchSeeds:
    """The seeds of one environment's matches, one after the other. The first is the environment's own.

    So a reset with the seed of any match plays that match again.
    """

    def __init__(self, seed: int | None) -> None:
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1)
        if seed < 0:
            raise EnvError(f"seed={seed}, but seeds must be 0 or more. Use seed={-seed}.")
        self._first: int | None = int(seed)
        self._rng = np.random.default_rng(seed)

    def draw(self) -> int:
        """Return the seed of the next match."""
        seed, self._first = self._first, None
        return int(self._rng.integers(2**31)) if seed is None else seed

    def state_dict(self) -> dict[str, Any]:
        """Return where the sequence stands."""
        return {"first": self._first, "generator": self._rng.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._first = state["first"]
        self._rng.bit_generator.state = state["generator"]
