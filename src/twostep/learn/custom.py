"""Losses of the user's own, added to PPO's: what they are given, and what may come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from twostep.errors import PolicyError
from twostep.learn.losses import Metrics
from twostep.learn.metrics import OWN_METRICS
from twostep.sequences import Minibatch
from twostep.tree import tree_map

CustomLoss = Callable[..., Any]
"""`fn(policy, obs, actions, rewards, values, advantages)` -> loss, or (loss, metrics); added to PPO's own.

It is given the transitions of a minibatch that count, `[1, N, ...]`, with memory or without; gradients flow through
`values`. The loss is one number; it is logged under the function's name, and its metrics beside it.
"""


@dataclass(frozen=True)
class RecordableLoss:
    """A custom loss that does the same operations at every call, whatever the tensors hold; usable as a decorator.

    Where PPO's own loss becomes machine code, for small networks on a CPU, such a loss becomes part of it and
    costs no more than its operations. What it reads besides its arguments is frozen when it is compiled: a weight that
    changes must be a tensor that is changed in place. Any other custom loss is simply called, PPO's own beside it.
    """

    loss: CustomLoss

    def __post_init__(self) -> None:
        """Go by the function's name."""
        object.__setattr__(self, "__name__", getattr(self.loss, "__name__", "custom_loss"))

    def __call__(self, *minibatch: Any) -> Any:
        """Return what the function returns."""
        return self.loss(*minibatch)


def may_be_compiled(custom_losses: Sequence[CustomLoss], piece: Minibatch) -> bool:
    """Tell whether the same operations follow for every minibatch of this shape."""
    if not custom_losses:
        return True
    return piece.valid is None and all(isinstance(one, RecordableLoss) for one in custom_losses)


def custom_losses_of(
    custom_losses: Sequence[CustomLoss], policy: Any, piece: Minibatch, values: Tensor, count: Tensor | float
) -> tuple[Tensor, Metrics]:
    """Add up custom losses on a piece of a minibatch of `count` steps, and return what they measured.

    A mean over a piece weighs as much as the piece does in its minibatch; of nothing there is no mean.
    """
    if not piece.count:
        return torch.zeros((), device=values.device), {}

    def counted(leaf: Tensor) -> Tensor:
        return leaf.flatten(0, 1)[None] if piece.valid is None else leaf[piece.valid][None]

    given = (tree_map(counted, piece.obs), tree_map(counted, piece.actions))
    given += tuple(counted(leaf) for leaf in (piece.rewards, values, piece.advantages))
    weight = piece.count / count
    total, measured = torch.zeros((), device=values.device), dict[str, Tensor]()
    for name, custom_loss in zip(_names(custom_losses), custom_losses, strict=True):
        loss, metrics = _read(name, custom_loss(policy, *given))
        total = total + loss * weight
        for key, value in {name: loss.detach(), **metrics}.items():
            if key in OWN_METRICS or key in measured:
                raise PolicyError(f"The custom loss {name} gives {key!r}, which something else is called: rename it.")
            measured[key] = _number(f"{key} of the custom loss {name}", value).to(values.device) * weight
    return total, measured


def _names(custom_losses: Sequence[CustomLoss]) -> list[str]:
    """Return a name for each: the function's own, numbered where it has none or another has the same."""
    names: list[str] = []
    for custom_loss in custom_losses:
        given = getattr(custom_loss, "__name__", "custom_loss")
        name = given if given.isidentifier() else "custom_loss"
        number = sum(one == name or one.startswith(f"{name}_") for one in names)
        names.append(name if name not in names else f"{name}_{number + 1}")
    return names


def _read(name: str, result: Any) -> tuple[Tensor, Mapping[str, Any]]:
    parts = cast("tuple[Any, ...]", result) if isinstance(result, tuple) else (result, {})
    loss, metrics = parts if len(parts) == 2 else (None, None)
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not isinstance(metrics, Mapping):
        what = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"{type(result).__name__}"
        raise PolicyError(
            f"The custom loss {name} returned {what}; it must return a tensor with one number, such as a mean, or "
            "that and a dict of metrics."
        )
    return loss.reshape(()), cast("Mapping[str, Any]", metrics)


def _number(name: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value).detach().float().reshape(())
    except (TypeError, ValueError, RuntimeError) as error:
        raise PolicyError(f"{name} is {value!r}; a metric must be one number.") from error
