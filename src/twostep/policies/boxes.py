"""Continuous actions: how a network's outputs become a distribution, and its actions points of a box."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from twostep.errors import ConfigError
from twostep.policies.distributions import Beta, Gaussian, SquashedGaussian, full_precision
from twostep.protocols import Distribution

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
"""What the logarithm of a deviation that depends on the state stays between."""
AS_GOOD_AS_INFINITE = 1e30
"""Half of a box's width from which on its bounds only say that there are none."""


class BoxPolicy(nn.Module):
    """What a box head does with its `num_outputs` linear outputs."""

    bounds: Bounds
    num_outputs: int

    def forward(self, outputs: Tensor) -> Distribution:
        """Map `[.., num_outputs]` to a distribution over `[.., axes]`."""
        raise NotImplementedError("forward(outputs) -> Distribution")

    def misplaced(self, actions: Tensor) -> Tensor:
        """Tell which of the actions `[.., axes]` cannot have been sampled here."""
        raise NotImplementedError("misplaced(actions) -> Tensor")

    def to_env(self, actions: Tensor) -> Tensor:
        """Turn sampled actions `[.., axes]` into points of the box, in its shape."""
        raise NotImplementedError("to_env(actions) -> actions")


class ClippedGaussian(BoxPolicy):
    """Unbounded while learning, clipped for the environment."""

    def __init__(self, bounds: Bounds, deviation: Deviation) -> None:
        super().__init__()
        self.bounds = bounds
        self.deviation = deviation
        self.num_outputs = deviation.num_outputs

    def forward(self, outputs: Tensor) -> Gaussian:
        """See `BoxPolicy`."""
        return Gaussian(*self.deviation(outputs))

    def misplaced(self, actions: Tensor) -> Tensor:
        """See `BoxPolicy`; before squashing and clipping, any number will do."""
        return ~actions.isfinite().all(-1)

    def to_env(self, actions: Tensor) -> Tensor:
        """See `BoxPolicy`."""
        return self.bounds.clip(actions)


class StretchedTanh(BoxPolicy):
    """Through tanh while learning, stretched to the bounds for the environment."""

    def __init__(self, bounds: Bounds, deviation: Deviation) -> None:
        super().__init__()
        bounds.require_finite("squashed")
        self.bounds = bounds
        self.deviation = deviation
        self.num_outputs = deviation.num_outputs

    def forward(self, outputs: Tensor) -> SquashedGaussian:
        """See `BoxPolicy`."""
        return SquashedGaussian(*self.deviation(outputs))

    def misplaced(self, actions: Tensor) -> Tensor:
        """See `BoxPolicy`; before squashing and clipping, any number will do."""
        return ~actions.isfinite().all(-1)

    def to_env(self, actions: Tensor) -> Tensor:
        """See `BoxPolicy`."""
        return self.bounds.stretch(actions.tanh())


class StretchedBeta(BoxPolicy):
    """In (0, 1) while learning, stretched to the bounds for the environment; always a single hump."""

    def __init__(self, bounds: Bounds, deviation: Deviation) -> None:
        super().__init__()
        bounds.require_finite("beta")
        self.bounds = bounds
        self.num_outputs = 2 * bounds.num_axes

    def forward(self, outputs: Tensor) -> Beta:
        """See `BoxPolicy`."""
        alpha, beta = (1.0 + functional.softplus(full_precision(outputs))).chunk(2, -1)
        return Beta(alpha, beta)

    def misplaced(self, actions: Tensor) -> Tensor:
        """See `BoxPolicy`."""
        return ~((actions > 0.0) & (actions < 1.0)).all(-1)

    def to_env(self, actions: Tensor) -> Tensor:
        """See `BoxPolicy`."""
        return self.bounds.stretch(2.0 * actions - 1.0)


class Deviation(nn.Module):
    """Where the standard deviation comes from: splits `num_outputs` outputs into a mean and a `log_std`."""

    num_outputs: int

    def forward(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean `[.., axes]` and a `log_std` that broadcasts against it."""
        raise NotImplementedError("forward(outputs) -> mean, log_std")


class LearnedStd(Deviation):
    """One deviation per axis, learned, the same in every state."""

    def __init__(self, num_axes: int, init_std: float) -> None:
        super().__init__()
        self.num_outputs = num_axes
        self.log_std = nn.Parameter(torch.full((num_axes,), math.log(init_std)))

    def forward(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """See `Deviation`."""
        return outputs, self.log_std


class FixedStd(Deviation):
    """One deviation for ever; saved with the policy, since the policy is not the same without it."""

    log_std: Tensor

    def __init__(self, num_axes: int, init_std: float) -> None:
        super().__init__()
        self.num_outputs = num_axes
        self.register_buffer("log_std", torch.full((num_axes,), math.log(init_std)))

    def forward(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """See `Deviation`."""
        return outputs, self.log_std


class StateStd(Deviation):
    """A deviation that the features decide, bent softly so that it stays within `LOG_STD_MIN` and `LOG_STD_MAX`."""

    def __init__(self, num_axes: int, init_std: float) -> None:
        super().__init__()
        self.num_outputs = 2 * num_axes
        self.middle = (LOG_STD_MAX + LOG_STD_MIN) / 2
        self.reach = (LOG_STD_MAX - LOG_STD_MIN) / 2
        if not abs(math.log(init_std) - self.middle) < self.reach:
            raise ConfigError(
                f"init_std={init_std} cannot be where std='state' starts, for it stays between "
                f"{math.exp(LOG_STD_MIN):.4f} and {math.exp(LOG_STD_MAX):.4f}. Choose one between, or std='learned'."
            )
        # An output of 0, where training starts, gives init_std.
        self.start = math.atanh((math.log(init_std) - self.middle) / self.reach)

    def forward(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """See `Deviation`."""
        mean, bend = full_precision(outputs).chunk(2, -1)
        return mean, (bend + self.start).tanh() * self.reach + self.middle


class Bounds(nn.Module):
    """The sides of a box, flat: one axis per number of the action."""

    low: Tensor
    high: Tensor
    centre: Tensor
    half_width: Tensor

    def __init__(self, space: gym.spaces.Box) -> None:
        super().__init__()
        if not np.issubdtype(space.dtype, np.floating):
            raise ConfigError(
                f"The action space {space} is a box of whole numbers, but the actions of a box are continuous. "
                "Describe whole numbers as MultiDiscrete, or wrap the environment so that it takes floats and rounds."
            )
        self.space = space
        self.shape = space.shape
        self.num_axes = math.prod(self.shape)
        low, high = _inner_float32(space.low.ravel(), np.inf), _inner_float32(space.high.ravel(), -np.inf)
        with np.errstate(over="ignore", invalid="ignore"):
            sides = {"low": low, "high": high, "centre": low / 2 + high / 2, "half_width": high / 2 - low / 2}
        self._is_finite = bool((sides["half_width"] < AS_GOOD_AS_INFINITE).all())
        for name, side in sides.items():
            self.register_buffer(name, torch.as_tensor(side), persistent=False)

    def clip(self, actions: Tensor) -> Tensor:
        """Move what lies outside to the nearest side; an infinite side moves nothing."""
        return self._shaped(actions.clamp(self.low, self.high))

    def stretch(self, fractions: Tensor) -> Tensor:
        """Stretch numbers from -1 to 1 over the box; rounding never leaves it."""
        return self.clip(torch.addcmul(self.centre, self.half_width, fractions))

    def require_finite(self, action_dist: str) -> None:
        """Refuse a box that nothing can be stretched over."""
        if not self._is_finite:
            raise ConfigError(
                f"action_dist={action_dist!r} fills the whole box, but {self.space} has sides without end. "
                "Give the action space finite bounds, or use action_dist='gaussian'."
            )

    def _shaped(self, actions: Tensor) -> Tensor:
        return actions.float().reshape((*actions.shape[:-1], *self.shape))


def _inner_float32(side: npt.NDArray[Any], inwards: float) -> npt.NDArray[np.float32]:
    """Round to float32 so that no bound moves outwards."""
    with np.errstate(over="ignore"):
        rounded = side.astype(np.float32)
    outside = rounded < side if inwards > 0 else rounded > side
    return np.where(outside, np.nextafter(rounded, np.float32(inwards)), rounded)


BOX_POLICIES: dict[str, Callable[[Bounds, Deviation], BoxPolicy]] = {
    "auto": ClippedGaussian,
    "gaussian": ClippedGaussian,
    "squashed": StretchedTanh,
    "beta": StretchedBeta,
}
DEVIATIONS: dict[str, Callable[[int, float], Deviation]] = {
    "learned": LearnedStd,
    "fixed": FixedStd,
    "state": StateStd,
}
