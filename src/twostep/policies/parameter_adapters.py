"""Networks that return the parameters of a distribution and a value, with memory passed through them or without."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import gymnasium as gym
import torch
from torch import Tensor, nn

from twostep.errors import PolicyError
from twostep.policies.adapter_base import Adapter, forgotten, outputs_of, per_row
from twostep.policies.distributions import Gaussian
from twostep.policies.foreign_state import ForeignState
from twostep.policies.heads import head_for
from twostep.protocols import Distribution, PolicyOutput
from twostep.tree import Tree, tree_map

FIXED_STD = 0.5
"""Deviation of continuous actions where a network gives a mean only."""

LOGITS, VALUE = "action_logits", "value"


class ParameterHead(nn.Module):
    """Turns what a network puts out into a distribution: logits, a mean, or a mean and a log_std side by side."""

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()
        if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
            raise PolicyError(
                f"The action space {space} has several parts, which one row of network outputs does not describe. Use "
                "ActorCritic, or write a policy with forward, initial_state and to_env as in twostep.protocols.Policy."
            )
        self.space = space
        self.head = head_for(space, 1, std="fixed", init_std=FIXED_STD)
        self.width = cast("nn.Linear", self.head.linear).out_features
        self.head.linear = nn.Identity()  # the network's outputs are the parameters already

    def forward(self, parameters: Tensor, masks: Tree) -> Distribution:
        """Map parameters `[.., width]` to a distribution."""
        width = parameters.shape[-1]
        if isinstance(self.space, gym.spaces.Box) and width == 2 * self.width:
            return Gaussian(*parameters.chunk(2, -1))
        if width != self.width:
            also = f" or {2 * self.width} (mean and log_std)" if isinstance(self.space, gym.spaces.Box) else ""
            raise PolicyError(
                f"The network puts out {width} numbers per row; {self.space} needs {self.width}{also}. "
                "Change its last layer."
            )
        return self.head(parameters, masks)

    def flat(self, parameters: Any, rows: int, network: nn.Module) -> Tensor:
        """Return the parameters as `[rows, width]`; a pair is a mean and a log_std."""
        if isinstance(parameters, (tuple, list)) and len(parameters) == 2:
            mean, log_std = cast("tuple[Tensor, Tensor]", parameters)
            parameters = torch.cat((mean, log_std.expand_as(mean)), -1)
        if isinstance(parameters, Tensor) and parameters.dim() >= 2 and parameters.shape[0] == rows:
            return parameters.flatten(1)
        shown = tuple(parameters.shape) if isinstance(parameters, Tensor) else type(parameters).__name__
        raise PolicyError(
            f"{type(network).__name__} returned action parameters {shown} for {rows} rows; they must be a tensor of "
            f"shape ({rows}, {self.width}): logits of the choices, or the mean of a continuous action."
        )


class ParameterAdapter(Adapter):
    """`module(obs) -> (parameters, value)`, or a dict with `action_logits` and `value`."""

    def __init__(self, module: nn.Module, space: gym.Space[Any], takes: Iterable[str]) -> None:
        super().__init__(module, takes, None)
        self.head = ParameterHead(space)
        self.set_action_space(space)

    def forward(self, obs: Tree, state: Tree, episode_starts: Tensor, **conditions: Tree) -> PolicyOutput:
        """See `protocols.Policy`."""
        shape, rows = episode_starts.shape, episode_starts.numel()
        masks = _masks_for(self, conditions)
        keywords = self.conditioned(conditions, lambda leaf: leaf.flatten(0, 1))
        result = self.module(tree_map(lambda leaf: leaf.flatten(0, 1), obs), **keywords)
        parameters, value = self._named(result)
        flat = self.head.flat(parameters, rows, self.module)
        values = per_row(value, rows, "values", self.module).view(shape)
        return PolicyOutput(self.head(flat.unflatten(0, shape), masks), values, state)

    def _named(self, result: Any) -> tuple[Any, ...]:
        if not isinstance(result, Mapping):
            return outputs_of(result, ("action parameters", "value"), self.module)
        named = cast("Mapping[str, Any]", result)
        if LOGITS not in named or VALUE not in named:
            raise PolicyError(
                f"{type(self.module).__name__} returned a dict of {', '.join(sorted(named))}; it must have "
                f"'{LOGITS}' and '{VALUE}'."
            )
        return named[LOGITS], named[VALUE]

    def to_env(self, actions: Tree) -> Tree:
        """Turn sampled actions into what the environment takes."""
        return self.head.head.to_env(actions)


class RecurrentParameterAdapter(Adapter):
    """`module(obs, hidden) -> (parameters, value, new_hidden)`, called one step after another."""

    def __init__(self, module: nn.Module, space: gym.Space[Any], takes: Iterable[str], memory: ForeignState) -> None:
        super().__init__(module, takes, memory)
        self.memory: ForeignState = memory
        self.head = ParameterHead(space)
        self.set_action_space(space)

    def forward(self, obs: Tree, state: Tree, episode_starts: Tensor, **conditions: Tree) -> PolicyOutput:
        """See `protocols.Policy`."""
        rows = episode_starts.shape[1]
        empty = self.initial_state(rows)
        masks = _masks_for(self, conditions)
        parameters: list[Tensor] = []
        values: list[Tensor] = []
        for t, starts in enumerate(episode_starts):
            keywords = self.conditioned(conditions, lambda leaf, t=t: leaf[t])
            hidden = self.memory.from_rows(forgotten(state, starts, empty))
            result = self.module(tree_map(lambda leaf, t=t: leaf[t], obs), hidden, **keywords)
            step = outputs_of(result, ("action parameters", "value", "new hidden state"), self.module)
            parameters.append(self.head.flat(step[0], rows, self.module))
            values.append(per_row(step[1], rows, "values", self.module))
            state = self.memory.to_rows(step[2])
        return PolicyOutput(self.head(torch.stack(parameters), masks), torch.stack(values), state)

    def to_env(self, actions: Tree) -> Tree:
        """Turn sampled actions into what the environment takes."""
        return self.head.head.to_env(actions)


def _masks_for(adapter: Adapter, conditions: dict[str, Tree]) -> Tree:
    """Return the masks; a network that does not take them itself is spared them."""
    masks = conditions.get("action_masks")
    if adapter.keyword_for("action_masks") is None:
        conditions.pop("action_masks", None)
    return masks
