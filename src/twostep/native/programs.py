"""A function as a list of kernels on memory: what the pieces of generated C are, and in which order they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from twostep.errors import TwostepError

C_TYPES = {torch.float32: "float", torch.int64: "int64_t", torch.int32: "int32_t", torch.bool: "uint8_t"}
ALIGNMENT = 64


class UnsupportedError(TwostepError):
    """A function does something that no kernel is written for here."""


@dataclass(frozen=True)
class View:
    """Where in which buffer the numbers of a tensor lie; dimensions of size 1 are left out."""

    buffer: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def c_type(self) -> str:
        """The type of one number in C."""
        return C_TYPES[self.dtype]

    @property
    def last(self) -> int:
        """The place of the last number."""
        return self.offset + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    def may_overlap(self, other: View) -> bool:
        """Say whether two views may share numbers."""
        return self.buffer == other.buffer and self.offset <= other.last and other.offset <= self.last

    def same_place(self, other: View) -> bool:
        """Say whether the same index means the same number in both."""
        return (self.buffer, self.offset, self.strides) == (other.buffer, other.offset, other.strides)


@dataclass
class Kernel:
    """One piece of C: the text of a routine, and the views whose addresses it takes in order."""

    views: list[View]
    written: set[int]
    """Buffers it writes."""
    read: set[int]
    """Buffers it reads."""

    def text(self) -> str:
        """Return the routine's body; its parameters are named `p0`, `p1`, ..."""
        raise NotImplementedError("text() -> C")

    def takes_in(self, following: Kernel) -> bool:
        """Do what follows as well, and say so, where that saves time."""
        return False

    def without(self, dead: set[int]) -> bool:
        """Forget stores to buffers that nobody reads; say whether anything is left to do."""
        return not self.written <= dead


@dataclass
class Routine(Kernel):
    """A kernel whose text is known at once."""

    body: str = ""

    def text(self) -> str:
        """See `Kernel`."""
        return self.body


@dataclass
class Buffer:
    """Memory that a program uses."""

    size: int
    """Numbers."""
    dtype: torch.dtype
    pointer: int | None = None
    """Which of the pointers that are handed in holds it; None: it lies in the arena."""
    constant: float | None = None
    """The number it is full of."""

    @property
    def bytes(self) -> int:
        """Its size in memory, rounded up so that the next one is aligned."""
        return -(-self.size * self.dtype.itemsize // ALIGNMENT) * ALIGNMENT


@dataclass
class Program:
    """Buffers, and kernels in the order in which they run."""

    buffers: list[Buffer] = field(default_factory=list[Buffer])
    kernels: list[Kernel] = field(default_factory=list[Kernel])
    flops: int = 0
    _places: dict[int, int] = field(default_factory=dict[int, int])
    _alive: list[Tensor] = field(default_factory=list[Tensor])

    def knows(self, tensor: Tensor) -> bool:
        """Say whether the tensor's memory is already one of the buffers."""
        return tensor.untyped_storage().data_ptr() in self._places

    def add(self, tensor: Tensor) -> int:
        """Take the memory of a tensor as a buffer; it is kept alive so that its address stays its own."""
        storage = tensor.untyped_storage()
        if tensor.dtype not in C_TYPES or tensor.device.type != "cpu" or not tensor.numel():
            raise UnsupportedError(f"{tuple(tensor.shape)} of {tensor.dtype} on {tensor.device}")
        self._alive.append(tensor)
        self._places[storage.data_ptr()] = len(self.buffers)
        self.buffers.append(Buffer(storage.nbytes() // tensor.dtype.itemsize, tensor.dtype))
        return self._places[storage.data_ptr()]

    def view(self, tensor: Tensor) -> View:
        """Say where a tensor lies."""
        if not self.knows(tensor):
            self.add(tensor)
        buffer = self._places[tensor.untyped_storage().data_ptr()]
        if self.buffers[buffer].dtype != tensor.dtype:
            raise UnsupportedError("memory seen as two types")
        kept = [(n, stride) for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if n != 1]
        shape, strides = tuple(n for n, _ in kept), tuple(stride for _, stride in kept)
        return View(buffer, int(tensor.storage_offset()), shape, strides, tensor.dtype)

    def source(self, name: str, header: str, outputs: Sequence[int]) -> tuple[str, int]:
        """Return the program as C, with one function `name(pointers, arena)`, and how many bytes the arena needs."""
        self._drop_dead(set(outputs))
        self._join()
        places, arena = self._placed()
        routines: dict[str, str] = {}
        calls: list[str] = []
        for kernel in self.kernels:
            parameters = ", ".join(f"{view.c_type} *restrict p{i}" for i, view in enumerate(kernel.views))
            text = f"({parameters}) {{\n{kernel.text()}}}\n"
            routine = routines.setdefault(text, f"k{len(routines)}")
            addresses = ", ".join(f"({view.c_type} *)({places[view.buffer]}) + {view.offset}" for view in kernel.views)
            calls.append(f"    {routine}({addresses});\n")
        defined = "".join(f"ROUTINE {routine}{text}\n" for text, routine in routines.items())
        return f"{header}\n{defined}void {name}(char *const *p, char *a) {{\n{''.join(calls)}}}\n", arena

    def _drop_dead(self, live: set[int]) -> None:
        kept: list[Kernel] = []
        for kernel in reversed(self.kernels):
            if kernel.without(kernel.written - live):
                kept.append(kernel)
                live |= kernel.read
        self.kernels = kept[::-1]

    def _join(self) -> None:
        """Let kernels take in those that follow them, where they can."""
        joined: list[Kernel] = []
        for kernel in self.kernels:
            if not joined or not joined[-1].takes_in(kernel):
                joined.append(kernel)
        self.kernels = joined

    def _placed(self) -> tuple[dict[int, str], int]:
        """Give every buffer its place: what is handed in by pointer, the rest in an arena whose space is used again."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for i, kernel in enumerate(self.kernels):
            for view in kernel.views:
                first.setdefault(view.buffer, i)
                last[view.buffer] = i
        places: dict[int, str] = {}
        busy: list[tuple[int, int, int]] = []  # begin, end, last kernel
        arena = 0
        for buffer in sorted(first, key=first.__getitem__):
            pointer = self.buffers[buffer].pointer
            if pointer is not None:
                places[buffer] = f"p[{pointer}]"
                continue
            busy = [block for block in busy if block[2] >= first[buffer]]
            begin = _gap(sorted(busy), self.buffers[buffer].bytes)
            busy.append((begin, begin + self.buffers[buffer].bytes, last[buffer]))
            arena = max(arena, begin + self.buffers[buffer].bytes)
            places[buffer] = f"a + {begin}"
        return places, arena


def _gap(busy: Sequence[tuple[int, int, int]], size: int) -> int:
    begin = 0
    for start, end, _ in busy:
        if start - begin >= size:
            break
        begin = max(begin, end)
    return begin


def loops(shape: Sequence[int], body: str, names: str = "i", *, sums: bool = False) -> str:
    """Write nested loops over `shape` around a body in which `i0`, `i1`, ... are the indices.

    `sums`: the innermost adds to `s`, in whatever order is quick.
    """
    heads = [f"for (int64_t {names}{d} = 0; {names}{d} < {n}; {names}{d}++) " for d, n in enumerate(shape)]
    if sums and heads:
        heads[-1] = f'_Pragma("omp simd reduction(+:s)")\n    {heads[-1]}'
    return f"    {''.join(heads)}{{\n{body}    }}\n"


def at(strides: Sequence[int], names: str = "i") -> str:
    """Write the place that indices mean."""
    terms = [f"{names}{d} * {stride}" for d, stride in enumerate(strides) if stride]
    return " + ".join(terms) or "0"
