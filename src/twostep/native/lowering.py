"""From a function to a program: it is called once, and every operation that it does on the way is written down.

Which results share memory with what is read off from the tensors themselves, so views need no code at all, and
operations in place or into `out=` are no special case: they write where their result lies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from twostep.native.programs import Program, UnsupportedError
from twostep.native.writing import Writer

_FILLS: dict[str, Callable[..., Tensor]] = {"uniform": Tensor.uniform_, "normal": Tensor.normal_}
"""Random numbers that depend on nothing but a shape: they can be drawn before everything else."""
_DEPENDING = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
"""What marks operations after which Python may go another way next time; of indices only whole numbers are taken."""
_FLOPS_OF_AN_OPERATION = 150_000
"""Arithmetic that takes as long as the call of an operation, about 3 us."""
_LONGEST = 20_000
"""Operations beyond which nothing is compiled."""


class Draw(NamedTuple):
    """Random numbers that are the same whatever is computed."""

    fill: Callable[..., Tensor]
    shape: torch.Size
    args: tuple[Any, ...]

    def made(self, generator: torch.Generator | None) -> Tensor:
        """Draw anew."""
        empty = torch.empty(self.shape, dtype=torch.float32, device="cpu")
        return self.fill(empty, *self.args, generator=generator)


class Lowered(NamedTuple):
    """A program, and what went in and came out when it was written."""

    program: Program
    operations: int
    draws: list[Draw]
    own: list[Tensor]
    """Tensors that belong to the function itself: they are handed in behind its inputs and draws."""
    inputs: list[Tensor]
    """With the draws."""
    results: list[Tensor]

    @property
    def work(self) -> int:
        """How long it takes torch, in operations: arithmetic counts as those that take as long."""
        return self.operations + self.program.flops // _FLOPS_OF_AN_OPERATION


class Lowering(TorchDispatchMode):
    """While it is entered, every operation of torch in this thread is done, and written down as a kernel."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch's own compiler would be imported, which takes a second

    def __init__(self) -> None:
        super().__init__()
        self.writer = Writer()
        self.program = self.writer.program
        self.operations = 0
        self.draws: list[tuple[Draw, int, Tensor]] = []
        """What is drawn, into which buffer, and what came."""
        self.own: list[tuple[Tensor, int]] = []

    def lowered(self, fn: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor]) -> Lowered:
        """Call `fn`, which reads these contiguous inputs, each in memory of its own, and write down what it does."""
        places = [self._hand_in(tensor) for tensor in inputs]
        kept = [tensor.detach().clone() for tensor in inputs]
        with self:
            results = list(fn())
        self.writer.close()
        given = [*places, *[buffer for _, buffer, _ in self.draws], *[buffer for _, buffer in self.own]]
        for pointer, buffer in enumerate(given):
            self.program.buffers[buffer].pointer = pointer
        for result in results:
            self.program.view(result)
        drawn = [values for _, _, values in self.draws]
        own = [tensor for tensor, _ in self.own]
        return Lowered(self.program, self.operations, [draw for draw, *_ in self.draws], own, [*kept, *drawn], results)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Do an operation, and write it down unless it only looks at memory in another way."""
        kwargs = kwargs or {}
        for tensor in _tensors((args, kwargs)):
            if not self.program.knows(tensor):  # what belongs to the function
                self.own.append((tensor, self._hand_in(tensor)))
        self.operations += 1
        if self.operations > _LONGEST:
            raise UnsupportedError(f"more than {_LONGEST} operations")
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        if _DEPENDING & set(func.tags) and name != "index":
            raise UnsupportedError(f"{func} takes other ways with other numbers")
        result = func(*args, **kwargs)
        results = _tensors(result)
        mutable = func._schema.is_mutable
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._draw(name, result, args, mutable=mutable)
        elif mutable or not all(self.program.knows(leaf) for leaf in results):
            self._write(name, results, args, kwargs)
        return result

    def _write(self, name: str, results: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self.writer.write(name, results, args, kwargs)
        except UnsupportedError:
            raise
        except Exception as error:  # arguments that nobody thought of
            raise UnsupportedError(f"{name}: {error!r}") from error

    def _hand_in(self, tensor: Tensor) -> int:
        if (
            not tensor.is_contiguous()
            or tensor.storage_offset()
            or tensor.untyped_storage().nbytes() != tensor.numel() * tensor.dtype.itemsize
        ):
            raise UnsupportedError("an input that is a part of something larger")
        buffer = self.program.add(tensor)
        self.writer.guarded.add(buffer)
        return buffer

    def _draw(self, name: str, result: Tensor, args: tuple[Any, ...], *, mutable: bool) -> None:
        """Let random numbers be handed in, where that makes no difference."""
        buffer = self.program.view(result).buffer if mutable and name in _FILLS else -1
        if buffer < 0 or buffer in self.writer.guarded or not result.is_contiguous() or result.dtype != torch.float32:
            raise UnsupportedError(name)
        self.writer.close()
        if any(buffer in kernel.written for kernel in self.program.kernels):
            raise UnsupportedError(f"{name} over numbers that were there before")
        self.draws.append((Draw(_FILLS[name], result.shape, args[1:]), buffer, result.clone()))


def _tensors(tree: Any) -> list[Tensor]:
    """List the tensors among arguments or results."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, (tuple, list)):
        return [leaf for branch in cast("Sequence[Any]", tree) for leaf in _tensors(branch)]
    if isinstance(tree, dict):
        return [leaf for branch in cast("dict[Any, Any]", tree).values() for leaf in _tensors(branch)]
    return []
