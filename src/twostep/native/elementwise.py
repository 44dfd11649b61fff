"""Operations on one number at a time: written one behind the other into one loop, as long as they share its shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from twostep.native.programs import C_TYPES, Kernel, UnsupportedError, View, at, loops

_aten = torch.ops.aten
Expression = Callable[..., str]


def _power(x: str, exponent: str) -> str:
    known = {1.0: x, 2.0: f"{x} * {x}", 0.5: f"sqrtf({x})", 3.0: f"{x} * {x} * {x}", -1.0: f"1.0f / {x}"}
    return known.get(float(exponent.rstrip("f")), f"powf({x}, {exponent})")


def _clamped(x: str, low: str | None = None, high: str | None = None) -> str:
    x = x if low is None else f"larger({x}, {low})"
    return x if high is None else f"smaller({x}, {high})"


def _scaled(x: str, factor: str) -> str:
    return x if factor in ("1.0f", "INT64_C(1)") else f"{factor} * {x}"


def _elu(x: str, alpha: str = "1.0f", scale: str = "1.0f", inner: str = "1.0f") -> str:
    return f"{scale} * ({x} > 0.0f ? {x} : {alpha} * fast_expm1({inner} * {x}))"


def _elu_backward(*given: str) -> str:
    grad, alpha, scale, inner, of_result, x = given
    below = f"({x} + {alpha} * {scale})" if of_result == "1" else f"{alpha} * {scale} * fast_exp({x} * {inner})"
    return f"{grad} * ({x} > 0.0f ? {scale} : {inner} * {below})"


EXPRESSIONS: dict[str, Expression] = {
    "add": lambda a, b, alpha="1.0f": f"{a} + {_scaled(b, alpha)}",
    "sub": lambda a, b, alpha="1.0f": f"{a} - {_scaled(b, alpha)}",
    "rsub": lambda a, b, alpha="1.0f": f"{b} - {_scaled(a, alpha)}",
    "mul": lambda a, b: f"{a} * {b}",
    "div": lambda a, b: f"{a} / {b}",
    "neg": lambda a: f"-{a}",
    "abs": lambda a: f"fabsf({a})",
    "exp": lambda a: f"fast_exp({a})",
    "log": lambda a: f"fast_log({a})",
    "log1p": lambda a: f"log1pf({a})",
    "expm1": lambda a: f"fast_expm1({a})",
    "sqrt": lambda a: f"sqrtf({a})",
    "rsqrt": lambda a: f"1.0f / sqrtf({a})",
    "reciprocal": lambda a: f"1.0f / {a}",
    "square": lambda a: f"{a} * {a}",
    "pow": _power,
    "sigmoid": lambda a: f"fast_sigmoid({a})",
    "sigmoid_backward": lambda grad, y: f"{grad} * (1.0f - {y}) * {y}",
    "tanh": lambda a: f"fast_tanh({a})",
    "tanh_backward": lambda grad, y: f"{grad} * (1.0f - {y} * {y})",
    "relu": lambda a: f"larger({a}, 0.0f)",
    "threshold_backward": lambda grad, x, limit: f"({x} <= {limit} ? 0.0f : {grad})",
    "elu": _elu,
    "elu_backward": _elu_backward,
    "silu": lambda a: f"{a} * fast_sigmoid({a})",
    "silu_backward": lambda grad, x: f"{grad} * fast_sigmoid({x}) * (1.0f + {x} * (1.0f - fast_sigmoid({x})))",
    "softplus": lambda x, beta="1.0f", threshold="20.0f": (
        f"({beta} * {x} > {threshold} ? {x} : log1pf(fast_exp({beta} * {x})) / {beta})"
    ),
    "softplus_backward": lambda grad, x, beta, threshold: (
        f"({beta} * {x} > {threshold} ? {grad} : {grad} * fast_sigmoid({beta} * {x}))"
    ),
    "logaddexp": lambda a, b: f"log_add_exp({a}, {b})",
    "erf": lambda a: f"erff({a})",
    "cross_entropy": lambda x, target: f"larger(-{x}, 0.0f) + (1.0f - {target}) * {x} + log1pf(fast_exp(-fabsf({x})))",
    "gelu": lambda x: f"0.5f * {x} * (1.0f + erff(0.70710678f * {x}))",
    "gelu_backward": lambda grad, x: (
        f"{grad} * (0.5f * (1.0f + erff(0.70710678f * {x})) + {x} * 0.39894228f * fast_exp(-0.5f * {x} * {x}))"
    ),
    "lgamma": lambda a: f"lgammaf({a})",
    "digamma": lambda a: f"digamma({a})",
    "trigamma": lambda a: f"trigamma({a})",
    "sign": lambda a: f"sign_of({a})",
    "sin": lambda a: f"sinf({a})",
    "cos": lambda a: f"cosf({a})",
    "minimum": lambda a, b: f"smaller({a}, {b})",
    "maximum": lambda a, b: f"larger({a}, {b})",
    "clamp": _clamped,
    "clamp_min": lambda a, low: _clamped(a, low),
    "clamp_max": lambda a, high: _clamped(a, None, high),
    "addcmul": lambda a, b, c, value="1.0f": f"{a} + {_scaled(b, value)} * {c}",
    "lerp": lambda a, b, weight: f"{a} + {weight} * ({b} - {a})",
    "where": lambda test, a, b: f"({test} ? {a} : {b})",
    "masked_fill": lambda a, test, value: f"({test} ? {value} : {a})",
    "eq": lambda a, b: f"({a} == {b})",
    "ne": lambda a, b: f"({a} != {b})",
    "lt": lambda a, b: f"({a} < {b})",
    "le": lambda a, b: f"({a} <= {b})",
    "gt": lambda a, b: f"({a} > {b})",
    "ge": lambda a, b: f"({a} >= {b})",
    "logical_and": lambda a, b: f"({a} && {b})",
    "logical_or": lambda a, b: f"({a} || {b})",
    "logical_not": lambda a: f"!{a}",
    "copy": lambda _, a: a,
    "clone": lambda a: a,
    "_to_copy": lambda a: a,
    "lift_fresh_copy": lambda a: a,
    "contiguous": lambda a: a,
}
"""By the name of the operation: its expression from those of its arguments."""
BOOLEANS: dict[str, Expression] = {
    "bitwise_not": lambda a: f"!{a}",
    "bitwise_and": lambda a, b: f"({a} && {b})",
    "bitwise_or": lambda a, b: f"({a} || {b})",
}
"""The same for tensors of bool."""
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not"}
ANY_NUMBERS = COMPARISONS | {
    "add", "sub", "rsub", "mul", "neg", "where", "masked_fill", "copy", "clone", "_to_copy", "lift_fresh_copy",
    "contiguous",
}  # fmt: skip
"""What is written alike for whole numbers and for truth values; the rest is for floats only."""


def literal(value: Any, dtype: torch.dtype = torch.float32) -> str:
    """Write a number of Python in C, as it counts among numbers of a type."""
    if isinstance(value, bool):
        return str(int(value))
    if not dtype.is_floating_point and isinstance(value, int):
        return f"INT64_C({value})"
    if value != value:
        return "NAN"
    if value in (math.inf, -math.inf):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"{float(value)!r}f" if "e" in repr(float(value)) or "." in repr(float(value)) else f"{float(value)}f"


@dataclass
class Loop(Kernel):
    """Statements on the numbers at one index, for all indices of a shape."""

    shape: tuple[int, ...] = ()
    statements: list[tuple[View, str]] = field(default_factory=list[tuple[View, str]])
    """What is computed in which view's place; later ones name earlier results as `v0`, `v1`, ..."""
    loaded: list[View] = field(default_factory=list[View])
    """What is read from memory: `x0`, `x1`, ..."""

    def clashes(self, reads: Sequence[View], target: View) -> bool:
        """Say whether another statement would have to see what this loop has done at other indices."""
        stored = [view for view, _ in self.statements]
        hidden = (old.may_overlap(new) and not old.same_place(new) for old in stored for new in reads)
        ruined = (old.may_overlap(target) and not old.same_place(target) for old in [*stored, *self.loaded, *reads])
        return any(hidden) or any(ruined)

    def operand(self, view: View, dtype: torch.dtype) -> str:
        """Name the number of a view, brought to a type: what was just computed there, or what lies in memory."""
        name = self._name(view)
        return name if view.dtype == dtype else f"({C_TYPES[dtype]}){name}"

    def _name(self, view: View) -> str:
        for number in range(len(self.statements) - 1, -1, -1):
            if self.statements[number][0].same_place(view):
                return f"v{number}"
        for number, loaded in enumerate(self.loaded):
            if loaded.same_place(view):
                return f"x{number}"
        self.loaded.append(view)
        self.read.add(view.buffer)
        return f"x{len(self.loaded) - 1}"

    def add(self, target: View, expression: str) -> None:
        """Compute one more number."""
        truth = target.dtype == torch.bool
        self.statements.append((target, f"({expression}) != 0" if truth else expression))
        self.written.add(target.buffer)

    def without(self, dead: set[int]) -> bool:
        """See `Kernel`."""
        self._dead = dead
        stores = [view for view, _ in self.statements if view.buffer not in dead]
        self.written -= dead
        self.views = []
        for view in [*stores, *self.loaded]:
            if not any(view.same_place(other) for other in self.views):
                self.views.append(view)
        return bool(stores)

    def text(self) -> str:
        """See `Kernel`."""
        shape, strides = _coalesced(self.shape, [view.strides for view in self.views])

        def place(view: View) -> str:
            number = next(i for i, other in enumerate(self.views) if other.same_place(view))
            return f"p{number}[{at(strides[number])}]"

        return loops(shape, self.body(place))

    def body(self, place: Callable[[View], str]) -> str:
        """Write what happens at one index; `place` says where a view's number is found there."""
        lines = [f"{view.c_type} x{i} = {place(view)};" for i, view in enumerate(self.loaded)]
        for number, (view, expression) in enumerate(self.statements):
            lines.append(f"{view.c_type} v{number} = {expression};")
            if view.buffer not in self._dead:
                lines.append(f"{place(view)} = v{number};")
        return "".join(f"        {line}\n" for line in lines)


def _coalesced(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Put the dimensions in the order of the first view's memory, and join those that all views can step as one."""
    order = sorted(range(len(shape)), key=lambda d: -strides[0][d])
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for d in order:
        if sizes and all(view[-1] == old[d] * shape[d] for view, old in zip(steps, strides, strict=True)):
            sizes[-1] *= shape[d]
            for view, old in zip(steps, strides, strict=True):
                view[-1] = old[d]
        else:
            sizes.append(shape[d])
            for view, old in zip(steps, strides, strict=True):
                view.append(old[d])
    return sizes, steps


def expression_of(name: str, dtype: torch.dtype) -> Expression:
    """Return how an operation is written whose operands are brought to this type first.

    Raises:
        UnsupportedError: Nobody has written it.
    """
    table = EXPRESSIONS | BOOLEANS if dtype == torch.bool else EXPRESSIONS
    if name not in table or (dtype != torch.float32 and name not in ANY_NUMBERS | BOOLEANS.keys()):
        raise UnsupportedError(f"{name} of {dtype}")
    return table[name]
