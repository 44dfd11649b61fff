"""Where true means lie with 95 % confidence, by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_ANGLES = 20_001
_ALMOST_NORMAL = 1e5
"""Degrees of freedom beyond which Student's t is the normal distribution to five digits."""

Interval = tuple[float, float]


def t_quantile(degrees: float) -> float:
    """Return the 97.5 % point of Student's t, also for broken degrees of freedom.

    With `t = sqrt(degrees) * tan(angle)` its density becomes `cos(angle) ** (degrees - 1)`, which is summed up.
    """
    degrees = min(degrees, _ALMOST_NORMAL)
    angles = np.linspace(0.0, math.pi / 2, _ANGLES)
    density = np.cos(angles) ** (degrees - 1)
    mass = np.concatenate(([0.0], (density[1:] + density[:-1]).cumsum()))
    return math.sqrt(degrees) * math.tan(float(np.interp(0.95 * mass[-1], mass, angles)))


def mean_interval(numbers: Sequence[float]) -> Interval:
    """Return the interval of the mean of independent numbers; NaN for fewer than two."""
    count = len(numbers)
    if count < 2:
        return math.nan, math.nan
    mean = float(np.mean(numbers))
    margin = t_quantile(count - 1) * float(np.std(numbers, ddof=1)) / math.sqrt(count)
    return mean - margin, mean + margin


def welch_interval(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the interval of the mean of `second` minus that of `first`, whose variances may differ; after Welch."""
    if min(len(first), len(second)) < 2:
        return math.nan, math.nan
    parts = [float(np.var(numbers, ddof=1)) / len(numbers) for numbers in (first, second)]
    difference = float(np.mean(second)) - float(np.mean(first))
    if not sum(parts):
        return difference, difference
    sizes = (len(first), len(second))
    degrees = sum(parts) ** 2 / sum(part**2 / (size - 1) for part, size in zip(parts, sizes, strict=True))
    margin = t_quantile(degrees) * math.sqrt(sum(parts))
    return difference - margin, difference + margin
