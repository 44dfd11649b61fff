"""Recordings turned into machine code, once a run has proved to be long.

A compiler takes seconds and gives other last digits than the recording that it replaces. So that a run can be repeated
and gone on with to the last bit, the moment of the change is counted in calls, never in seconds, and is part of the
state of whoever calls. It compiles while training waits: tracing changes torch for the whole process, so that nothing
else may be traced meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from twostep.recorded import ONE_AT_A_TIME, Recorded, Recording, signature
from twostep.tree import Tree, tree_leaves

_LOG = logging.getLogger(__name__)
_AGREEMENT = 1e-3
"""How far compiled results may be from recorded ones, in parts of the largest number; a fault is much further off."""
_LONGEST = 600
"""Operations beyond which compiling takes minutes: loops over time, which are recorded step by step."""
_MOST_SHAPES = 2
"""Recordings that are compiled; where there are more, because minibatches change their size, none is."""
_SAMPLES_OF_A_CALL = 512
"""Samples whose arithmetic takes as long as everything else in a call: longer calls are worth compiling sooner."""


class Compiled(Recorded):
    """A recorded function that goes over to compiled code after so much work.

    Work is counted in calls, weighted by their size, so that the same run changes over at the same call every time.
    Where there is no compiler, or the code does not agree with the recording, the recording stays.
    """

    def __init__(self, module: Any, fn: Callable[[Tree], Tree], after: float) -> None:
        super().__init__(module, fn)
        self.after = after
        self.work = 0.0
        self._compiled: set[str] = set()
        """Which signatures went over, in words."""

    def __call__(self, tree: Tree, key: Any = None) -> Tree:
        """See `Recorded`."""
        if self.work < self.after:
            self._advance(tree)
        elif self._compiled:
            self._catch_up(tree, key)
        return super().__call__(tree, key)

    def state_dict(self) -> dict[str, Any]:
        """Return how much was done, and what runs compiled."""
        return {"work": self.work, "compiled": sorted(self._compiled)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; what ran compiled is compiled at once when it is needed."""
        self.work, self._compiled = state["work"], set(state["compiled"])

    def _advance(self, tree: Tree) -> None:
        self.work += 1 + max(leaf.shape[:2].numel() for leaf in tree_leaves(tree)) / _SAMPLES_OF_A_CALL
        if self.work >= self.after and len(self.recordings) <= _MOST_SHAPES:
            self._compiled |= {str(called) for called, recording in self.recordings.items() if goes_over(recording)}

    def _catch_up(self, tree: Tree, key: Any) -> None:
        """Compile at once what ran compiled when the state was saved."""
        called = signature(tree, key)
        if called in self.recordings or str(called) not in self._compiled:
            return
        self._record(called, tree, self.fn(tree))
        recording = self.recordings.get(called)
        if recording is not None:
            goes_over(recording)


def goes_over(recording: Recording) -> bool:
    """Let a recording run as compiled code, if that works and gives the same numbers up to rounding; say whether."""
    with ONE_AT_A_TIME:
        code = machine_code(recording.graph, recording.examples)
    if code is None:
        return False
    with torch.no_grad():
        pairs = zip(recording.operations(*recording.examples), code(*recording.examples), strict=True)
        agree = all(_near(compiled, expected) for expected, compiled in pairs)
    if agree:
        recording.operations = code
    else:
        _LOG.warning("compiled code does not agree with what it was made from, and is not used")
    return agree


def machine_code(graph: fx.GraphModule, examples: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]] | None:
    """Compile operations on tensors of the examples' shapes; None where that would take long or does not work here."""
    if len(graph.graph.nodes) > _LONGEST:
        return None
    try:
        from torch._inductor import compile as compiled
        from torch._inductor import config
        from torch._inductor.decomposition import select_decomp_table

        with torch.no_grad(), config.patch(compile_threads=1):
            pure = functionalize(graph, remove="mutations_and_views")
            functional = make_fx(pure, decomposition_table=select_decomp_table(), tracing_mode="fake")(*examples)
            functional.graph.eliminate_dead_code()
            functional.recompile()
            code = cast("Callable[..., Sequence[Tensor]]", compiled(functional, list(examples)))
    except Exception as error:
        _LOG.info("going on without compiled code: %s", error)
        return None
    return code


def _near(compiled: Tensor, expected: Tensor) -> bool:
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    return bool(((compiled - expected).abs() <= _AGREEMENT * max(largest, 1e-3)).all())
