"""Where running episodes stand, so that a resumed run goes on in the middle of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from twostep.checkpoint import LARGEST_MANIFEST, pack
from twostep.errors import StateError
from twostep.protocols import RowEnv, Stateful, Step
from twostep.tree import tree_map

if TYPE_CHECKING:
    from twostep.collect.collector import RolloutCollector

_MANY = 64
"""Rows from which on the size of their state is looked at."""


def kept(collector: RolloutCollector) -> tuple[dict[str, Any] | None, str]:
    """Return the state of all running episodes; None, and why, where the environments have none to give."""
    step = collector.step
    if step is None:
        return None, ""
    try:
        envs = _stateful(collector.vecenv).state_dict()
    except StateError as error:
        return None, str(error)
    size = len(json.dumps(pack(envs)[1])) if collector.vecenv.num_rows >= _MANY else 0
    if size > LARGEST_MANIFEST // 2:
        return None, f"their state takes {size / 2**20:.0f} MiB of JSON, more than a manifest holds beside the rest"
    seen = (step.obs, step.episode_starts, step.action_masks)
    state = {
        "envs": envs,
        "tasks": None if collector.tasks is None else collector.tasks.state_dict(),
        "seen": [tree_map(_copied, part) for part in seen],
        "memory": tree_map(lambda leaf: leaf.detach().clone(), collector.state),
        "episodes": collector.tracker.state_dict(),
    }
    return state, ""


def taken_up(collector: RolloutCollector, state: dict[str, Any] | None) -> str:
    """Let episodes go on where `kept` was called; return why they cannot, empty where they do."""
    if state is None:
        return "the checkpoint holds no running episodes"
    rows = len(state["episodes"]["returns"])
    if rows != collector.vecenv.num_rows:
        return f"there were {rows} rows, and now are {collector.vecenv.num_rows}"
    if (state["tasks"] is None) != (collector.tasks is None):
        return "there is a curriculum only before or only after"
    try:
        _stateful(collector.vecenv).load_state_dict(state["envs"])
    except StateError as error:
        return str(error)
    if collector.tasks is not None:
        collector.tasks.load_state_dict(state["tasks"])

    def placed(leaf: Any) -> Any:
        return leaf.to(collector.device) if isinstance(leaf, Tensor) else leaf

    obs, starts, masks = (tree_map(placed, part) for part in state["seen"])
    collector.step = Step(obs, starts, action_masks=masks)
    collector.state = tree_map(placed, state["memory"])
    collector.tracker.load_state_dict(state["episodes"])
    return ""


def _stateful(vecenv: RowEnv) -> Stateful:
    if not isinstance(vecenv, Stateful):
        raise StateError(f"{type(vecenv).__name__} has no state_dict() and load_state_dict(state).")
    return vecenv


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else np.array(leaf)
