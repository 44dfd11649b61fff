"""A minibatch size that follows the noise of the gradient; measuring takes no optimizer step."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from twostep.learn.ppo import PPOOptimizer
    from twostep.sequences import Sequences

MEASURED = 5
NOISY, CALM = 0.1, 0.01
GROW, SHRINK = 1.2, 0.8


def adapted_minibatch_size(learner: PPOOptimizer, sequences: Sequences, size: int, bounds: tuple[int, int]) -> int:
    """Return a larger size where gradients of equal minibatches differ much, a smaller one where they hardly do."""
    number = sequences.minibatch_count(size, 1)
    before = learner.generator.get_state()
    minibatches = list(islice(sequences.epoch(number, learner.generator), MEASURED))
    learner.generator.set_state(before)
    lengths = torch.stack([learner.gradient(minibatch)["grad_norm"] for minibatch in minibatches if minibatch.whole])
    return resized(size, lengths, bounds)


def resized(size: int, gradient_lengths: torch.Tensor, bounds: tuple[int, int]) -> int:
    """Apply the rule to measured gradient lengths: their variance relative to their squared mean decides."""
    smallest, largest = bounds
    if gradient_lengths.numel() > 1:
        noise = float(gradient_lengths.var() / gradient_lengths.mean().square().clamp(min=1e-12))
        if noise > NOISY:
            size = max(size + 1, round(size * GROW))
        elif noise < CALM:
            size = min(size - 1, round(size * SHRINK))
    return min(max(size, smallest), largest)
