"""A policy that only plays: no recording, no learning, dropout off."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from twostep.policies.adapters import as_policy
from twostep.protocols import Policy, RowEnv, Step
from twostep.tree import Tree, tree_leaves, tree_map


class Player:
    """Chooses actions for all rows of an environment, with memory; inside `with`, modules are in evaluation mode.

    Args:
        sampling_seed: Draw actions from the distribution, repeatably; None takes its mode.
        device: Where the policy computes; None asks its parameters, or takes the CPU where it has none.
    """

    def __init__(
        self, policy: Any, env: RowEnv, sampling_seed: int | None, *, device: torch.device | str | None = None
    ) -> None:
        if isinstance(policy, torch.nn.Module) and not isinstance(policy, Policy):
            policy = as_policy(policy, env.action_space)
        self.policy: Policy = policy
        self.device = torch.device(device) if device is not None else _device_of(policy)
        self._generator = None if sampling_seed is None else torch.Generator(self.device).manual_seed(sampling_seed)
        self._state: Tree = policy.initial_state(env.num_rows)
        self._were_training: list[torch.nn.Module] = []

    def __enter__(self) -> Player:
        modules = list(self.policy.modules()) if isinstance(self.policy, torch.nn.Module) else []
        self._were_training = [module for module in modules if module.training]
        for module in self._were_training:
            module.training = False
        return self

    def __exit__(self, *_: object) -> None:
        for module in self._were_training:
            module.training = True

    def act(self, step: Step) -> Tree:
        """Return what each row does next, `[B, ...]`, as arrays of the environment's kind that it may change."""
        speaks_tensors = any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(step.obs))
        return tree_map(torch.clone if speaks_tensors else to_numpy, self._choose(step))

    @torch.inference_mode()
    def _choose(self, step: Step) -> Tree:
        conditions = {} if step.action_masks is None else {"action_masks": tree_map(self._given, step.action_masks)}
        obs, starts = tree_map(self._given, step.obs), self._given(step.episode_starts)
        output = self.policy(obs, self._state, starts, **conditions)
        self._state = output.state
        distribution = output.distribution
        actions = distribution.mode() if self._generator is None else distribution.sample(self._generator)
        return self.policy.to_env(tree_map(lambda leaf: leaf[0], actions))

    def _given(self, leaf: Any) -> torch.Tensor:
        """Return `[1, B, ...]` on the policy's device."""
        tensor = leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf)
        tensor = tensor.float() if tensor.dtype == torch.float64 else tensor
        return tensor.to(self.device)[None]


def to_numpy(leaf: Any) -> np.ndarray[Any, Any]:
    """Return an array on the host, whatever kind of array it was."""
    return leaf.cpu().numpy() if isinstance(leaf, torch.Tensor) else np.asarray(leaf)


def _device_of(policy: Policy) -> torch.device:
    if isinstance(policy, torch.nn.Module):
        for parameter in policy.parameters():
            return parameter.device
    return torch.device("cpu")
