"""A function of a network, recorded once it proves to be called again and again, and replayed as a list of operations.

Small networks spend most of their time between operations. A recording performs the same operations in the same order
without Python or autograd in between, so results are the same to the last bit; unlike compiling it takes a fraction of
a second. Until shapes have recurred a few dozen times the function is simply called.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from twostep.tree import Tree, tree_filled, tree_leaves

ONE_AT_A_TIME = threading.RLock()
"""Held while something changes for the whole process: a recording being made, the default random stream exchanged."""

PATIENCE = 48
"""Calls with the same shapes after which recording pays."""


class Recorded:
    """Calls `fn(tree)`, which must do the same operations with `module` whatever the tensors hold.

    What `fn` reads besides the tree and the module's parameters and buffers is frozen as it is when recording: another
    `key`, or other shapes, record anew. Hooks of inner modules run only until then.
    """

    def __init__(self, module: nn.Module, fn: Callable[[Tree], Tree]) -> None:
        self.module, self.fn = module, fn
        self._calls: Counter[Any] = Counter()
        self._replays: dict[Any, Callable[[Tree], Tree]] = {}
        self._tensors: list[Tensor] = []

    def notice_changes(self) -> None:
        """Forget recordings of tensors that the module no longer has, because a part of it was replaced."""
        tensors = [*self.module.parameters(), *self.module.buffers()]
        same = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        if not same:
            self._tensors = tensors
            self._replays.clear()
            self._calls.clear()

    def __call__(self, tree: Tree, key: Any = None) -> Tree:
        """Call the function, or replay what it did with tensors of these shapes."""
        signature = (key, *[(leaf.shape, leaf.dtype) for leaf in tree_leaves(tree)])
        replay = self._replays.get(signature)
        if replay is not None:
            return replay(tree)
        self._calls[signature] += 1
        result = self.fn(tree)
        if self._calls[signature] == PATIENCE:
            self._replays[signature] = self._recorded(tree, result)
        return result

    def _recorded(self, tree: Tree, result: Tree) -> Callable[[Tree], Tree]:
        """Trace the function, gradients included; where that cannot be done it goes on being called."""
        named = [*self.module.named_parameters(), *self.module.named_buffers()]
        names, fixed = [f"module.{name}" for name, _ in named], [tensor for _, tensor in named]

        def with_tensors(*tensors: Tensor) -> list[Tensor]:
            given = dict(zip(names, tensors[: len(names)], strict=True))
            for given_tensor, tensor in zip(given.values(), fixed, strict=True):
                given_tensor.requires_grad_(tensor.requires_grad)
            varying = tree_filled(tree, tensors[len(names) :])
            return tree_leaves(functional_call(_Calling(self.module, self.fn), given, (varying,)))

        try:
            with ONE_AT_A_TIME:
                trace = _traced(with_tensors, [*fixed, *tree_leaves(tree)])
        except RuntimeError as error:
            warnings.warn(f"Going on without a recording, as fast as before: {error}", stacklevel=2)
            return self.fn

        def replay(tree: Tree) -> Tree:
            with torch.no_grad():
                return tree_filled(result, trace(*fixed, *tree_leaves(tree)))

        return replay


class _Calling(nn.Module):
    """A module that calls a function of another one, so that its parameters can be handed in."""

    def __init__(self, module: nn.Module, fn: Callable[[Tree], Tree]) -> None:
        super().__init__()
        self.module, self.fn = module, fn

    def forward(self, tree: Tree) -> Tree:
        return self.fn(tree)


def _traced(fn: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    with torch.inference_mode(False):
        examples = tuple(tensor.detach().clone() for tensor in tensors)
        with torch.random.fork_rng(devices=[]):
            graph = make_fx(fn)(*examples)
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it warns that shapes become constants, which is what is wanted
                return cast("Callable[..., Sequence[Tensor]]", torch.jit.trace(graph, examples, check_trace=False))
