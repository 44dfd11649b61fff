"""Functions of a small network that become machine code, once a run has proved to be long.

A compiler takes a second, on another core, and gives other last digits than torch. So that a run can be repeated and
gone on with to the last bit, the moment of the change is counted in operations, never in seconds, and is part of the
state of whoever calls.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from twostep.native import Draw, Lowered, NativeCall, lowered, machine_code
from twostep.tree import Tree, tree_filled, tree_leaves, tree_map

_LOG = logging.getLogger(__name__)
FIRST_CALLS = 8
"""Calls with the same shapes after which is written down what they do."""
_OVER, _LEFT_OUT = -1, -2
"""What stands for the number of calls, once it no longer matters: machine code took over, or there were too many."""
_HEAD_START = 0.3
"""At which part of the way to the change the compiler is started."""
_AGREEMENT = 1e-4
"""How far compiled results may be from those of torch, in parts of the largest number; a fault is much further off."""
_SMALL = 0.05
"""Below this, numbers are means of larger ones, which rounding may move by more than a part of what is left."""
_MOST_SHAPES = 6
"""How many shapes are compiled: where there are more, because minibatches change their size, the rest is not."""


class _Shared:
    """What the whole process has one of; a process that was forked makes its own."""

    def __init__(self) -> None:
        self.compiling = ThreadPoolExecutor(1, thread_name_prefix="twostep-compiling")
        self.exchanging = threading.RLock()
        """Held while the process's own random stream is exchanged for another."""


_SHARED = _Shared()
os.register_at_fork(after_in_child=_SHARED.__init__)


@contextmanager
def drawing_from(generator: torch.Generator) -> Generator[None, None, None]:
    """Let whatever draws random numbers draw from `generator`; the process's own stream stays as it is."""
    default = torch.default_generator
    if generator.device.type == "cuda":
        default = torch.cuda.default_generators[generator.device.index or 0]
    with _SHARED.exchanging:
        before = default.get_state()
        default.set_state(generator.get_state())
        try:
            yield
        finally:
            generator.set_state(default.get_state())
            default.set_state(before)


class Code:
    """Machine code as a function of a tree."""

    def __init__(
        self, call: NativeCall, fixed: list[Tensor], draws: list[Draw], generator: torch.Generator | None, result: Tree
    ) -> None:
        self._call, self._fixed, self._draws, self._result = call, fixed, draws, result
        self._generator = generator or torch.default_generator

    def __call__(self, tree: Tree) -> Tree:
        """Do what the function does."""
        drawn = [draw.made(self._generator) for draw in self._draws]
        with torch.no_grad():
            return tree_filled(self._result, self._call(*self._fixed, *tree_leaves(tree), *drawn))


@dataclass
class _Shapes:
    """What is known of calls with the same shapes."""

    calls: int = 0
    """How many there were, `_OVER` or `_LEFT_OUT`."""
    asked: bool = False
    """Whether what the calls do has been written down, or could not be."""
    written: Lowered | None = None
    made: Future[NativeCall | None] | None = None
    result: Tree = None
    """What the result looks like, a number for each tensor."""
    code: Code | None = None


class Compiled:
    """Calls `fn(tree)`, which must do the same operations with `module` whatever the tensors hold, as fast as it can.

    What `fn` reads besides the tree and the module's parameters and buffers is frozen as it is when compiled: another
    `key`, or other shapes, are compiled anew. Hooks of inner modules run only until then. What `fn` draws it must draw
    from `generator`, or from the process's own stream where there is none. Where there is no compiler, or something
    that no code is written for, or the code does not agree with the function, the function goes on being called.
    """

    def __init__(
        self, module: nn.Module, fn: Callable[[Tree], Tree], generator: torch.Generator | None = None, *, after: float
    ) -> None:
        """`after`: how many operations, with the same shapes, are done before the change, large ones counting more."""
        self.module, self.fn, self.generator, self.after = module, fn, generator, after
        self._shapes: dict[Any, _Shapes] = {}
        self._tensors: list[Tensor] = []
        self._forms: list[Any] = []
        self._before: dict[str, int] = {}
        """Calls that were made before a state was saved, by signatures in words."""

    def notice_changes(self) -> None:
        """Forget what was made of tensors that the module no longer has, or that became others, of another type say."""
        tensors = [*self.module.parameters(), *self.module.buffers()]
        forms = [(tensor.dtype, tensor.device, tensor.shape) for tensor in tensors]
        same = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        if not same or forms != self._forms:
            self._tensors, self._forms = tensors, forms
            self._shapes.clear()

    def __call__(self, tree: Tree, key: Any = None) -> Tree:
        """Call the function, or what it became."""
        called = signature(tree, key)
        shapes = self._shapes.get(called)
        if shapes is None:
            calls = self._before.pop(str(called), 0)
            shapes = self._shapes[called] = _Shapes(calls, asked=calls == _LEFT_OUT)
        if shapes.code is None and self.after < float("inf"):
            self._advance(shapes, tree)
        return self.fn(tree) if shapes.code is None else shapes.code(tree)

    def forget(self) -> None:
        """Compile everything anew: `fn` does something else from now on."""
        self._shapes.clear()

    def code(self, tree: Tree, key: Any = None) -> Code | None:
        """Return what the function became for trees of these shapes, if it has."""
        shapes = self._shapes.get(signature(tree, key))
        return None if shapes is None else shapes.code

    @property
    def num_compiled(self) -> int:
        """For how many shapes it runs as machine code."""
        return sum(shapes.code is not None for shapes in self._shapes.values())

    def state_dict(self) -> dict[str, int]:
        """Return how often each signature was called, in words, or what became of it."""
        return self._before | {str(called): one.calls for called, one in self._shapes.items()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there: what ran compiled is compiled at once when it is needed."""
        self._before = dict(state)
        self._shapes.clear()

    def _advance(self, shapes: _Shapes, tree: Tree) -> None:
        """Count a call; start the compiler, or go over to what it made, when the time has come."""
        if shapes.calls < 0 and shapes.asked:
            return
        was_over = shapes.calls == _OVER
        shapes.calls += shapes.calls >= 0
        if not shapes.asked and (was_over or shapes.calls >= FIRST_CALLS):
            shapes.asked = True
            if was_over or sum(other.asked for other in self._shapes.values()) <= _MOST_SHAPES:
                shapes.written = self._lowered(shapes, tree)
            else:
                shapes.calls = _LEFT_OUT
        if shapes.written is not None:
            done = self.after if was_over else shapes.calls * shapes.written.work
            if shapes.made is None and done >= _HEAD_START * self.after:
                shapes.made = _SHARED.compiling.submit(machine_code, shapes.written)
            if done >= self.after:
                self._go_over(shapes, shapes.written)

    def _lowered(self, shapes: _Shapes, tree: Tree) -> Lowered | None:
        fixed = [*self.module.parameters(), *self.module.buffers()]
        grad, stream = torch.is_grad_enabled(), self.generator or torch.default_generator
        before = stream.get_state()
        with torch.inference_mode(False), torch.set_grad_enabled(grad):
            tree = tree_map(lambda leaf: leaf.detach().clone(memory_format=torch.contiguous_format), tree)

            def fn() -> list[Tensor]:
                result = self.fn(tree)
                shapes.result = tree_map(lambda _: 0, result)
                return tree_leaves(result)

            try:
                return lowered(fn, [*fixed, *tree_leaves(tree)])
            finally:
                stream.set_state(before)

    def _go_over(self, shapes: _Shapes, written: Lowered) -> None:
        """Let machine code take over, if there is any and it gives the same numbers up to rounding."""
        assert shapes.made is not None
        call = shapes.made.result()
        shapes.calls, shapes.written = _OVER, None
        if call is None:
            return
        found = call(*written.inputs)
        if all(_near(one, other) for one, other in zip(found, written.results, strict=True)):
            fixed = [*self.module.parameters(), *self.module.buffers()]
            shapes.code = Code(call, fixed, written.draws, self.generator, shapes.result)
        else:
            _LOG.warning("machine code does not agree with what it was made from, and is not used")


def signature(tree: Tree, key: Any) -> Any:
    """Return what decides which operations are done."""
    return (key, *[(leaf.shape, leaf.dtype) for leaf in tree_leaves(tree)])


def _near(compiled: Tensor, expected: Tensor) -> bool:
    finite = expected[expected.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    near = (compiled - expected).abs() <= _AGREEMENT * max(largest, _SMALL)
    return bool((near | (compiled == expected) | (compiled.isnan() & expected.isnan())).all())
