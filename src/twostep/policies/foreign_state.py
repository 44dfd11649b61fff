"""Memory as somebody else's network keeps it, and as the library does: rows first, one leaf per tensor.

Networks keep memory in tensors, tuples, dicts, dataclasses or objects of their own, with rows along any dimension.
Which dimension it is shows when the same memory is made for two rows and for three.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from twostep.errors import PolicyError

MAKERS = ("initial_state", "init_state", "init_hidden")
"""Methods by which networks usually give out empty memory, called with the number of rows and, if taken, the device."""

WAY_OUT = "Pass as_policy(network, action_space, initial_state=lambda rows: ...) with what the network takes as memory."


class ForeignState:
    """Makes empty memory for a network, and carries memory over in both directions."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        """Learn from `make(rows)` what memory consists of."""
        self.make = make
        self.template = make(2)
        pairs = list(zip(_tensors_in(self.template), _tensors_in(make(3)), strict=True))
        if not pairs:
            raise PolicyError(f"The initial memory {self.template!r} holds no tensor. {WAY_OUT}")
        self.axes = [_row_axis(two, three) for two, three in pairs]

    def initial(self, rows: int) -> tuple[Tensor, ...]:
        """Return empty memory, each leaf `[rows, ...]`."""
        return self.to_rows(self.make(rows))

    def to_rows(self, foreign: Any) -> tuple[Tensor, ...]:
        """Bring the network's memory to `[B, ...]` leaves."""
        leaves = list(_tensors_in(foreign))
        if len(leaves) != len(self.axes):
            raise PolicyError(
                f"The network returned memory of {len(leaves)} tensors but started with {len(self.axes)}; it must keep "
                "its structure from step to step."
            )
        return tuple(leaf.movedim(axis, 0) for leaf, axis in zip(leaves, self.axes, strict=True))

    def from_rows(self, rows_first: tuple[Tensor, ...]) -> Any:
        """Build a new memory object for the network, which may change it in place."""
        leaves = (leaf.movedim(0, axis).contiguous() for leaf, axis in zip(rows_first, self.axes, strict=True))
        return _rebuilt(self.template, leaves)


def find_state(network: nn.Module, make: Callable[[int], Any] | None) -> ForeignState | None:
    """Find how a network's memory starts: as told, by its own method, or from the one recurrent layer in it."""
    if make is not None:
        return ForeignState(make)
    for name in MAKERS:
        if callable(method := getattr(network, name, None)):
            return ForeignState(_with_device(network, method))
    layers = [layer for layer in network.modules() if isinstance(layer, (nn.RNNBase, nn.RNNCellBase))]
    if len(layers) > 1:
        raise PolicyError(f"{type(network).__name__} has {len(layers)} recurrent layers: how do they start? {WAY_OUT}")
    return ForeignState(lambda rows: _zeros(layers[0], rows)) if layers else None


def recurrent_parts(network: nn.Module, make: Callable[[int], Any] | None) -> ForeignState | None:
    """Find memory for networks that change an object with `lstm_h` and `lstm_c`, unless told how it is made."""
    state = find_state(network, make)
    if state is None or not isinstance(state.template, tuple):
        return state
    pair = state.make
    return ForeignState(lambda rows: SimpleNamespace(**dict(zip(("lstm_h", "lstm_c"), pair(rows), strict=True))))


def _with_device(network: nn.Module, method: Callable[..., Any]) -> Callable[[int], Any]:
    parameters = list(inspect.signature(method).parameters.values())
    takes_device = len(parameters) > 1 and parameters[1].kind is not inspect.Parameter.VAR_KEYWORD

    def make(rows: int) -> Any:
        return method(rows, _device_of(network)) if takes_device else method(rows)

    return make


def _device_of(network: nn.Module) -> torch.device:
    parameter = next(network.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _zeros(layer: nn.RNNBase | nn.RNNCellBase, rows: int) -> Any:
    weight = next(layer.parameters())
    if isinstance(layer, nn.RNNCellBase):
        hidden = weight.new_zeros(rows, layer.hidden_size)
        return (hidden, hidden.clone()) if isinstance(layer, nn.LSTMCell) else hidden
    directions = 2 if layer.bidirectional else 1
    hidden = weight.new_zeros(layer.num_layers * directions, rows, layer.proj_size or layer.hidden_size)
    if not isinstance(layer, nn.LSTM):
        return hidden
    return hidden, weight.new_zeros(layer.num_layers * directions, rows, layer.hidden_size)


def _row_axis(two: Tensor, three: Tensor) -> int:
    if two.dim() == three.dim():
        axes = [axis for axis, sizes in enumerate(zip(two.shape, three.shape, strict=True)) if sizes == (2, 3)]
        if len(axes) == 1:
            return axes[0]
    raise PolicyError(
        f"Memory for 2 rows has shape {tuple(two.shape)} and for 3 rows {tuple(three.shape)}; exactly one dimension "
        f"must be the number of rows. {WAY_OUT}"
    )


def _tensors_in(foreign: Any) -> Iterator[Tensor]:
    if isinstance(foreign, Tensor):
        yield foreign
        return
    for _, part in _parts(foreign):
        yield from _tensors_in(part)


def _parts(foreign: Any) -> list[tuple[Any, Any]]:
    """List the named parts of a container or object; nothing for a number, text or None."""
    if isinstance(foreign, Mapping):
        return sorted(cast("Mapping[Any, Any]", foreign).items())
    if isinstance(foreign, (tuple, list)):
        return list(enumerate(cast("tuple[Any, ...]", foreign)))
    if dataclasses.is_dataclass(foreign):
        return [(field.name, getattr(foreign, field.name)) for field in dataclasses.fields(foreign)]
    return sorted(getattr(foreign, "__dict__", {}).items())


def _rebuilt(template: Any, leaves: Iterator[Tensor]) -> Any:
    if isinstance(template, Tensor):
        return next(leaves)
    parts = {name: _rebuilt(part, leaves) for name, part in _parts(template)}
    if isinstance(template, Mapping):
        return parts
    if isinstance(template, (tuple, list)):
        named = hasattr(template, "_fields")
        return type(template)(*parts.values()) if named else type(template)(parts.values())
    if not parts:
        return template
    rebuilt = copy.copy(template)
    for name, part in parts.items():
        object.__setattr__(rebuilt, name, part)  # also in a frozen dataclass
    return rebuilt
