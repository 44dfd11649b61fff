"""Keeps gradients within what 16-bit floats can hold: the loss is multiplied by a scale, the gradient divided by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

Result = TypeVar("Result")

START = 2.0**16
LARGEST = 2.0**24
PATIENCE = 2000
"""Gradients that must have been finite in a row before a larger scale is tried."""


class LossScale:
    """The largest power of two with which gradients are finite.

    A minibatch whose gradient overflows is gone through again with half the scale, so none is lost. Where no scale
    helps, something else is wrong than the scale, which then stays as it was.
    """

    def __init__(self) -> None:
        self.scale = START
        self.good = 0
        """Finite gradients since the scale last changed."""

    def finite(self, gradient: Callable[[], tuple[Tensor, Result]]) -> tuple[Tensor, Result]:
        """Return what `gradient` does with the present scale, or with the next smaller one where all is finite."""
        before, flat = self.scale, gradient()
        while not bool(flat[0].isfinite().all()):
            if self.scale <= 1.0:
                self.scale = before
                return flat
            self.scale, self.good = self.scale / 2, 0
            flat = gradient()
        self.good += 1
        if self.good == PATIENCE:
            self.scale, self.good = min(2 * self.scale, LARGEST), 0
        return flat

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and how long it has been right."""
        return {"scale": self.scale, "good": self.good}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly from `state_dict`."""
        self.scale, self.good = state["scale"], state["good"]
