"""A policy that only plays: no recording, no learning, dropout off."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from twostep.policies.adapters import as_policy
from twostep.protocols import Policy, Step
from twostep.tree import Tree, tree_leaves, tree_map


class Player:
    """Chooses actions for a number of rows, with memory; inside `with`, modules are in evaluation mode.

    Args:
        action_space: The Gymnasium space of one row.
        sampling_seed: Draw actions from the distribution, repeatably; None takes its mode.
        device: Where the policy computes; None asks its parameters, or takes the CPU where it has none.
    """

    def __init__(
        self,
        policy: Any,
        action_space: Any,
        num_rows: int,
        sampling_seed: int | None,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        if isinstance(policy, torch.nn.Module) and not isinstance(policy, Policy):
            policy = as_policy(policy, action_space)
        self.policy: Policy = policy
        self.device = torch.device(device) if device is not None else device_of(policy)
        self._generator = None if sampling_seed is None else torch.Generator(self.device).manual_seed(sampling_seed)
        self._state: Tree = policy.initial_state(num_rows)
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
        actions, self._state = choose(self.policy, step, self._state, self._generator, self.device)
        return actions


def choose(
    policy: Policy, step: Step, state: Tree, generator: torch.Generator | None, device: torch.device
) -> tuple[Tree, Tree]:
    """Return what each row does next, `[B, ...]`, as the environment takes it, and the memory after that.

    Actions are drawn with the generator, or the most likely ones where there is none.
    """

    def given(leaf: Any) -> torch.Tensor:  # [1, B, ...]
        tensor = leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf)
        return (tensor.float() if tensor.is_floating_point() else tensor).to(device)[None]

    conditions = {} if step.action_masks is None else {"action_masks": tree_map(given, step.action_masks)}
    output = policy(tree_map(given, step.obs), state, given(step.episode_starts), **conditions)
    actions = output.distribution.mode() if generator is None else output.distribution.sample(generator)
    return policy.to_env(tree_map(lambda leaf: leaf[0], actions)), output.state


def to_numpy(leaf: Any) -> np.ndarray[Any, Any]:
    """Return an array on the host, whatever kind of array it was."""
    return leaf.cpu().numpy() if isinstance(leaf, torch.Tensor) else np.asarray(leaf)


def device_of(policy: Policy) -> torch.device:
    """Return where a policy's parameters are; the CPU where it has none."""
    if isinstance(policy, torch.nn.Module):
        for parameter in policy.parameters():
            return parameter.device
    return torch.device("cpu")
