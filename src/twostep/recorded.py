"""A function of a network, recorded once it proves to be called again and again, and replayed as a list of operations.

Small networks spend most of their time between operations. A recording performs the same operations in the same order
without Python or autograd in between, so results are the same to the last bit; unlike compiling it takes a fraction of
a second. Until shapes have recurred a few dozen times the function is simply called.

Random numbers that a function draws on the way become inputs of its recording, drawn beforehand from a generator.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from operator import is_
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from twostep.tree import Tree, tree_filled, tree_leaves

ONE_AT_A_TIME = threading.RLock()
"""Held while something changes for the whole process: a recording being made, the default random stream exchanged."""

PATIENCE = 48
"""Calls with the same shapes after which recording pays."""

_aten = torch.ops.aten
_DRAWS = {_aten.uniform_.default: Tensor.uniform_, _aten.normal_.default: Tensor.normal_}
"""Draws that depend on nothing but a shape: they can be made before the network is called."""
_ARITHMETIC = {getattr(_aten, name + mark).Tensor for name in ("add", "sub", "mul", "div") for mark in ("", "_")}


@contextmanager
def drawing_from(generator: torch.Generator) -> Generator[None, None, None]:
    """Let whatever draws random numbers draw from `generator`; the process's own stream stays as it is."""
    default = torch.default_generator
    if generator.device.type == "cuda":
        default = torch.cuda.default_generators[generator.device.index or 0]
    with ONE_AT_A_TIME:
        before = default.get_state()
        default.set_state(generator.get_state())
        try:
            yield
        finally:
            generator.set_state(default.get_state())
            default.set_state(before)


class Recording:
    """The operations of one function on tensors of certain shapes, as one call on a tree like the first one."""

    def __init__(
        self, traced: Traced, fixed: Sequence[Tensor], result: Tree, generator: torch.Generator | None
    ) -> None:
        self.graph, self.examples, self.operations, self.draws = traced
        self.fixed, self.result = fixed, result
        self.generator = generator or torch.default_generator
        self.exchange = self.draws is None and generator is not None
        self.calls = 0

    def __call__(self, tree: Tree) -> Tree:
        """Do the operations."""
        self.calls += 1
        if self.exchange:
            with drawing_from(self.generator), torch.no_grad():
                return tree_filled(self.result, self.operations(*self.fixed, *tree_leaves(tree)))
        with torch.no_grad():
            return tree_filled(self.result, self.operations(*self.inputs(tree)))

    def inputs(self, tree: Tree) -> list[Tensor]:
        """List what the operations take: parameters, the tree's leaves, random numbers."""
        return [*self.fixed, *tree_leaves(tree), *[draw.made(self.generator) for draw in self.draws or ()]]


class Recorded:
    """Calls `fn(tree)`, which must do the same operations with `module` whatever the tensors hold.

    What `fn` reads besides the tree and the module's parameters and buffers is frozen as it is when recording: another
    `key`, or other shapes, record anew. Hooks of inner modules run only until then. What is random is drawn from
    `generator`, or from the process's own stream where there is none.
    """

    def __init__(self, module: nn.Module, fn: Callable[[Tree], Tree], generator: torch.Generator | None = None) -> None:
        self.module, self.fn, self.generator = module, fn, generator
        self.recordings: dict[Any, Recording] = {}
        self._calls: Counter[Any] = Counter()
        self._tensors: list[Tensor] = []

    def notice_changes(self) -> None:
        """Forget recordings of tensors that the module no longer has, because a part of it was replaced."""
        tensors = [*self.module.parameters(), *self.module.buffers()]
        same = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        if not same:
            self._tensors = tensors
            self.recordings.clear()
            self._calls.clear()

    def recording(self, tree: Tree, key: Any = None) -> Recording | None:
        """Return what replays the function for trees of these shapes; None until it has been called often enough."""
        return self.recordings.get(signature(tree, key))

    def __call__(self, tree: Tree, key: Any = None) -> Tree:
        """Call the function, or replay what it did with tensors of these shapes."""
        recording = self.recording(tree, key)
        return self._early(signature(tree, key), tree) if recording is None else recording(tree)

    def _early(self, called: Any, tree: Tree) -> Tree:
        """Call the function itself, and record it at the last of the first few calls."""
        self._calls[called] += 1
        result = self._called(tree)
        if self._calls[called] == PATIENCE:
            self._record(called, tree, result)
        return result

    def _called(self, tree: Tree) -> Tree:
        if self.generator is None:
            return self.fn(tree)
        with drawing_from(self.generator):
            return self.fn(tree)

    def _record(self, called: Any, tree: Tree, result: Tree) -> None:
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
                traced = _traced(with_tensors, [*fixed, *tree_leaves(tree)])
        except RuntimeError as error:
            warnings.warn(f"Going on without a recording, as fast as before: {error}", stacklevel=3)
        else:
            self.recordings[called] = Recording(traced, fixed, result, self.generator)


def signature(tree: Tree, key: Any) -> Any:
    """Return what decides which operations are done."""
    return (key, *[(leaf.shape, leaf.dtype) for leaf in tree_leaves(tree)])


class _Calling(nn.Module):
    """A module that calls a function of another one, so that its parameters can be handed in."""

    def __init__(self, module: nn.Module, fn: Callable[[Tree], Tree]) -> None:
        super().__init__()
        self.module, self.fn = module, fn

    def forward(self, tree: Tree) -> Tree:
        return self.fn(tree)


class Draw(NamedTuple):
    """Random numbers that are the same whatever a network computes."""

    fill: Callable[..., Tensor]
    shape: torch.Size
    args: tuple[Any, ...]

    def made(self, generator: torch.Generator) -> Tensor:
        """Draw anew."""
        return self.fill(torch.empty(self.shape), *self.args, generator=generator)


class Traced(NamedTuple):
    """A function as operations on tensors."""

    graph: fx.GraphModule
    examples: list[Tensor]
    operations: Callable[..., Sequence[Tensor]]
    """The graph as one call."""
    draws: Sequence[Draw] | None
    """What to draw for each call besides its tensors; None where draws depend on what comes before them."""


def _traced(fn: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor]) -> Traced:
    with torch.inference_mode(False):
        examples = [tensor.detach().clone() for tensor in tensors]
        with torch.random.fork_rng(devices=[]):
            graph = make_fx(fn)(*examples)
            draws = _without_draws(graph)
            examples += [torch.zeros(draw.shape) for draw in draws or ()]
            lean = _without_detours(fx.GraphModule(graph, deepcopy(graph.graph)))
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it warns that shapes become constants, which is what is wanted
                trace = torch.jit.trace(lean, tuple(examples), check_trace=False)
    return Traced(graph, examples, cast("nn.Module", trace).forward, draws)


def _without_draws(graph: fx.GraphModule) -> Sequence[Draw] | None:
    """Turn random numbers into inputs, in the order in which they were drawn, where all of them can be."""
    random = [node for node in graph.graph.nodes if _is_random(node)]
    if not all(node.target in _DRAWS for node in random):
        return None
    draws: list[Draw] = []
    *_, last_input = (node for node in graph.graph.nodes if node.op == "placeholder")
    for number, node in enumerate(random):
        with graph.graph.inserting_after(last_input):
            drawn = last_input = graph.graph.placeholder(f"drawn_{number}")
        _, *args = node.args
        draws.append(Draw(_DRAWS[node.target], node.meta["val"].shape, tuple(args)))
        node.replace_all_uses_with(drawn)
        graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return draws


def _is_random(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _without_detours(graph: fx.GraphModule) -> fx.GraphModule:
    """Leave out what changes no number: detaching, and turning Python's numbers into tensors at every call."""
    for node in list(graph.graph.nodes):
        if node.target is _aten.detach.default:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
        elif node.target in _ARITHMETIC and node.meta["val"].dtype == torch.float32:
            for place, argument in enumerate(node.args[:2]):
                if isinstance(argument, (int, float)):
                    name = f"number_{node.name}_{place}"
                    graph.register_buffer(name, torch.tensor(float(argument)))
                    with graph.graph.inserting_before(node):
                        node.update_arg(place, graph.graph.get_attr(name))
    graph.recompile()
    return graph
