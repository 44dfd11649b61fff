"""Letting numbers that are not finite leave no trace beyond the rollout that they were left out of."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from twostep.collect.faults import Fault
from twostep.protocols import Step
from twostep.tree import tree_map

if TYPE_CHECKING:
    from twostep.collect.collector import RolloutCollector

_LOG = logging.getLogger("twostep.collect")


def forget(collector: RolloutCollector, fault: Fault) -> None:
    """Empty the memory of the rows with a fault, and count their running episodes nowhere.

    Where the collector's `on_nonfinite` is "reset", their environments begin new episodes.
    """
    rows = collector.vecenv.num_rows
    hit = torch.zeros(rows, dtype=torch.bool, device=collector.device)
    hit[fault.rows] = True
    if collector.on_nonfinite == "reset":
        hit = _begin_again(collector, hit)
    _LOG.warning("%s Left out: %d of %d rows.", fault.message, len(fault.rows), rows)
    step = collector.step
    if step is None:
        return
    fresh = collector.policy.initial_state(rows)
    collector.state = tree_map(lambda new, old: torch.where(_like(hit, old), new, old), fresh, collector.state)
    begun = np.asarray(torch.as_tensor(step.episode_starts).cpu())
    at = hit.cpu().numpy()
    collector.tracker.lose(at, begun[at])


def _begin_again(collector: RolloutCollector, hit: Tensor) -> Tensor:
    """Begin new episodes of the environments that these rows belong to; return all rows of them."""
    vecenv: Any = collector.vecenv
    if "indices" not in inspect.signature(vecenv.reset).parameters or collector.step is None:
        collector.reset()  # they can only begin all together
        return torch.ones_like(hit)
    rows_per_env = getattr(vecenv, "rows_per_env", 1)
    of_env = hit.reshape(-1, rows_per_env).any(1)
    envs = of_env.nonzero()[:, 0].tolist()
    before = np.array(collector.step.episode_starts)
    step = vecenv.reset(indices=envs) if collector.tasks is None else collector.tasks.begin_again(envs)
    collector.step = Step(step.obs, before | np.asarray(step.episode_starts), action_masks=step.action_masks)
    return of_env.repeat_interleave(rows_per_env)


def _like(rows: Tensor, leaf: Tensor) -> Tensor:
    """Bring `[B]` to the dimensions of a leaf `[B, ...]`."""
    return rows.reshape(-1, *[1] * (leaf.dim() - 1))
