"""From features to a distribution over actions, and from its actions to what the environment takes.

`head_for` is the one place that asks what kind of action space there is.
"""

from __future__ import annotations

import difflib
import functools
import math
import operator
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

    def require_form(self, masks: Tree) -> None:
        """Refuse masks from outside, tensors or arrays, whose structure, width or type this space cannot use."""
        raise NotImplementedError("require_form(masks) -> None")

    def stuck(self, masks: Tree) -> Any:
        """Tell which rows `[..]` of masks of the right form allow nothing at all; None where none can."""
        raise NotImplementedError("stuck(masks) -> Tensor | None")

    def example(self) -> Tree:
        """Return one sampled action, for its structure and shapes."""
        raise NotImplementedError("example() -> actions")

    def misplaced(self, actions: Tree) -> Tensor | None:
        """Tell which rows `[..]` of sampled actions are none of this space's; None where all are."""
        raise NotImplementedError("misplaced(actions) -> Tensor | None")


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

    def require_form(self, masks: Tree) -> None:
        """See `ActionHead`."""
        _require_width(masks, (self.num_options,))

    def stuck(self, masks: Tree) -> Any:
        """See `ActionHead`."""
        return ~masks.any(-1)

    def example(self) -> Tree:
        """See `ActionHead`."""
        return torch.zeros((), dtype=torch.int64)

    def misplaced(self, actions: Tree) -> Tensor | None:
        """See `ActionHead`."""
        return (actions < 0) | (actions >= self.num_options)


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

    def require_form(self, masks: Tree) -> None:
        """See `ActionHead`."""
        _require_width(masks, self.nvec)

    def stuck(self, masks: Tree) -> Any:
        """See `ActionHead`; one choice without an option is enough."""
        ends = np.cumsum(self.nvec).tolist()
        return _any([~masks[..., end - count : end].any(-1) for count, end in zip(self.nvec, ends, strict=True)])

    def example(self) -> Tree:
        """See `ActionHead`."""
        return torch.zeros(len(self.nvec), dtype=torch.int64)

    def misplaced(self, actions: Tree) -> Tensor | None:
        """See `ActionHead`."""
        options = torch.tensor(self.nvec, device=actions.device)
        return ((actions < 0) | (actions >= options)).any(-1)


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

    def require_form(self, masks: Tree) -> None:
        """See `ActionHead`."""
        _check_bool(masks)
        endings = {self.shape, (self.num_switches,)}
        if not any(tuple(masks.shape[-len(ending) :]) == ending for ending in endings):
            raise PolicyError(
                f"Action masks of shape {tuple(masks.shape)} do not fit: the last dimensions must be "
                f"{' or '.join(str(ending) for ending in sorted(endings))}, one bool per switch."
            )

    def stuck(self, masks: Tree) -> Any:
        """See `ActionHead`; to have every switch off is an action too, so no row can allow too little."""
        return None

    def example(self) -> Tree:
        """See `ActionHead`."""
        return torch.zeros(self.num_switches, dtype=torch.int64)

    def misplaced(self, actions: Tree) -> Tensor | None:
        """See `ActionHead`."""
        return ((actions != 0) & (actions != 1)).any(-1)


class BoxHead(ActionHead):
    """Continuous actions, flat while learning; there are no masks for them."""

    def __init__(self, policy: BoxPolicy, in_features: int, gain: float) -> None:
        super().__init__()
        self.policy = policy
        self.linear = _linear(in_features, policy.num_outputs, gain)

    def forward(self, features: Tensor, masks: Tree = None) -> Distribution:
        """See `ActionHead`."""
        if masks is not None:
            self.require_form(masks)
        return self.policy(self.linear(features))

    def to_env(self, actions: Tree) -> Tree:
        """See `ActionHead`."""
        return self.policy.to_env(actions)

    def require_form(self, masks: Tree) -> None:
        """See `ActionHead`."""
        raise PolicyError(
            "Action masks came for a box: continuous actions have nothing to leave out. Give None for this part, or "
            "offer the choice as Discrete beside the box."
        )

    def stuck(self, masks: Tree) -> Any:
        """See `ActionHead`."""
        return None

    def example(self) -> Tree:
        """See `ActionHead`."""
        return torch.zeros(self.policy.bounds.num_axes)

    def misplaced(self, actions: Tree) -> Tensor | None:
        """See `ActionHead`."""
        return self.policy.misplaced(actions)


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

    def require_form(self, masks: Tree) -> None:
        """See `ActionHead`."""
        if not isinstance(masks, Mapping) or not set(cast("Mapping[str, Any]", masks)) <= set(self.names):
            raise PolicyError(f"Action masks must be a dict whose keys are out of {self.names}, not {_outline(masks)}.")
        for name, part in self._items():
            if masks.get(name) is not None:
                part.require_form(masks[name])

    def stuck(self, masks: Tree) -> Any:
        """See `ActionHead`."""
        return _any([part.stuck(masks[name]) for name, part in self._items() if masks.get(name) is not None])

    def example(self) -> Tree:
        """See `ActionHead`."""
        return {name: part.example() for name, part in self._items()}

    def misplaced(self, actions: Tree) -> Tensor | None:
        """See `ActionHead`."""
        return _any([part.misplaced(actions[name]) for name, part in self._items()])

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

    def require_form(self, masks: Tree) -> None:
        """See `ActionHead`."""
        if not isinstance(masks, tuple) or len(cast("tuple[Any, ...]", masks)) != len(self.parts):
            raise PolicyError(f"Action masks must be a tuple of {len(self.parts)}, not {_outline(masks)}.")
        for part, mask in zip(self._heads(), cast("tuple[Any, ...]", masks), strict=True):
            if mask is not None:
                part.require_form(mask)

    def stuck(self, masks: Tree) -> Any:
        """See `ActionHead`."""
        pairs = zip(self._heads(), masks, strict=True)
        return _any([part.stuck(mask) for part, mask in pairs if mask is not None])

    def example(self) -> Tree:
        """See `ActionHead`."""
        return tuple(part.example() for part in self._heads())

    def misplaced(self, actions: Tree) -> Tensor | None:
        """See `ActionHead`."""
        return _any([part.misplaced(action) for part, action in zip(self._heads(), actions, strict=True)])

    def _heads(self) -> Iterable[ActionHead]:
        return cast("Iterable[ActionHead]", self.parts)


def _require_width(masks: Any, nvec: Sequence[int]) -> None:
    _check_bool(masks)
    if masks.shape[-1] != sum(nvec):
        raise PolicyError(
            f"Action masks of shape {tuple(masks.shape)} must end in {sum(nvec)}, one bool per option of {tuple(nvec)}."
        )


def _any(parts: Sequence[Any]) -> Any:
    """Tell where any of several answers is yes; None stands for never."""
    answers = [part for part in parts if part is not None]
    return functools.reduce(operator.or_, answers) if answers else None


def _check_bool(masks: Any) -> None:
    if not hasattr(masks, "dtype"):
        raise PolicyError(f"Action masks must be an array or tensor of bool here, not {_outline(masks)}.")
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
