"""Small networks in machine code: what a function does is written as C, compiled, and called as one function.

For networks of a few thousand parameters the arithmetic is a fraction of what the calls between operations cost. Here
all of them become one call, over memory that is laid out beforehand. Nothing is approximated but the last digits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from torch import Tensor

from twostep.native.building import BuildError
from twostep.native.calling import NativeCall
from twostep.native.lowering import Draw, Lowered, Lowering
from twostep.native.programs import UnsupportedError

__all__ = ["Draw", "Lowered", "NativeCall", "lowered", "machine_code"]

_LOG = logging.getLogger(__name__)


def lowered(fn: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor]) -> Lowered | None:
    """Call a function of these inputs and write down what it does; None where no kernel is written for something.

    What the function returns must depend on nothing else that changes from call to call but random numbers.
    """
    try:
        return Lowering().lowered(fn, inputs)
    except UnsupportedError as error:
        _LOG.info("going on without machine code: %s", error)
        return None


def machine_code(program: Lowered) -> NativeCall | None:
    """Compile a program; None where there is no compiler, or it fails."""
    try:
        return NativeCall(program)
    except BuildError as error:
        _LOG.info("going on without machine code: %s", error)
        return None
