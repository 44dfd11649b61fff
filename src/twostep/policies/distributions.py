"""What a policy says about its next action, in as few tensor operations as each distribution allows.

Nothing is checked here: shapes come from the heads, masks are checked where they enter the library. Parameters in half
precision are raised to float32 first; float64 stays. `log_prob` and `entropy` treat the last dimension as one action.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from twostep.policies.squashing import expected_log_tanh_slope, log_tanh_slope
from twostep.tree import Tree, tree_leaves, tree_map

FORBIDDEN = -1e30
"""Logit of a masked choice: its probability is exactly 0, and yet 0 * log 0 and its gradient stay finite numbers."""
PADDING = -2e30
"""Logit of a choice that does not exist: still impossible in a row whose real choices are all masked."""
SMALLEST_CHANCE = 1e-30
"""What uniform numbers start at, so that their logarithm is finite."""
OPEN_EDGE = 1e-6
"""How near to 0 and 1 a Beta action may come, so that its log-probability is finite."""
HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def full_precision(tensor: Tensor) -> Tensor:
    """Raise half precision to float32 and leave everything else as it is."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


class Categorical:
    """One choice out of `n`, from logits `[.., n]`; a mask `[.., n]` (bool) says which choices are allowed.

    Actions are int64 `[..]`. A row that allows nothing counts as one that allows everything.
    """

    __slots__ = ("_probs", "log_probs")

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        logits = full_precision(logits)
        if mask is not None:
            logits = torch.where(mask, logits, FORBIDDEN)
        self.log_probs = logits.log_softmax(-1)
        self._probs: Tensor | None = None

    @property
    def probs(self) -> Tensor:
        """The probabilities `[.., n]`, computed once."""
        if self._probs is None:
            self._probs = self.log_probs.exp()
        return self._probs

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw by a race: every choice waits for an exponential time over its probability, and the first wins."""
        # Logarithms of uniform numbers are waiting times with a minus, quicker than `exponential_`. None is 0 or
        # infinite here, so a choice of probability 0 always ends at minus infinity, where it cannot win.
        waits = torch.empty_like(self.log_probs).uniform_(SMALLEST_CHANCE, 1.0, generator=generator).log_()
        return (waits / self.probs).argmax(-1)

    def mode(self) -> Tensor:
        """Return the most likely choice."""
        return self.log_probs.argmax(-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-probability of each choice: hugely negative, but finite, for a masked one."""
        return self.log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return the entropy over the allowed choices."""
        # Networks of others mask by logits of minus infinity; 0 times that is not a number.
        return (self.probs * self.log_probs.clamp_min(FORBIDDEN)).sum(-1).neg()


class MultiDiscrete:
    """Several independent choices at once, from logits `[.., sum(nvec)]` that lie side by side, and masks likewise.

    Actions are int64 `[.., len(nvec)]`. Choices of fewer options are padded, so that all are one `Categorical`.
    """

    __slots__ = ("choices",)

    def __init__(self, logits: Tensor, nvec: Sequence[int], mask: Tensor | None = None) -> None:
        logits = full_precision(logits)
        if mask is not None:
            logits = torch.where(mask, logits, FORBIDDEN)
        self.choices = Categorical(_one_row_per_choice(logits, nvec))

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw every choice."""
        return self.choices.sample(generator)

    def mode(self) -> Tensor:
        """Return the most likely option of every choice."""
        return self.choices.mode()

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-probability of all choices together."""
        return self.choices.log_prob(actions).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy of all choices together."""
        return self.choices.entropy().sum(-1)


def _one_row_per_choice(logits: Tensor, nvec: Sequence[int]) -> Tensor:
    widest = max(nvec)
    if min(nvec) == widest:
        return logits.unflatten(-1, (len(nvec), widest))  # [.., len(nvec), widest]
    rows = [functional.pad(row, (0, widest - row.shape[-1]), value=PADDING) for row in logits.split(list(nvec), -1)]
    return torch.stack(rows, -2)  # [.., len(nvec), widest]


class Bernoulli:
    """Independent switches, from logits `[.., n]`; where the mask `[.., n]` (bool) is False a switch is always off.

    Actions are int64 0 or 1, `[.., n]`.
    """

    __slots__ = ("logits",)

    def __init__(self, logits: Tensor, mask: Tensor | None = None) -> None:
        logits = full_precision(logits)
        self.logits = logits if mask is None else torch.where(mask, logits, FORBIDDEN)

    @property
    def probs(self) -> Tensor:
        """The probability of each switch to be on."""
        return self.logits.sigmoid()

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw every switch."""
        return (torch.empty_like(self.probs).uniform_(generator=generator) < self.probs).long()

    def mode(self) -> Tensor:
        """Return what each switch more likely is; off when undecided."""
        return (self.logits > 0).long()

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-probability of all switches together."""
        surprise = functional.binary_cross_entropy_with_logits(
            self.logits, actions.to(self.logits.dtype), reduction="none"
        )
        return surprise.sum(-1).neg()

    def entropy(self) -> Tensor:
        """Return the entropy of all switches together."""
        # The cross entropy of a distribution with itself is its entropy, here without 0 * log 0.
        return functional.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none").sum(-1)


class Gaussian:
    """Independent normal axes with mean `[.., d]`, which `log_std` broadcasts to. Actions are `[.., d]`, unbounded."""

    __slots__ = ("log_std", "mean")

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean = full_precision(mean)
        self.log_std = full_precision(log_std)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw without a gradient."""
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return torch.addcmul(self.mean, self.log_std.exp(), noise).detach()

    def mode(self) -> Tensor:
        """Return the mean."""
        return self.mean

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-density of all axes together."""
        deviations = (actions - self.mean) / self.log_std.exp()
        return torch.addcmul(-HALF_LOG_TWO_PI - self.log_std, deviations, deviations, value=-0.5).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy of all axes together."""
        return (self.log_std + (HALF_LOG_TWO_PI + 0.5)).expand_as(self.mean).sum(-1)


class SquashedGaussian:
    """A Gaussian sent through tanh, so that what the environment sees is bounded.

    Actions are kept as they are before tanh, `[.., d]`: nothing has to be inverted, so a log-probability computed again
    is the one computed first. Densities and entropy are those of the squashed action in (-1, 1).
    """

    __slots__ = ("gaussian",)

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.gaussian = Gaussian(mean, log_std)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw actions before tanh, without a gradient."""
        return self.gaussian.sample(generator)

    def mode(self) -> Tensor:
        """Return the mean before tanh: the median of what comes out, where the true mode may be at an edge."""
        return self.gaussian.mean

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-density, after tanh, of actions given before it."""
        return self.gaussian.log_prob(actions) - log_tanh_slope(actions).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy after tanh: the Gaussian's plus the expected log-slope of tanh."""
        expected_slope = expected_log_tanh_slope(self.gaussian.mean, self.gaussian.log_std)
        return self.gaussian.entropy() + expected_slope.sum(-1)


class Beta:
    """Independent Beta axes, from `alpha` and `beta` `[.., d]`, both at least 1. Actions are `[.., d]` in (0, 1)."""

    __slots__ = ("alpha", "beta")

    def __init__(self, alpha: Tensor, beta: Tensor) -> None:
        self.alpha = full_precision(alpha)
        self.beta = full_precision(beta)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw without a gradient: the share that one gamma variable has of two."""
        # The operator behind torch.distributions.Gamma, which takes no generator.
        up = torch.ops.aten._standard_gamma(self.alpha.detach(), generator)
        down = torch.ops.aten._standard_gamma(self.beta.detach(), generator)
        return (up / (up + down)).clamp(OPEN_EDGE, 1.0 - OPEN_EDGE)

    def mode(self) -> Tensor:
        """Return the mean: where the density is highest jumps from bound to bound while it is nearly flat."""
        return (self.alpha / (self.alpha + self.beta)).clamp(OPEN_EDGE, 1.0 - OPEN_EDGE)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-density of all axes together."""
        towards_one = (self.alpha - 1.0) * actions.log()
        towards_zero = (self.beta - 1.0) * (-actions).log1p()
        return (towards_one + towards_zero - _log_beta(self.alpha, self.beta)).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy of all axes together."""
        alpha, beta = self.alpha, self.beta
        total = alpha + beta
        drift = (alpha - 1.0) * alpha.digamma() + (beta - 1.0) * beta.digamma() - (total - 2.0) * total.digamma()
        return (_log_beta(alpha, beta) - drift).sum(-1)


def _log_beta(alpha: Tensor, beta: Tensor) -> Tensor:
    return alpha.lgamma() + beta.lgamma() - (alpha + beta).lgamma()


class Joint:
    """Independent distributions held in a dict or tuple, nested at will; actions form the same tree."""

    __slots__ = ("parts",)

    def __init__(self, parts: Tree) -> None:
        self.parts = parts

    def sample(self, generator: torch.Generator | None = None) -> Tree:
        """Draw every part, in the order of `tree_leaves`."""
        return tree_map(lambda part: part.sample(generator), self.parts)

    def mode(self) -> Tree:
        """Return the mode of every part."""
        return tree_map(lambda part: part.mode(), self.parts)

    def log_prob(self, actions: Tree) -> Tensor:
        """Return the log-probability of all parts together."""
        return _sum_of_leaves(tree_map(lambda part, action: part.log_prob(action), self.parts, actions))

    def entropy(self) -> Tensor:
        """Return the entropy of all parts together."""
        return _sum_of_leaves(tree_map(lambda part: part.entropy(), self.parts))


def _sum_of_leaves(tree: Tree) -> Tensor:
    first, *rest = cast("list[Tensor]", tree_leaves(tree))
    for leaf in rest:
        first = first + leaf
    return first
