"""The learning rates of an optimizer as training goes on."""

from __future__ import annotations

import torch

from twostep.learn.schedules import AdaptiveKL, schedule_for
from twostep.learn.settings import PPOConfig


class LearningRates:
    """Moves the rates of all groups of an optimizer together.

    They begin as the optimizer has them, which may be somebody else's, and keep their proportions to the first.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, config: PPOConfig) -> None:
        self.optimizer = optimizer
        self.starts = [float(group["lr"]) for group in optimizer.param_groups]
        self.adaptive = AdaptiveKL(self.starts[0], config.desired_kl)

    def set_progress(self, progress: float, config: PPOConfig) -> None:
        """Set the rates for the part of all training that is done, 0 to 1."""
        if config.lr_schedule == "adaptive_kl":
            self.set(self.adaptive.lr)
        elif config.lr_schedule != "constant":
            self.set(schedule_for(config.lr_schedule, self.starts[0], config.lr_min_ratio)(progress))

    def restart(self, config: PPOConfig) -> None:
        """Begin with the rate that the settings name."""
        self.starts = self._proportional(config.lr)
        self.adaptive = AdaptiveKL(config.lr, config.desired_kl)
        self.set(config.lr)

    def set(self, lr: float) -> None:
        """Give the first group this rate, and the others theirs."""
        for group, rate in zip(self.optimizer.param_groups, self._proportional(lr), strict=True):
            group["lr"] = rate

    def _proportional(self, first: float) -> list[float]:
        return [first if lr == self.starts[0] else first * lr / self.starts[0] for lr in self.starts]
