"""A group whose processes are threads of this one: for what needs no network and no learning."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from twostep.group import ProcessGroup

Result = TypeVar("Result")


class _Room:
    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=20)
        self.told: list[Any] = [None] * size


class ThreadGroup(ProcessGroup):
    """Statistics are those of `ProcessGroup`; only the way to the others is another."""

    def __init__(self, room: _Room, rank: int) -> None:
        self.room, self.rank, self.size = room, rank, len(room.told)

    def _exchanged(self, value: Any) -> list[Any]:
        self.room.told[self.rank] = value
        self.room.barrier.wait()
        told = list(self.room.told)
        self.room.barrier.wait()
        return told

    def gather(self, numbers: Tensor) -> Tensor:
        return torch.stack(self._exchanged(numbers))

    def sum(self, numbers: Tensor) -> Tensor:
        return self.gather(numbers).sum(0)

    def max(self, numbers: Tensor) -> Tensor:
        return self.gather(numbers).amax(0)

    def tell(self, value: Any) -> list[Any]:
        return [json.loads(told) for told in self._exchanged(json.dumps(value))]

    def collect(self, content: bytes) -> list[bytes]:
        return self._exchanged(content) if self.leads else self._exchanged(content)[:0]

    def share(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            tensor.copy_(self._exchanged(tensor.clone())[0])


def together(size: int, work: Callable[[ThreadGroup], Result]) -> list[Result]:
    """Let so many threads do their part of the work, and return what each found."""
    room = _Room(size)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, [ThreadGroup(room, rank) for rank in range(size)]))
