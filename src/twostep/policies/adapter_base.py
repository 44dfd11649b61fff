"""What every adapter of a foreign network shares: one version, one mode, and a strict look at what comes out."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym
from torch import Tensor, nn

from twostep.errors import PolicyError
from twostep.policies.foreign_state import ForeignState
from twostep.policies.versions import first_version
from twostep.tree import Tree, tree_map

ALIASES = {"action_masks": "action_mask", "context": "task_trajectories"}
"""Other names under which networks take what a policy is conditioned on."""

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Adapter(nn.Module):
    """Somebody else's network as a `Policy`; the network itself is `module`."""

    def __init__(self, module: nn.Module, takes: Iterable[str], memory: ForeignState | None) -> None:
        """Remember which keywords the network `takes` and how its `memory` is made."""
        super().__init__()
        self.module = module
        self.takes = frozenset(takes)
        self.memory = memory
        self.action_space: Any = None
        self.version = first_version()

    def set_action_space(self, space: gym.Space[Any]) -> None:
        """Get to know the actions that the environment takes."""
        self.action_space = space

    def initial_state(self, batch: int) -> Tree:
        """Return the memory of rows that have seen nothing; `()` without memory."""
        if self.memory is None:
            return ()
        device = next(self.parameters()).device
        return tuple(leaf.to(device) for leaf in self.memory.initial(batch))

    def state_from(self, foreign: Any) -> Tree:
        """Turn memory as the network keeps it into the library's, rows first."""
        return () if self.memory is None else self.memory.to_rows(foreign)

    def state_to(self, state: Tree) -> Any:
        """Turn the library's memory into what the network keeps."""
        return state if self.memory is None else self.memory.from_rows(state)

    def train(self, mode: bool = True) -> Adapter:
        """Change the mode of everything but the layers that must act alike in both phases."""
        super().train(mode)
        hold_still(self.module)
        return self

    def keyword_for(self, condition: str) -> str | None:
        """Return the name under which the network takes a condition; None where it does not."""
        return next((name for name in (condition, ALIASES.get(condition)) if name in self.takes), None)

    def conditioned(self, conditions: dict[str, Tree], at: Callable[[Tensor], Tensor]) -> dict[str, Tree]:
        """Return the network's keywords, each leaf sent through `at`; refuse what it cannot be told."""
        keywords: dict[str, Tree] = {}
        for name, tree in conditions.items():
            keyword = self.keyword_for(name)
            if keyword is None:
                raise PolicyError(
                    f"{name} is there to be acted upon, but {type(self.module).__name__} has no argument for it. Give "
                    f"it a keyword argument {name}=, or do without."
                )
            keywords[keyword] = tree_map(at, tree)
        return keywords


def forgotten(state: Tree, starts: Tensor, empty: Tree) -> Tree:
    """Put empty memory into the rows that start an episode; `starts` is `[B]`."""

    def forget(leaf: Tensor, empty_leaf: Tensor) -> Tensor:
        return empty_leaf.where(starts.view(-1, *[1] * (leaf.dim() - 1)), leaf)

    return tree_map(forget, state, empty)


def per_row(numbers: Any, rows: int, what: str, network: nn.Module) -> Tensor:
    """Return one number per row, `[rows]`, from `[rows]` or `[rows, 1]`."""
    if isinstance(numbers, Tensor) and tuple(numbers.shape) in ((rows,), (rows, 1)):
        return numbers.reshape(rows).float()
    shown = tuple(numbers.shape) if isinstance(numbers, Tensor) else type(numbers).__name__
    raise PolicyError(
        f"{type(network).__name__} returned {what} {shown} for {rows} rows; it must be a tensor of shape ({rows},) or "
        f"({rows}, 1), one number per row."
    )


def outputs_of(result: Any, names: tuple[str, ...], network: nn.Module) -> tuple[Any, ...]:
    """Return the network's outputs as a tuple of as many as there are names."""
    if isinstance(result, (tuple, list)) and len(result) == len(names):
        return tuple(result)
    shown = f"{len(result)} things" if isinstance(result, (tuple, list)) else type(result).__name__
    raise PolicyError(
        f"{type(network).__name__} returned {shown} where ({', '.join(names)}) was expected. Return these, or name "
        "another signature: as_policy(network, action_space, signature=...)."
    )


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return a function's parameters by name."""
    return dict(inspect.signature(function).parameters)


def hold_still(network: nn.Module) -> list[str]:
    """Make every layer act alike while collecting and learning; return the names of those that did not yet.

    Dropout and batch statistics change a policy between the two phases: its old log-probabilities would be another's.
    """
    changed: list[str] = []
    for name, layer in network.named_modules():
        if isinstance(layer, nn.RNNBase):
            # Recurrent layers on a GPU learn in training mode only, so their dropout goes instead of their mode.
            if layer.dropout > 0 and layer.num_layers > 1:
                layer.dropout = 0.0
                changed.append(name or type(layer).__name__)
        elif layer.training and _differs_in_training(layer):
            layer.eval()
            changed.append(name or type(layer).__name__)
    return changed


def _differs_in_training(layer: nn.Module) -> bool:
    if isinstance(layer, DROPOUTS):
        return layer.p > 0
    if isinstance(layer, nn.MultiheadAttention):
        return layer.dropout > 0
    return isinstance(layer, (*BATCH_NORMS, nn.RReLU))


def warn_about(changed: list[str], network: nn.Module) -> None:
    """Say once what was switched off."""
    if changed:
        warnings.warn(
            f"{type(network).__name__} has layers that act differently in training: {', '.join(changed)}. They stay in "
            "evaluation mode in both phases, because a policy must give the same probabilities when it learns as when "
            "it acted. Remove them, or use LayerNorm and weight decay, to silence this.",
            UserWarning,
            stacklevel=3,
        )
