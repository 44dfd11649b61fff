"""Operations of torch written down as kernels, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from twostep.native import reductions
from twostep.native.elementwise import COMPARISONS, Loop, expression_of, literal
from twostep.native.products import product
from twostep.native.programs import Kernel, Program, UnsupportedError, View

_EMPTY = {"new_empty", "empty_like", "empty", "empty_strided"}
_FULL = {
    "zeros": 0.0, "ones": 1.0, "zeros_like": 0.0, "ones_like": 1.0, "new_zeros": 0.0, "new_ones": 1.0, "zero": 0.0,
}  # fmt: skip
_FILLED_WITH = {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0, "fill": 1}
"""Which argument says what everything is filled with."""
_COPIES = {"clone", "_to_copy", "lift_fresh_copy", "contiguous"}
_KINDS = {float: torch.float32, int: torch.int64, bool: torch.bool}
_SCALES = {"alpha", "beta", "value"}
"""Arguments by keyword that are numbers of a formula."""
_HARMLESS = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking", "out", "generator", "copy"}
"""Arguments by keyword whose effect is seen in the result itself."""
_WIDE = 8
"""Columns from which a product goes through whole vectors of them."""
MOST_FLOPS = 400_000_000
"""Arithmetic beyond which it takes most of the time, and torch's own products are as good."""


class Writer:
    """Writes what operations do with memory into a program.

    An operation that is more than an expression for each number has a method `_on_...` of its own name.
    """

    def __init__(self) -> None:
        self.program = Program()
        self.guarded: set[int] = set()
        """Buffers that belong to others: nothing may be written there."""
        self._copies: dict[View, Tensor] = {}
        self._loop: Loop | None = None

    def write(self, name: str, results: Sequence[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Write down an operation that has been done.

        Raises:
            UnsupportedError: No kernel is known for it.
        """
        if name == "std_mean":
            self.close()
            self._on_std_mean(results, *args, **kwargs)
        elif len(results) == 1:
            self._write(name, results[0], args, kwargs)
        else:
            raise UnsupportedError(name)

    def close(self) -> None:
        """End the loop to which operations on single numbers are added."""
        if self._loop is not None:
            self._add(self._loop)
            self._loop = None

    def _write(self, name: str, result: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        unknown = kwargs.keys() - _HARMLESS - _SCALES
        if unknown:
            raise UnsupportedError(f"{name} with {', '.join(sorted(unknown))}")
        more = getattr(self, f"_on_{name}", None)
        if name in _EMPTY:
            self.program.view(result)
        elif name in _FULL:
            self._full(result, _FULL[name])
        elif name in _FILLED_WITH:
            value = args[_FILLED_WITH[name]]
            if isinstance(value, Tensor):
                self._elementwise("copy", result, args, {})
            else:
                self._full(result, value)
        elif more is not None:
            self.close()
            more(result, *args, **{key: kwargs[key] for key in kwargs.keys() & _SCALES})
        else:
            self._elementwise(name, result, args, kwargs)

    def _require_own(self, view: View) -> View:
        if view.buffer in self.guarded:
            raise UnsupportedError("an operation that writes into what it was given")
        return view

    def _target(self, result: Tensor) -> View:
        view = self._require_own(self.program.view(result))
        self.program.buffers[view.buffer].constant = None
        self._copies = {of: copy for of, copy in self._copies.items() if of.buffer != view.buffer}
        return view

    def _full(self, result: Tensor, value: Any) -> None:
        if self.program.knows(result):
            self._elementwise("copy", result, (None, value), {})
            return
        target = self._target(result)  # nobody has seen it yet: it may be filled before what is under way
        loop = Loop([], set(), set(), shape=target.shape)
        loop.add(target, literal(value, target.dtype))
        self._add(loop)
        self.program.buffers[target.buffer].constant = value

    def _elementwise(self, name: str, result: Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        given = [arg for arg in args if not isinstance(arg, (torch.dtype, torch.layout, torch.device))]
        if name in _COPIES:
            given = given[:1]
        elif name == "copy":
            given = [0, given[1]]
        kind = _computed_in(name, result, given)
        expression = expression_of(name, kind)
        target = self._target(result)
        places = [self._place(arg, result) if isinstance(arg, Tensor) else arg for arg in given]
        reads = [place for place in places if isinstance(place, View)]
        if self._loop is None or self._loop.shape != target.shape or self._loop.clashes(reads, target):
            self.close()
            self._loop = Loop([], set(), set(), shape=target.shape)
        operands: list[str | None] = []
        for number, place in enumerate(places):
            if isinstance(place, View):
                test = (name, number) in (("where", 0), ("masked_fill", 1))
                operands.append(self._loop.operand(place, place.dtype if test else kind))
            else:
                operands.append(None if place is None else literal(place, kind))
        while operands and operands[-1] is None:
            operands.pop()
        named = {key: literal(value, kind) for key, value in kwargs.items() if key in _SCALES}
        self._loop.add(target, expression(*operands, **named))

    def _place(self, arg: Tensor, result: Tensor) -> Any:
        """Say where the numbers of an operand lie for every index of the result, or which number they all are."""
        view = self.program.view(arg)
        constant = self.program.buffers[view.buffer].constant
        return constant if constant is not None else self._broadcast(arg, result)

    def _broadcast(self, arg: Tensor, result: Tensor) -> View:
        spread = arg.expand(result.shape)
        kept = [(n, step) for n, step in zip(spread.shape, spread.stride(), strict=True) if n != 1]
        view = self.program.view(arg)
        shape, strides = tuple(n for n, _ in kept), tuple(step for _, step in kept)
        return View(view.buffer, view.offset, shape, strides, view.dtype)

    def _add(self, kernel: Kernel) -> None:
        self.program.kernels.append(kernel)

    # Products

    def _on_mm(self, result: Tensor, a: Tensor, b: Tensor) -> None:
        self._multiply(result, a, b, None, 1.0, 0.0)

    _on_bmm = _on_mm

    def _on_addmm(
        self, result: Tensor, bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1
    ) -> None:
        self._multiply(result, a, b, bias, float(alpha), float(beta))

    _on_baddbmm = _on_addmm

    def _multiply(self, result: Tensor, a: Tensor, b: Tensor, bias: Tensor | None, alpha: float, beta: float) -> None:
        if result.dtype != torch.float32:
            raise UnsupportedError(f"a product of {result.dtype}")
        if b.stride(-1) != 1 and b.shape[-1] >= _WIDE:
            b = self._turned(b)
        tensors = [result, a, b] if bias is None else [result, a, b, bias.expand(result.shape)]
        strides = [tensor.stride() if tensor.dim() == 3 else (0, *tensor.stride()) for tensor in tensors]
        batch = result.shape[0] if result.dim() == 3 else 1
        sizes = (batch, a.shape[-2], b.shape[-1], a.shape[-1])
        others = [self.program.view(tensor) for tensor in (a, b)] + ([] if bias is None else [self.program.view(bias)])
        views = [self._target(result), *others]
        self.program.flops += 2 * batch * result.shape[-2] * result.shape[-1] * a.shape[-1]
        if self.program.flops > MOST_FLOPS:
            raise UnsupportedError(f"more than {MOST_FLOPS:,} multiplications and additions")
        self._add(product(views, sizes, strides, alpha, beta))

    def _turned(self, matrix: Tensor) -> Tensor:
        """Return a copy of a transposed matrix whose rows lie in memory one behind the other, made once."""
        known = self._copies.get(self.program.view(matrix))
        if known is None:
            known = matrix.contiguous()
            self._elementwise("copy", known, (None, matrix), {})
            self.close()
            self._copies[self.program.view(matrix)] = known
        return known

    # Sums and the like

    def _reduced(self, result: Tensor, source: Tensor, dims: Sequence[int]) -> tuple[View, View, list[int], list[int]]:
        """Return views of both, the source's shape, and the result's strides in it."""
        if source.dtype != torch.float32 or not source.dim():
            raise UnsupportedError(f"a fold of {tuple(source.shape)} of {source.dtype}")
        gone = {d % source.dim() for d in dims} if dims else set(range(source.dim()))
        shape = list(source.shape)
        out_strides = iter(
            result.stride()
            if result.dim() < source.dim()
            else [s for d, s in enumerate(result.stride()) if d not in gone]
        )
        to = [0 if d in gone else next(out_strides) for d in range(source.dim())]
        kept = [d for d in range(source.dim()) if shape[d] != 1]
        view = self.program.view(source)
        return self._target(result), view, [shape[d] for d in kept], [to[d] for d in kept]

    def _on_sum(self, result: Tensor, source: Tensor, dims: Sequence[int] | None = None, *_: Any, **__: Any) -> None:
        self._add(reductions.summed(*self._reduced(result, source, dims or ())))

    def _on_mean(self, result: Tensor, source: Tensor, dims: Sequence[int] | None = None, *_: Any, **__: Any) -> None:
        self._add(reductions.summed(*self._reduced(result, source, dims or ()), scale=result.numel() / source.numel()))

    def _on_max(self, result: Tensor, source: Tensor) -> None:
        self._add(reductions.folded(*self._reduced(result, source, ()), "-INFINITY", "s = larger(s, {x});", "s"))

    def _on_amax(self, result: Tensor, source: Tensor, dims: Sequence[int] = (), *_: Any) -> None:
        self._add(reductions.folded(*self._reduced(result, source, dims), "-INFINITY", "s = larger(s, {x});", "s"))

    def _on_linalg_vector_norm(self, result: Tensor, source: Tensor, *order: Any) -> None:
        if order not in ((), (2,)):
            raise UnsupportedError(f"a norm of {order}")
        self._add(
            reductions.folded(*self._reduced(result, source, ()), "0.0f", "{ float x = {x}; s += x * x; }", "sqrtf(s)")
        )

    def _on_std_mean(
        self, results: Sequence[Tensor], source: Tensor, dims: Sequence[int] | None = None, **how: Any
    ) -> None:
        if dims or how.get("correction") not in (None, 1):
            raise UnsupportedError("a deviation along some dimensions")
        deviation, mean = results
        views = self._reduced(mean, source, ())
        self._add(reductions.summed(*views, scale=1.0 / source.numel()))
        self._add(reductions.deviation(self._target(deviation), self.program.view(mean), *views[1:3]))

    # Along one dimension

    def _along(self, *tensors: Tensor, dim: int) -> tuple[list[View], list[int], list[list[int]]]:
        """Return views, and sizes and strides with `dim` at the end; of the first tensor it may be missing."""
        views = [self._target(tensors[0]), *[self.program.view(tensor) for tensor in tensors[1:]]]
        dim %= tensors[-1].dim()
        order = [d for d in range(tensors[-1].dim()) if d != dim]
        outer = [tensors[-1].shape[d] for d in order]
        strides: list[list[int]] = []
        for tensor in tensors:
            whole = tensor if tensor.dim() == tensors[-1].dim() else tensor.unsqueeze(dim)
            strides.append([*[whole.stride(d) for d in order], whole.stride(dim)])
        return views, outer, strides

    def _on__log_softmax(self, result: Tensor, source: Tensor, dim: int, *_: Any) -> None:
        views, outer, strides = self._along(result, source, dim=dim)
        self._add(reductions.log_softmax(views[0], views[1], outer, source.shape[dim], strides))

    def _on__log_softmax_backward_data(self, result: Tensor, grad: Tensor, output: Tensor, dim: int, *_: Any) -> None:
        views, outer, strides = self._along(result, grad, output, dim=dim)
        self._add(reductions.log_softmax_backward(views, outer, output.shape[dim], strides))

    def _on_argmax(self, result: Tensor, source: Tensor, dim: int | None = None, *_: Any) -> None:
        if dim is None or source.dtype != torch.float32:
            raise UnsupportedError("an argmax over everything")
        views, outer, strides = self._along(result, source, dim=dim)
        self._add(reductions.largest_at(views[0], views[1], outer, source.shape[dim], (strides[0][:-1], strides[1])))

    def _on_gather(self, result: Tensor, source: Tensor, dim: int, index: Tensor, **_: Any) -> None:
        views = [self._target(result), self.program.view(source), self.program.view(index)]
        steps = list(source.stride())
        step, steps[dim] = steps[dim], 0
        strides = (result.stride(), steps, index.stride())
        self._add(reductions.picked(views, result.shape, strides, step, source.shape[dim]))

    def _on_index(self, result: Tensor, source: Tensor, indices: Sequence[Tensor | None]) -> None:
        dim, *others = [place for place, index in enumerate(indices) if index is not None]
        index = cast("Tensor", indices[dim])
        if others or index.dtype != torch.int64:
            raise UnsupportedError("indices of several dimensions, or masks")
        views = [self._target(result), self.program.view(source), self.program.view(index)]
        before, after = source.stride()[:dim], source.stride()[dim + 1 :]
        through = (*[0] * len(before), *index.stride(), *[0] * len(after))
        strides = (result.stride(), (*before, *[0] * index.dim(), *after), through)
        self._add(reductions.picked(views, result.shape, strides, source.stride(dim), source.shape[dim]))

    def _on_scatter_add(self, result: Tensor, before: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
        self._elementwise("copy", result, (None, before), {})
        self.close()
        views = [self._target(result), self.program.view(source), self.program.view(index)]
        steps = list(result.stride())
        step, steps[dim] = steps[dim], 0
        strides = (steps, source.stride(), index.stride())
        self._add(reductions.added_where(views, index.shape, strides, step, result.shape[dim]))

    # Pieces put together

    def _on_cat(self, result: Tensor, parts: Sequence[Tensor], dim: int = 0) -> None:
        done = 0
        self._target(result)
        for part in parts:
            self._elementwise("copy", result.narrow(dim, done, part.shape[dim]), (None, part), {})
            done += part.shape[dim]

    def _on_stack(self, result: Tensor, parts: Sequence[Tensor], dim: int = 0) -> None:
        self._target(result)
        for number, part in enumerate(parts):
            self._elementwise("copy", result.select(dim, number), (None, part), {})

    def _on_select_backward(self, result: Tensor, grad: Tensor, _: Any, dim: int, index: int) -> None:
        self._elementwise("copy", result, (None, 0.0), {})
        self._elementwise("copy", result.select(dim, index), (None, grad), {})

    def _on_slice_backward(self, result: Tensor, grad: Tensor, _: Any, *where: int) -> None:
        self._elementwise("copy", result, (None, 0.0), {})
        self._elementwise("copy", torch.ops.aten.slice(result, *where), (None, grad), {})

    def _on_constant_pad_nd(self, result: Tensor, source: Tensor, pad: Sequence[int], value: float = 0.0) -> None:
        self._elementwise("copy", result, (None, value), {})
        inside = result
        for place, (before, behind) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
            dim = source.dim() - 1 - place
            left = max(0, -before)
            source = source.narrow(dim, left, source.shape[dim] - left - max(0, -behind))
            inside = inside.narrow(dim, max(0, before), source.shape[dim])
        self._elementwise("copy", inside, (None, source), {})

    def _on_binary_cross_entropy_with_logits(self, result: Tensor, x: Tensor, target: Tensor, *others: Any) -> None:
        if others not in ((), (None, None, 0)):
            raise UnsupportedError("weights or means of a cross entropy")
        self._elementwise("cross_entropy", result, (x, target), {})

    def _on_polygamma(self, result: Tensor, order: int, x: Tensor) -> None:
        if order != 1:
            raise UnsupportedError(f"polygamma of order {order}")
        self._elementwise("trigamma", result, (x,), {})


def _computed_in(name: str, result: Tensor, args: Sequence[Any]) -> torch.dtype:
    """Return the type in which an operation is done on each number."""
    if name not in COMPARISONS | _COPIES and name != "copy":
        return result.dtype
    kinds = {arg.dtype if isinstance(arg, Tensor) else _KINDS[type(arg)] for arg in args if arg is not None}
    if name == "copy":
        kinds = {args[1].dtype} if isinstance(args[1], Tensor) else {result.dtype}
    return next(kind for kind in (torch.float32, torch.int64, torch.int32, torch.bool) if kind in kinds)
