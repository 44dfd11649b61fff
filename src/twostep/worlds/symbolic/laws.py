"""Laws of nature to be found again, as the data that somebody could have measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from twostep.errors import ConfigError
from twostep.worlds.symbolic.grammar import Array

EXACT = 1e-6
"""Error below which an expression is the law, where the data are without noise."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """What is to be explained: `inputs` `[V, N]`, one row per variable, and `targets` `[N]`."""

    name: str
    variables: tuple[str, ...]
    inputs: Array
    targets: Array
    target: str = "y"
    """What the targets are called."""
    tolerance: float = EXACT
    """An expression whose error is at most this is found: data with noise leave no smaller one."""

    def __post_init__(self) -> None:
        """Refuse data that nothing could be learned from."""
        inputs, targets = np.asarray(self.inputs, dtype=np.float64), np.asarray(self.targets, dtype=np.float64)
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "targets", targets)
        if targets.ndim != 1 or inputs.shape != (len(self.variables), len(targets)):
            raise ConfigError(
                f"{self.name}: inputs have shape {inputs.shape} and targets {targets.shape}, but must be "
                f"[{len(self.variables)}, N] and [N] for the variables {', '.join(self.variables)}. Transpose them?"
            )
        if not (np.isfinite(inputs).all() and np.isfinite(targets).all()):
            raise ConfigError(f"{self.name}: some of the data are not finite. Leave these points out.")
        if len(targets) < 2 or targets.std() == 0:
            raise ConfigError(f"{self.name}: all targets are the same, so every constant explains them.")


@dataclass(frozen=True)
class Law:
    """A law with the range in which each variable was measured, uniformly; `noise` is in deviations of the target."""

    name: str
    text: str
    ranges: dict[str, tuple[float, float]]
    formula: Callable[..., Any]
    """Takes an array per variable, in the order of `ranges`."""
    noise: float = 0.0

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of what was measured beside the target."""
        return tuple(self.ranges)

    def dataset(self, points: int = 64, seed: int = 0) -> Dataset:
        """Measure at random points; the same seed gives the same data."""
        rng = np.random.default_rng([seed, *self.name.encode()])
        inputs = np.stack([rng.uniform(low, high, points) for low, high in self.ranges.values()])
        targets = np.asarray(self.formula(*inputs), dtype=np.float64)
        if self.noise:
            targets = targets + self.noise * targets.std() * rng.standard_normal(points)
        target = self.text.partition("=")[0].strip()
        return Dataset(self.name, self.variables, inputs, targets, target, max(EXACT, 1.5 * self.noise))


Task = str | Law | Dataset
"""What a world can be set to: the name of a law that ships with it, a law, or data."""

_G = 6.674e-11
_KNOWN = (
    Law("free_fall", "s = g t^2 / 2", {"g": (1.6, 25.0), "t": (0.1, 5.0)}, lambda g, t: g * t**2 / 2),
    Law("kepler", "T = a^1.5", {"a": (0.3, 40.0)}, lambda a: a**1.5),
    Law("pendulum", "T = 2 pi sqrt(l / g)", {"l": (0.1, 2.0), "g": (1.6, 25.0)},
        lambda length, g: 2 * np.pi * (length / g) ** 0.5),
    Law("ideal_gas", "p = 8.314 n T / V", {"n": (0.1, 3.0), "T": (200.0, 400.0), "V": (0.1, 2.0)},
        lambda n, t, v: 8.314 * n * t / v),
    Law("gravity", "F = G m M / r^2", {"m": (1.0, 90.0), "M": (1.0, 90.0), "r": (0.5, 5.0)},
        lambda m, n, r: _G * m * n / r**2),
    Law("orbit", "T = sqrt(a^3 / M)", {"a": (0.3, 10.0), "M": (0.2, 8.0)}, lambda a, m: (a**3 / m) ** 0.5),
    Law("lens", "f = a b / (a + b)", {"a": (0.2, 5.0), "b": (0.2, 5.0)}, lambda a, b: a * b / (a + b)),
    Law("lorentz", "E = m / sqrt(1 - v^2)", {"m": (0.5, 5.0), "v": (0.05, 0.95)}, lambda m, v: m / (1 - v**2) ** 0.5),
    Law("oscillator", "E = (k x^2 + m v^2) / 2",
        {"k": (1.0, 9.0), "x": (-2.0, 2.0), "m": (0.5, 4.0), "v": (-3.0, 3.0)},
        lambda k, x, m, v: (k * x**2 + m * v**2) / 2),
    Law("throw", "h = v t - g t^2 / 2", {"v": (5.0, 30.0), "t": (0.1, 3.0), "g": (1.6, 25.0)},
        lambda v, t, g: v * t - g * t**2 / 2),
    Law("damped", "x = A exp(-b t) cos(t)", {"A": (0.5, 3.0), "b": (0.05, 0.6), "t": (0.0, 8.0)},
        lambda a, b, t: a * np.exp(-b * t) * np.cos(t)),
    Law("radiation", "u = f^3 / (exp(f / T) - 1)", {"f": (0.2, 6.0), "T": (0.5, 3.0)},
        lambda f, t: f**3 / (np.exp(f / t) - 1)),
)  # fmt: skip
LAWS: dict[str, Law] = {law.name: law for law in _KNOWN}
"""The laws that ship with the world, by name."""


def dataset_of(task: Task, points: int, seed: int) -> Dataset:
    """Return the data of a task; those of a law are measured."""
    if isinstance(task, str):
        if task not in LAWS:
            raise ConfigError(f"There is no law {task!r}. Laws are {', '.join(LAWS)}; others are given as a Law.")
        task = LAWS[task]
    return task.dataset(points, seed) if isinstance(task, Law) else task
