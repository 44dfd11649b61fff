"""Compiled code as a function of tensors: addresses go in, and what comes out has memory of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

import torch
from torch import Tensor

from twostep.native.building import library
from twostep.native.lowering import Lowered
from twostep.native.programs import Buffer

_SHORT = 5_000_000
"""Operations of a call so short that letting other threads of Python run meanwhile takes longer than it gives."""


class _Place(NamedTuple):
    """One result: which tensor of the call it is, and how it lies in it; None: as it is."""

    number: int
    how: tuple[Sequence[int], Sequence[int], int] | None


class NativeCall:
    """One call of compiled code on tensors of the shapes and types of the inputs, random numbers behind them."""

    def __init__(self, lowered: Lowered) -> None:
        """Compile what was lowered."""
        program, results = lowered.program, lowered.results
        self._own = lowered.own
        self._fresh: list[tuple[Sequence[int], torch.dtype]] = []
        self._scalars = 0
        outputs = [program.view(result).buffer for result in results]
        self._describe(lowered)
        header = resources.files("twostep.native").joinpath("functions.h").read_text()
        source, arena = program.source("run", header, outputs)
        self._arena = torch.empty(max(arena, 1), dtype=torch.uint8, device="cpu")
        self._code = library(source, alone=program.flops < _SHORT).run
        self._code.restype = None
        self._array = ctypes.c_void_p * (len(lowered.inputs) + len(self._own) + len(self._fresh) + self._scalars)
        self._arena_address = ctypes.c_void_p(self._arena.data_ptr())

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Do what the function does."""
        given = [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in tensors]
        fresh = [torch.empty(shape, dtype=dtype, device="cpu") for shape, dtype in self._fresh]
        addresses = [tensor.data_ptr() for tensor in given]
        addresses += [tensor.data_ptr() for tensor in (*self._own, *fresh)]
        there = [*given, *self._own, *fresh]
        if self._scalars:
            block = torch.empty(self._scalars, dtype=torch.float32, device="cpu")
            first = block.data_ptr()
            addresses += [first + 4 * i for i in range(self._scalars)]
            there += block.unbind()
        self._code(self._array(*addresses), self._arena_address)
        return [there[number] if how is None else _seen(there[number], *how) for number, how in self._results]

    def _describe(self, lowered: Lowered) -> None:
        """Decide which results get memory of their own: one tensor for each buffer, all single numbers in one."""
        buffers, results = lowered.program.buffers, lowered.results
        shapes = {i: tuple(tensor.shape) for i, tensor in enumerate([*lowered.inputs, *lowered.own])}
        given = len(shapes)
        views = [lowered.program.view(result) for result in results]
        whole = [
            result.is_contiguous() and result.numel() == buffers[view.buffer].size
            for result, view in zip(results, views, strict=True)
        ]
        single = {view.buffer for view in views if _is_single(buffers[view.buffer])}
        single -= {view.buffer for result, view in zip(results, views, strict=True) if result.dim()}
        for result, view, is_whole in zip(results, views, whole, strict=True):
            buffer = buffers[view.buffer]
            if buffer.pointer is None and view.buffer not in single:
                buffer.pointer = given + len(self._fresh)
                shapes[buffer.pointer] = tuple(result.shape) if is_whole else (buffer.size,)
                self._fresh.append((shapes[buffer.pointer], buffer.dtype))
        for number in sorted(single):
            if buffers[number].pointer is None:
                buffers[number].pointer = given + len(self._fresh) + self._scalars
                shapes[given + len(self._fresh) + self._scalars] = ()
                self._scalars += 1
        self._results: list[_Place] = []
        for result, view, is_whole in zip(results, views, whole, strict=True):
            pointer: Any = buffers[view.buffer].pointer
            as_it_is = is_whole and shapes[pointer] == tuple(result.shape)
            how = None if as_it_is else (tuple(result.shape), result.stride(), int(result.storage_offset()))
            self._results.append(_Place(pointer, how))


def _seen(tensor: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


def _is_single(buffer: Buffer) -> bool:
    return buffer.size == 1 and buffer.dtype == torch.float32 and buffer.pointer is None
