"""Where true means and rates lie with 95 % confidence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

_ANGLES = 20_001
_ALMOST_NORMAL = 1e5
"""Degrees of freedom beyond which Student's t is the normal distribution to five digits."""

_NORMAL = 1.959963984540054
"""The 97.5 % point of the normal distribution."""

Interval = tuple[float, float]
UNKNOWN: Interval = (math.nan, math.nan)


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
    """Return the interval of the mean of independent numbers, by Student's t; NaN for fewer than two."""
    return means_interval([numbers])


def means_interval(groups: Sequence[Sequence[float]]) -> Interval:
    """Return the interval of the mean of the groups' means, each group counting alike, after Welch and Satterthwaite.

    NaN where a group has fewer than two numbers.
    """
    if not groups or min(map(len, groups)) < 2:
        return UNKNOWN
    mean = float(np.mean([np.mean(group) for group in groups]))
    margin = _margin(groups) / len(groups)
    return mean - margin, mean + margin


def welch_interval(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the interval of the mean of `second` minus that of `first`, whose variances may differ; after Welch."""
    if min(len(first), len(second)) < 2:
        return UNKNOWN
    difference = float(np.mean(second)) - float(np.mean(first))
    margin = _margin((first, second))
    return difference - margin, difference + margin


def _margin(groups: Sequence[Sequence[float]]) -> float:
    """Return by how much a sum or difference of the groups' means may be off."""
    parts = [float(np.var(numbers, ddof=1)) / len(numbers) for numbers in groups]
    if not sum(parts):
        return 0.0
    degrees = sum(parts) ** 2 / sum(part**2 / (len(group) - 1) for part, group in zip(parts, groups, strict=True))
    return t_quantile(degrees) * math.sqrt(sum(parts))


def rate_interval(rate: float, trials: float) -> Interval:
    """Return the interval of a rate that was seen in so many trials, by Wilson's score; NaN without trials."""
    if not trials:
        return UNKNOWN
    z = _NORMAL
    middle = rate + z * z / (2 * trials)
    margin = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (middle - margin) / scale), min(1.0, (middle + margin) / scale)
