"""Adam and AdamW of torch, with one call for all parameters.

Small networks have many parameters of few numbers: torch's own step goes through each of them several times. And the
first of these steps imports torch's compiler, which takes longer than everything else between a program's start and
its first update.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from importlib import resources
from typing import Any, cast

import torch
from torch import Tensor

from twostep.native.building import BuildError, library

_Arrays = tuple[int, "ctypes.Array[ctypes.c_void_p]", "ctypes.Array[ctypes.c_int64]"]


class _InOneCall(torch.optim.Optimizer):
    """What is added to torch's optimizers: `advance`, a step like `step` up to the last digits."""

    decoupled = 0

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._known: list[tuple[list[int], _Arrays]] = []
        """For each group the addresses of the last step, and what was made of them."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._known = []

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See `torch.optim.Optimizer`, of which this calls the function itself, without what prepares compilation."""
        inner = cast("Any", torch.optim.Optimizer.add_param_group)
        getattr(inner, "__wrapped__", inner)(self, param_group)

    @torch.no_grad()
    def advance(self) -> None:
        """Take a step, in one call where that is possible."""
        own: Any = self
        if own._optimizer_step_pre_hooks or own._optimizer_step_post_hooks:  # which somebody waits for
            self.step()
            return
        own._opt_called = True  # what schedulers of torch look at
        parts = [self._parts(group) for group in self.param_groups]
        code = _code() if all(parts) else None
        arrays = [] if code is None else [self._arrays(number, part) for number, part in enumerate(parts)]
        if code is None or None in arrays:
            self.step()
            return
        for group, array in zip(self.param_groups, cast("list[_Arrays]", arrays), strict=True):
            beta1, beta2 = group["betas"]
            code(*array, float(group["lr"]), beta1, beta2, group["eps"], group["weight_decay"], self.decoupled)

    def _parts(self, group: dict[str, Any]) -> list[Tensor]:
        """List what a step reads and changes: gradient, weight, both moments and step count of each parameter."""
        parts: list[Tensor] = []
        if group.get("amsgrad") or group.get("maximize"):
            return parts
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None:
                if gradient.device.type != "cpu" or not gradient.is_contiguous():
                    return []
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.float32)
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                parts += (gradient, parameter, state["exp_avg"], state["exp_avg_sq"], state["step"])
        return parts

    def _arrays(self, number: int, parts: list[Tensor]) -> _Arrays | None:
        """Return the addresses and sizes of everything; None where torch is to take the step."""
        addresses = [part.data_ptr() for part in parts]
        if number < len(self._known) and self._known[number][0] == addresses:
            return self._known[number][1]
        if not all(map(_is_plain, parts)):
            return None
        count = len(parts) // 5
        sizes = [part.numel() for part in parts[::5]]
        arrays = count, (ctypes.c_void_p * (5 * count))(*addresses), (ctypes.c_int64 * count)(*sizes)
        self._known[number : number + 1] = [(addresses, arrays)]
        return arrays


class Adam(_InOneCall, torch.optim.Adam):
    """`torch.optim.Adam` with `advance`."""


class AdamW(_InOneCall, torch.optim.AdamW):
    """`torch.optim.AdamW` with `advance`."""

    decoupled = 1


def _is_plain(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.is_contiguous()


@functools.cache
def _code() -> Callable[..., None] | None:
    source = resources.files("twostep.native").joinpath("adam.h").read_text()
    try:
        code = library(source, alone=True).adam
    except BuildError:
        return None
    code.restype = None
    double = ctypes.c_double
    code.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, *[double] * 5, ctypes.c_int64]
    return code
