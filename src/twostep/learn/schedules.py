"""How the learning rate goes on: functions of progress, or of how far each update moved the policy.

Progress is the share of `total_timesteps` already taken, from 0 to 1, so a schedule ends where training ends, whatever
the number of environments and the length of a rollout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from twostep.errors import ConfigError

Schedule = Callable[[float], float]
"""From progress to a factor or a learning rate; progress outside 0..1 counts as the nearer end."""


def constant(progress: float) -> float:
    """Stay at 1."""
    del progress
    return 1.0


def linear(progress: float) -> float:
    """Fall to 0 in a straight line."""
    return 1.0 - _clamped(progress)


def cosine(progress: float, min_ratio: float = 0.1) -> float:
    """Fall to `min_ratio` along half a cosine wave: slowly, fast, slowly."""
    return min_ratio + (1.0 - min_ratio) * 0.5 * (1.0 + math.cos(math.pi * _clamped(progress)))


def _clamped(progress: float) -> float:
    return min(max(progress, 0.0), 1.0)


def schedule_for(name: str, lr: float, min_ratio: float = 0.1) -> Schedule:
    """Return the learning rate as a function of progress; `AdaptiveKL` is no such function and has its own class."""
    factors: dict[str, Schedule] = {
        "constant": constant,
        "linear": linear,
        "cosine": partial(cosine, min_ratio=min_ratio),
    }
    if name not in factors:
        raise ConfigError(f"lr_schedule={name!r} is no function of progress; use one of {', '.join(factors)}.")
    factor = factors[name]
    return lambda progress: lr * factor(progress)


class AdaptiveKL:
    """Raises the learning rate after small policy steps and lowers it after large ones.

    Args:
        low: No step lowers the rate below this; a rate that starts there or below is only ever raised.
        high: No step raises the rate above this.
    """

    def __init__(
        self, lr: float, desired_kl: float, factor: float = 1.5, low: float = 1e-5, high: float = 1e-2
    ) -> None:
        self.lr = lr
        self.desired_kl = desired_kl
        self.factor = factor
        self.low = low
        self.high = high

    def update(self, kl: float) -> float:
        """Return the rate after a step that moved the policy by `kl`; one that is not a number changes nothing."""
        if kl > 2.0 * self.desired_kl:
            self.lr = min(self.lr, max(self.low, self.lr / self.factor))
        elif kl < 0.5 * self.desired_kl:
            self.lr = max(self.lr, min(self.high, self.lr * self.factor))
        return self.lr

    def state_dict(self) -> dict[str, Any]:
        """Return the rate, the only thing that moves."""
        return {"lr": self.lr}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.lr = float(state["lr"])
