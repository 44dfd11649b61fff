"""Random numbers of many rows at once, each row from a stream of its own.

A stream is a key and how many numbers were drawn so far: the numbers of a row depend on nothing else, not on how many
rows there are, nor on what other rows draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_STRIDE = np.uint64(0x9E3779B97F4A7C15)  # the odd number next to 2^64 / golden ratio
_ROUNDS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST, _SPARE = np.uint64(31), np.uint64(11)


class RowRandom:
    """One stream of uniform numbers for each row, by the mixing function of SplitMix64."""

    def __init__(self, num_rows: int) -> None:
        self.keys = np.zeros(num_rows, dtype=np.uint64)
        self.drawn = np.zeros(num_rows, dtype=np.uint64)

    def seed(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin the streams of rows anew."""
        for row, seed in zip(rows, seeds, strict=True):
            self.keys[row] = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
            self.drawn[row] = 0

    def uniform(self, rows: Any, count: int, low: Any = -1.0, high: Any = 1.0) -> Array:
        """Draw `count` numbers for each of these rows, `[M, count]`, evenly between `low` and `high`."""
        drawn = self.drawn[rows]
        at = drawn[:, None] + np.arange(1, count + 1, dtype=np.uint64)
        self.drawn[rows] = drawn + np.uint64(count)
        bits = self.keys[rows][:, None] + at * _STRIDE
        for shift, factor in _ROUNDS:
            bits ^= bits >> shift
            bits *= factor
        bits ^= bits >> _LAST
        return low + (high - low) * ((bits >> _SPARE) * 2.0**-53)

    def whole(self, rows: Any, low: Any, high: Any) -> Array:
        """Draw one whole number from `low` to `high` for each of these rows, `[M]`."""
        width = np.asarray(high) - low + 1
        return low + (self.uniform(rows, 1, 0.0, 1.0)[:, 0] * width).astype(np.int64)
