"""Small networks in machine code: a recorded graph is written as C, compiled, and called as one function.

For networks of a few thousand parameters the arithmetic is a fraction of what the calls between operations cost. Here
all of them become one call, over memory that is laid out beforehand. Nothing is approximated but the last digits.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import Tensor, fx

from twostep.native.building import BuildError
from twostep.native.calling import NativeCall
from twostep.native.lowering import Lowered, Lowering
from twostep.native.programs import UnsupportedError

__all__ = ["NativeCall", "lowered", "machine_code"]

_LOG = logging.getLogger(__name__)
MOST_FLOPS = 400_000_000
"""Operations beyond which the arithmetic is what takes the time, and torch's own products are as good."""


def lowered(graph: fx.GraphModule, examples: Sequence[Tensor], disposable: int = 0) -> Lowered | None:
    """Write a graph as a program for tensors like the examples; None where it does what no kernel is written for.

    The last `disposable` inputs are nobody else's: they may be written into.
    """
    try:
        written = Lowering(graph).lowered(examples, disposable)
    except UnsupportedError as error:
        _LOG.info("going on without machine code: %s", error)
        return None
    return written if written.program.flops <= MOST_FLOPS else None


def machine_code(program: Lowered) -> NativeCall | None:
    """Compile a program; None where there is no compiler, or it fails."""
    try:
        return NativeCall(program)
    except BuildError as error:
        _LOG.info("going on without machine code: %s", error)
        return None
