"""From features to a distribution over actions, and from its actions to what the environment takes.

`head_for` is the one place that asks what kind of action space there is.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from twostep.errors import ConfigError, PolicyError
from twostep.policies.boxes import BOX_POLICIES, DEVIATIONS, Bounds, BoxPolicy
from twostep.policies.distributions import Bernoulli, Categorical, Joint, MultiDiscrete
from twostep.protocols import Distribution
from twostep.tree import Tree, tree_structure

Option = TypeVar("Option")


class ActionHead(nn.Module):
    """Features in, a distribution out; and its actions turned into the environment's."""

    def forward(self, features: Tensor, masks: Tree = None) -> Distribution:
        """Map features `[.., F]` to a distribution; masks are bool tensors, structured like the space."""
        raise NotImplementedError("forward(features, masks=None) -> Distribution")

    def to_env(self, actions: Tree) -> Tree:
        """Turn sampled actions into members of the space: int64 for choices, float32 for boxes."""
        raise NotImplementedError("to_env(actions) -> actions")

    def check_masks(self, masks: Tree) -> None:
        """Refuse masks from outside that this space cannot use, naming the first bad row."""
        raise NotImplementedError("check_masks(masks) -> None")


def head_for(
    space: gym.Space[Any],
    in_features: int,
    *,
    action_dist: str = "auto",
    std: str = "learned",
    init_std: float = 1.0,
    gain: float = 0.01,
) -> ActionHead:
    """Build the head of an action space; `action_dist`, `std` and `init_std` concern only the boxes in it."""
    box_policy = _named("action_dist", action_dist, BOX_POLICIES)
    deviation = _named("std", std, DEVIATIONS)
    if not 0.0 < init_std < math.inf:
        raise ConfigError(f"init_std={init_std} must be positive and finite: 1.0 is a good start.")

    def build(space: gym.Space[Any]) -> ActionHead:
        if isinstance(space, gym.spaces.Discrete):
            return DiscreteHead(space, in_features, gain)
        if isinstance(space, gym.spaces.MultiDiscrete):
            return MultiDiscreteHead(space, in_features, gain)
        if isinstance(space, gym.spaces.MultiBinary):
            return MultiBinaryHead(space, in_features, gain)
        if isinstance(space, gym.spaces.Box) and math.prod(space.shape):
            bounds = Bounds(space)
            return BoxHead(box_policy(bounds, deviation(bounds.num_axes, init_std)), in_features, gain)
        if isinstance(space, gym.spaces.Dict) and space.spaces:
            return DictHead({name: build(part) for name, part in space.spaces.items()})
        if isinstance(space, gym.spaces.Tuple) and space.spaces:
            return TupleHead([build(part) for part in space.spaces])
        raise ConfigError(
            f"There is no action head for {space}. Actions must be Discrete, MultiDiscrete, MultiBinary, Box, or a "
            "Dict or Tuple that holds some of these: wrap the environment so that it takes one of them."
        )

    return build(space)


class DiscreteHead(ActionHead):
    """One choice; masks are `[.., n]`."""

    def __init__(self, space: gym.spaces.Discrete, in_features: int, gain: float) -> None:
        super().__init__()
        self.num_options = int(space.n)
        self.start = int(space.start)
        self.linear = _linear(in_features, self.num_options, gain)

    def forward(self, features: Tensor, masks: Tree = None) -> Categorical:
        """See `ActionHead`."""
        return Categorical(self.linear(features), masks)

    def to_env(self, actions: Tree) -> Tree:
        """See `ActionHead`."""
        return actions + self.start if self.start else actions

    def check_masks(self, masks: Tree) -> None:
        """See `ActionHead`."""
        check_masks(masks, (self.num_options,))


class MultiDiscreteHead(ActionHead):
    """Several choices in one flat row; masks are `[.., sum of nvec]`, one choice after another."""

    start: Tensor

    def __init__(self, space: gym.spaces.MultiDiscrete, in_features: int, gain: float) -> None:
        super().__init__()
        self.nvec = tuple(int(options) for options in space.nvec.flat)
        self.register_buffer("start", torch.as_tensor(np.asarray(space.start, dtype=np.int64)), persistent=False)
        self.linear = _linear(in_features, sum(self.nvec), gain)

    def forward(self, features: Tensor, masks: Tree = None) -> MultiDiscrete:
        """See `ActionHead`."""
        return MultiDiscrete(self.linear(features), self.nvec, masks)

    def to_env(self, actions: Tree) -> Tree:
        """See `ActionHead`."""
        return actions.reshape((*actions.shape[:-1], *self.start.shape)) + self.start

    def check_masks(self, masks: Tree) -> None:
        """See `ActionHead`."""
        check_masks(masks, self.nvec)


class MultiBinaryHead(ActionHead):
    """Switches in one flat row; a mask, flat or in the space's shape, keeps a switch off where it is False."""

    def __init__(self, space: gym.spaces.MultiBinary, in_features: int, gain: float) -> None:
        super().__init__()
        self.shape = space.shape
        self.num_switches = math.prod(self.shape)
        self.linear = _linear(in_features, self.num_switches, gain)

    def forward(self, features: Tensor, masks: Tree = None) -> Bernoulli:
        """See `ActionHead`."""
        logits = self.linear(features)
        return Bernoulli(logits, None if masks is None else masks.reshape(logits.shape))

    def to_env(self, actions: Tree) -> Tree:
        """See `ActionHead`."""
        return actions.reshape((*actions.shape[:-1], *self.shape))

    def check_masks(self, masks: Tree) -> None:
        """See `ActionHead`; to have every switch off is an action too, so no row can allow too little."""
        _check_bool(masks)
        endings = {self.shape, (self.num_switches,)}
        if not any(tuple(masks.shape[-len(ending) :]) == ending for ending in endings):
            raise PolicyError(
                f"Action masks of shape {tuple(masks.shape)} do not fit: the last dimensions must be "
                f"{' or '.join(str(ending) for ending in sorted(endings))}, one bool per switch."
            )


class BoxHead(ActionHead):
    """Continuous actions, flat while learning; there are no masks for them."""

    def __init__(self, policy: BoxPolicy, in_features: int, gain: float) -> None:
        super().__init__()
        self.policy = policy
        self.linear = _linear(in_features, policy.num_outputs, gain)

    def forward(self, features: Tensor, masks: Tree = None) -> Distribution:
        """See `ActionHead`."""
        if masks is not None:
            self.check_masks(masks)
        return self.policy(self.linear(features))

    def to_env(self, actions: Tree) -> Tree:
        """See `ActionHead`."""
        return self.policy.to_env(actions)

    def check_masks(self, masks: Tree) -> None:
        """See `ActionHead`."""
        raise PolicyError(
            "Action masks came for a box: continuous actions have nothing to leave out. Give None for this part, or "
            "offer the choice as Discrete beside the box."
        )


class DictHead(ActionHead):
    """One head per named part; masks are a dict that may leave parts out."""

    def __init__(self, parts: Mapping[str, ActionHead]) -> None:
        super().__init__()
        self.names = sorted(parts)
        self.parts = nn.ModuleList(parts[name] for name in self.names)

    def forward(self, features: Tensor, masks: Tree = None) -> Joint:
        """See `ActionHead`."""
        masks = masks or {}
        return Joint({name: part(features, masks.get(name)) for name, part in self._items()})

    def to_env(self, actions: Tree) -> Tree:
        """See `ActionHead`."""
        return {name: part.to_env(actions[name]) for name, part in self._items()}

    def check_masks(self, masks: Tree) -> None:
        """See `ActionHead`."""
        if not isinstance(masks, Mapping) or not set(cast("Mapping[str, Any]", masks)) <= set(self.names):
            raise PolicyError(f"Action masks must be a dict whose keys are out of {self.names}, not {_outline(masks)}.")
        for name, part in self._items():
            if masks.get(name) is not None:
                part.check_masks(masks[name])

    def _items(self) -> Iterable[tuple[str, ActionHead]]:
        return zip(self.names, cast("Iterable[ActionHead]", self.parts), strict=True)


class TupleHead(ActionHead):
    """One head per position; masks are a tuple as long, with None where there are none."""

    def __init__(self, parts: Sequence[ActionHead]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, features: Tensor, masks: Tree = None) -> Joint:
        """See `ActionHead`."""
        masks = masks or (None,) * len(self.parts)
        return Joint(tuple(part(features, mask) for part, mask in zip(self.parts, masks, strict=True)))

    def to_env(self, actions: Tree) -> Tree:
        """See `ActionHead`."""
        return tuple(part.to_env(action) for part, action in zip(self._heads(), actions, strict=True))

    def check_masks(self, masks: Tree) -> None:
        """See `ActionHead`."""
        if not isinstance(masks, tuple) or len(cast("tuple[Any, ...]", masks)) != len(self.parts):
            raise PolicyError(f"Action masks must be a tuple of {len(self.parts)}, not {_outline(masks)}.")
        for part, mask in zip(self._heads(), cast("tuple[Any, ...]", masks), strict=True):
            if mask is not None:
                part.check_masks(mask)

    def _heads(self) -> Iterable[ActionHead]:
        return cast("Iterable[ActionHead]", self.parts)


def check_masks(masks: Any, nvec: Sequence[int] | None = None) -> None:
    """Refuse masks `[.., n]`, bool arrays or tensors, where some row allows nothing; name the first such row.

    `nvec` says how many options each choice has: every choice needs one that is allowed, and `n` must be their sum.
    """
    _check_bool(masks)
    nvec = (masks.shape[-1],) if nvec is None else nvec
    if masks.shape[-1] != sum(nvec):
        raise PolicyError(
            f"Action masks of shape {tuple(masks.shape)} must end in {sum(nvec)}, one bool per option of {tuple(nvec)}."
        )
    first = 0
    for choice, options in enumerate(nvec):
        possible = masks[..., first : first + options].any(-1)
        first += options
        if not bool(possible.all()):
            row = tuple(torch.as_tensor(possible).logical_not().nonzero()[0].tolist())
            where = f" for choice {choice}" if len(nvec) > 1 else ""
            raise PolicyError(
                f"The action mask of row {row[0] if len(row) == 1 else row} allows nothing{where}: every row needs at "
                "least one allowed action. Allow one that does nothing, or end the episode there."
            )


def _check_bool(masks: Any) -> None:
    if not str(masks.dtype).endswith("bool"):
        raise PolicyError(f"Action masks of {masks.dtype} must be bool: give `masks != 0`.")


def _outline(masks: Tree) -> str:
    return f"{type(masks).__name__} {tree_structure(masks)}"


def _linear(in_features: int, out_features: int, gain: float) -> nn.Linear:
    layer = nn.Linear(in_features, out_features)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _named(setting: str, name: str, options: Mapping[str, Option]) -> Option:
    if name in options:
        return options[name]
    near = difflib.get_close_matches(name, options, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"{setting}={name!r} is not one of {', '.join(options)}.{hint}")
