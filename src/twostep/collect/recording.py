"""How one rollout is written down: each kind of number by the cheapest way there is."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from twostep.collect.acting import Acted
from twostep.protocols import Step
from twostep.rollout import RolloutBuffer
from twostep.tree import Tree, tree_leaves, tree_map, tree_stack

FLAGS = ("terminated", "truncated")


class Cut(NamedTuple):
    """Rows that were only cut at a step, and what is needed to value where they truly were."""

    step: int
    rows: np.ndarray
    final_obs: Tree
    state: Tree


class Recording:
    """Writes steps into a rollout.

    On a CPU the environment's arrays go straight into the rollout's memory. On another device observations cross once
    per step, rewards and flags once per rollout. What the policy puts out is kept as it comes and joined at the end.
    """

    def __init__(self, rollout: RolloutBuffer, first: Step) -> None:
        self.rollout = rollout
        self.tensors_given = isinstance(tree_leaves(first.obs)[0], Tensor)
        self.direct = rollout.device.type == "cpu" and not self.tensors_given
        names = ("rewards", *FLAGS, "valid", "episode_starts")
        columns = {name: getattr(rollout, name) for name in names}
        self.host: dict[str, Any] = columns
        if not self.tensors_given:
            self.host = {name: _host(column) for name, column in columns.items()}
        self.obs = tree_map(_host, rollout.obs) if self.direct else rollout.obs
        self.masks = tree_map(_host, rollout.action_masks) if self.direct else rollout.action_masks
        self.outputs: list[tuple[Tree, Tensor, Tensor]] = []
        self.cuts: list[Cut] = []
        self.infos: dict[tuple[int, int], dict[str, Any]] = {}

    def before(self, t: int, step: Step) -> tuple[Tree, Tensor, Tree]:
        """Store what the policy is about to see; return it from where it is stored, `[1, B, ...]`."""
        rollout = self.rollout
        _store(self.obs, t, step.obs)
        self.host["episode_starts"][t] = step.episode_starts
        starts = rollout.episode_starts[t : t + 1]
        if not self.direct and not self.tensors_given:
            starts.copy_(torch.from_numpy(self.host["episode_starts"][t : t + 1]), non_blocking=True)
        masks = None
        if rollout.action_masks is not None:
            _store(self.masks, t, step.action_masks)
            masks = tree_map(lambda leaf: leaf[t : t + 1], rollout.action_masks)
        return tree_map(lambda leaf: leaf[t : t + 1], rollout.obs), starts, masks

    def acted(self, acted: Acted) -> None:
        """Keep what the policy put out, each `[1, B, ...]`."""
        self.outputs.append((acted.actions, acted.logprobs, acted.values))

    def outward(self, actions: Tree) -> Tree:
        """Bring actions to where the environment takes them."""
        return actions if self.tensors_given else tree_map(lambda leaf: leaf.cpu().numpy(), actions)

    def after(self, t: int, step: Step, state: Tree) -> None:
        """Store what the environment answered; `state` is the memory after the step."""
        host = self.host
        host["rewards"][t] = step.rewards
        host["terminated"][t] = step.terminated
        host["truncated"][t] = step.truncated
        if step.valid is not None:
            host["valid"][t] = step.valid
        if step.final_rows is not None:
            self._keep_cuts(t, step, state)
        for row, info in step.infos.items():
            self.infos[t, row] = info

    def _keep_cuts(self, t: int, step: Step, state: Tree) -> None:
        rows = step.final_rows
        only_cut = step.truncated[rows] & ~step.terminated[rows]
        if not only_cut.any():
            return
        cut_rows = rows[only_cut]
        at = torch.as_tensor(cut_rows, device=self.rollout.device)
        kept = tree_map(lambda leaf: leaf[at], state)
        final_obs = tree_map(lambda leaf: leaf[only_cut], step.final_obs)
        self.cuts.append(Cut(t, np.asarray(torch.as_tensor(cut_rows).cpu()), final_obs, kept))

    def finish(self) -> dict[str, np.ndarray]:
        """Join the policy's outputs, upload what waits on the host, and return the columns as host arrays."""
        rollout = self.rollout
        actions, logprobs, values = zip(*self.outputs, strict=True)
        joined = tree_stack(torch.cat, list(actions))
        tree_map(lambda kept, new: kept.copy_(new), rollout.actions, joined)
        torch.cat(logprobs, out=rollout.logprobs)
        torch.cat(values, out=rollout.values)
        if self.tensors_given:
            return {name: column.cpu().numpy() for name, column in self.host.items()}
        if not self.direct:
            for name, column in self.host.items():
                getattr(rollout, name).copy_(torch.from_numpy(column), non_blocking=True)
        return self.host


def _host(leaf: Tensor) -> np.ndarray:
    """Return the leaf's own memory on a CPU, memory to upload from on another device."""
    return leaf.numpy() if leaf.device.type == "cpu" else leaf.cpu().pin_memory().numpy()


def _store(target: Tree, t: int, source: Tree) -> None:
    def store(kept: Any, new: Any) -> None:
        if isinstance(kept, Tensor):
            kept[t].copy_(torch.as_tensor(new), non_blocking=True)
        else:
            kept[t] = new

    tree_map(store, target, source)
