"""Between a gradient and the weights: what is not finite never reaches them."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from torch import nn

from twostep.errors import NumericsError
from twostep.learn.adam import Adam, AdamW
from twostep.learn.losses import Metrics
from twostep.learn.metrics import SKIPPED, means

_LOG = logging.getLogger("twostep.learn")
_LOOKED_AT = ("loss", "grad_norm")


class Guard:
    """Takes optimizer steps, but none on a loss or gradient that is not finite: weights and optimizer stay as they are.

    On a CPU the number is simply looked at. A device that computes ahead is not waited for: optimizers that know
    `found_inf`, as those of torch do for the sake of half precision, take the decision there.
    """

    def __init__(self, policy: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._policy, self._optimizer = policy, optimizer
        self._advance = optimizer.advance if isinstance(optimizer, (Adam, AdamW)) else optimizer.step
        fused = all(group.get("fused") for group in optimizer.param_groups)
        self._decides_there = device.type == "cuda" and fused and hasattr(optimizer, "_step_supports_amp_scaling")

    def step(self, metrics: Metrics, number: int, *, stop: bool) -> None:
        """Step on the gradients that are there, of which these metrics tell.

        Raises:
            NumericsError: They are not finite, `stop` is wanted, and it is known already.
        """
        if self._decides_there:
            optimizer: Any = self._optimizer
            optimizer.found_inf = (~(metrics["loss"] + metrics["grad_norm"]).isfinite()).float()
            optimizer.step()
            return
        if all(math.isfinite(metrics[name]) for name in _LOOKED_AT):
            self._advance()
        elif stop:
            raise NumericsError(self._words(metrics, number))

    def _words(self, metrics: Metrics, number: int) -> str:
        parts = [f"{name} is {float(value)}" for name, value in metrics.items() if not math.isfinite(value)]
        gradients = ((name, one.grad) for name, one in self._policy.named_parameters() if one.grad is not None)
        first = next((name for name, gradient in gradients if not bool(gradient.isfinite().all())), None)
        where = f", first in the gradient of {first}" if first else ""
        return (
            f"{', '.join(parts)} in minibatch {number} of this update{where}. The data are finite, so a loss or the "
            "network is to blame: look at custom losses, take a lower lr or smaller rewards. Nothing of it reached the "
            "weights."
        )


def means_of_steps(measured: list[Metrics], *, stop: bool) -> dict[str, float]:
    """Return the means over all minibatches that a step was taken on; NaN where none was.

    `skipped_minibatches` is there where some were not learned from.

    Raises:
        NumericsError: There are some, and `stop` is wanted.
    """
    decisive = torch.stack([metrics["loss"] + metrics["grad_norm"] for metrics in measured])
    learned = decisive.isfinite().tolist()
    skipped = learned.count(False)
    if not skipped:
        return means(measured)
    words = f"Loss or gradient was not finite in {skipped} of {len(measured)} minibatches: "
    if stop:
        raise NumericsError(
            f"{words}nothing of it reached the weights. Take a lower lr or smaller rewards, and look at custom losses."
        )
    _LOG.warning("%sthey were left out.", words)
    kept = [metrics for metrics, was in zip(measured, learned, strict=True) if was]
    return means(kept or measured) | {SKIPPED: float(skipped)}
