"""Running statistics of observations and returns, in float64.

The freezing rule: statistics move only between updates. What a policy uses while a rollout is collected and learned
from is a copy taken before, so that the policy that learns is the policy that acted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from twostep.errors import RolloutError
from twostep.group import ALONE, Group
from twostep.tree import Tree, tree_items

Numbers = np.ndarray[Any, Any] | Tensor


class RunningMeanStd:
    """Mean and population variance of everything seen so far; merging batches keeps full precision.

    Args:
        shape: Shape of one sample; whatever comes before it in an update counts as samples.
        epsilon: Added to the variance before its root is taken. Where the variance is no larger than this, nothing has
            varied, and the deviation is 1.
        group: Whose samples it takes in: all see the same samples, if all call `update` equally often.
    """

    def __init__(self, shape: tuple[int, ...] = (), epsilon: float = 1e-8, group: Group = ALONE) -> None:
        self.shape = tuple(shape)
        self.epsilon, self.group = epsilon, group
        self.mean = np.zeros(self.shape, dtype=np.float64)
        self.var = np.ones(self.shape, dtype=np.float64)
        self.count = 0.0

    @property
    def std(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """What to divide by: never 0."""
        return np.where(self.var > self.epsilon, np.sqrt(self.var + self.epsilon), 1.0)

    def update(self, x: Numbers, valid: Numbers | None = None) -> None:
        """Take in samples, all or only those where `valid`, which has the shape of `x` without that of a sample."""
        samples = x.detach() if isinstance(x, Tensor) else torch.from_numpy(np.array(x, dtype=np.float64))
        leading = samples.dim() - len(self.shape)
        if leading < 0 or tuple(samples.shape[leading:]) != self.shape:
            raise RolloutError(
                f"Samples of shape {list(samples.shape)} do not end in {list(self.shape)}, which is one sample here. "
                "Use RunningMeanStd(shape=...) with the shape of one sample."
            )
        if valid is not None:
            samples = samples[torch.as_tensor(valid, dtype=torch.bool, device=samples.device)]
        samples = samples.reshape(-1, *self.shape).double()
        mean = samples.mean(dim=0)
        var = (samples - mean).square_().mean(dim=0)
        moments = torch.stack((mean, var, torch.full_like(mean, len(samples)))).cpu()
        for mean, var, count in self.group.gather(moments).numpy():
            if count.flat[0]:
                self._merge(mean, var, float(count.flat[0]))

    def _merge(self, mean: np.ndarray[Any, Any], var: np.ndarray[Any, Any], count: float) -> None:
        """Join two sets of samples known by their moments (Chan, Golub and LeVeque 1983)."""
        total = self.count + count
        shift = mean - self.mean
        share = count / total
        self.var = np.asarray(self.var * (1 - share) + var * share + shift**2 * (share * (1 - share)))
        self.mean = np.asarray(self.mean + shift * share)
        self.count = total

    def normalize(self, x: Tensor) -> Tensor:
        """Return `(x - mean) / sqrt(var + epsilon)`, in the precision of `x`, computed in float64."""
        mean, std = (torch.as_tensor(part, device=x.device) for part in (self.mean, self.std))
        return ((x.double() - mean) / std).to(x.dtype if x.is_floating_point() else torch.float32)

    def state_dict(self) -> dict[str, Any]:
        """Return copies, as tensors and a number."""
        return {"mean": torch.tensor(self.mean), "var": torch.tensor(self.var), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        mean, var = (torch.as_tensor(state[name]).double().cpu().clone().numpy() for name in ("mean", "var"))
        if mean.shape != self.shape or var.shape != self.shape:
            raise RolloutError(
                f"Saved statistics are of samples of shape {list(mean.shape)}, these of {list(self.shape)}. "
                "Load them where the same observations are normalised."
            )
        self.mean, self.var, self.count = mean, var, float(state["count"])


class ReturnNormalizer:
    """Brings returns to a common size: divides by their running deviation and never subtracts the mean.

    Subtracting it would change what 0 means at the end of an episode. The scale is that of the last `update`, so it
    moves only between updates.
    """

    def __init__(self, epsilon: float = 1e-8, group: Group = ALONE) -> None:
        self.rms = RunningMeanStd((), epsilon, group)

    @property
    def scale(self) -> float:
        """The deviation; 1 before there are data, and while all returns are alike."""
        return float(self.rms.std) if self.rms.count else 1.0

    def update(self, returns: Numbers, valid: Numbers | None = None) -> None:
        """Take in raw returns, all or only those where `valid`."""
        self.rms.update(returns, valid)

    def normalize(self, returns: Tensor) -> Tensor:
        """Bring raw returns or values to the critic's unit."""
        return returns / self.scale

    def denormalize(self, values: Tensor) -> Tensor:
        """Bring what the critic says back to raw units."""
        return values * self.scale

    def state_dict(self) -> dict[str, Any]:
        """Return the running statistics."""
        return self.rms.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.rms.load_state_dict(state)


class ObservationNormalizer:
    """Running statistics of every floating-point leaf of an observation tree.

    Pictures in bytes and categories have none. A policy never sees this object, only what `frozen`
    returned before the rollout began.
    """

    def __init__(self, epsilon: float = 1e-8, group: Group = ALONE) -> None:
        self.epsilon, self.group = epsilon, group
        self.leaves: dict[str, RunningMeanStd] = {}

    def update(self, obs: Tree, valid: Numbers | None = None, leading: int = 2) -> None:
        """Take in raw observations, each leaf with `leading` dimensions of samples: `[T, B, ...]`."""
        for path, leaf in tree_items(obs):
            if not _is_floating(leaf):
                continue
            if path not in self.leaves:
                self.leaves[path] = RunningMeanStd(tuple(leaf.shape[leading:]), self.epsilon, self.group)
            self.leaves[path].update(leaf, valid)

    def frozen(self) -> dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        """Return copies of mean and deviation by leaf path; deviations are never 0."""
        return {path: (leaf.mean.copy(), leaf.std.copy()) for path, leaf in self.leaves.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the running statistics by leaf path."""
        return {path: leaf.state_dict() for path, leaf in self.leaves.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.leaves = {}
        for path, leaf_state in state.items():
            shape = tuple(torch.as_tensor(leaf_state["mean"]).shape)
            self.leaves[path] = RunningMeanStd(shape, self.epsilon, self.group)
            self.leaves[path].load_state_dict(leaf_state)


def _is_floating(leaf: Numbers) -> bool:
    if isinstance(leaf, Tensor):
        return leaf.is_floating_point()
    return bool(np.issubdtype(leaf.dtype, np.floating))
