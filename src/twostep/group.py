"""The processes that learn together, each from rows of its own: what they add up, agree on, and tell one another.

All of them call the same methods in the same order, and all get the same answer. Whoever is alone gets its own back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from twostep.errors import ConfigError, GroupError
from twostep.launch import launch

PATIENCE = 1800.0
"""Seconds that processes wait for one another, unless they say otherwise."""
_PAUSE = 0.01


class Group:
    """One process, which is alone."""

    rank = 0
    size = 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes and speaks for all."""
        return self.rank == 0

    def sum(self, numbers: Tensor) -> Tensor:
        """Add up what each has, which is of the same shape everywhere."""
        return numbers

    def max(self, numbers: Tensor) -> Tensor:
        """Return the largest that any has, number by number."""
        return numbers

    def gather(self, numbers: Tensor) -> Tensor:
        """Return what each has, of the same shape everywhere, one above the other: `[size, ...]`."""
        return numbers[None]

    def std_mean(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sample deviation and the mean of the numbers of all; of numbers that are all alike exactly 0."""
        return torch.std_mean(numbers, correction=1)

    def any(self, true: bool) -> bool:
        """Say whether it is true for any."""
        return true

    def tell(self, value: Any) -> list[Any]:
        """Return what each says, in the order of their ranks: anything that JSON can hold."""
        return [value]

    def collect(self, content: bytes) -> list[bytes]:
        """Bring what each has to the process that leads; the others get nothing back."""
        return [content]

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Let all have what the leading process has, in place."""


ALONE = Group()
"""The group of a process that learns on its own."""


class ProcessGroup(Group):
    """The processes of `torch.distributed`, joined by gloo for what is on a CPU and by NCCL for what is on GPUs."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum(self, numbers: Tensor) -> Tensor:
        """See `Group`."""
        return self._reduced(numbers, dist.ReduceOp.SUM)

    def max(self, numbers: Tensor) -> Tensor:
        """See `Group`."""
        return self._reduced(numbers, dist.ReduceOp.MAX)

    def gather(self, numbers: Tensor) -> Tensor:
        """See `Group`."""
        parts = [torch.empty_like(numbers) for _ in range(self.size)]
        with _answered(self):
            dist.all_gather(parts, numbers.contiguous())
        return torch.stack(parts)

    def std_mean(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """See `Group`; joined from moments, so that nothing is lost where the mean is large (Chan and others 1983)."""
        own = numbers.double()
        mean = own.mean() if own.numel() else own.new_zeros(())
        moments = torch.stack([own.new_full((), float(own.numel())), mean, (own - mean).square().sum()])
        counts, means, squares = self.gather(moments).unbind(1)
        first = means[counts.argmax()]
        shift = (counts * (means - first)).sum() / counts.sum()
        squares = squares.sum() + (counts * (means - first - shift).square()).sum()
        return (squares / (counts.sum() - 1)).sqrt().to(numbers.dtype), (first + shift).to(numbers.dtype)

    def any(self, true: bool) -> bool:
        """See `Group`."""
        return bool(self.max(torch.tensor(int(true))))

    def tell(self, value: Any) -> list[Any]:
        """See `Group`."""
        content = _bytes(json.dumps(value, default=float).encode())
        sizes = self.gather(torch.tensor(content.numel())).tolist()
        parts = self.gather(torch.nn.functional.pad(content, (0, max(sizes) - content.numel())))
        return [json.loads(part[:size].numpy().tobytes()) for part, size in zip(parts, sizes, strict=True)]

    def collect(self, content: bytes) -> list[bytes]:
        """See `Group`."""
        sizes = self.gather(torch.tensor(len(content))).tolist()
        padded = torch.nn.functional.pad(_bytes(content), (0, max(sizes) - len(content)))
        parts = [torch.empty_like(padded) for _ in sizes] if self.leads else None
        with _answered(self):
            dist.gather(padded, parts)
        return [part[:size].numpy().tobytes() for part, size in zip(parts or (), sizes, strict=False)]

    def share(self, tensors: Iterable[Tensor]) -> None:
        """See `Group`."""
        with _answered(self), torch.no_grad():
            for tensor in tensors:
                sent = tensor.detach().contiguous()
                dist.broadcast(sent, 0)
                tensor.copy_(sent)

    def _reduced(self, numbers: Tensor, how: Any) -> Tensor:
        result = numbers.detach().clone()
        with _answered(self):
            dist.all_reduce(result, how)
        return result


def present_group() -> Group:
    """Return the group of the processes that `torch.distributed` has joined; a process on its own is `ALONE`."""
    joined = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return ProcessGroup() if joined else ALONE


@contextmanager
def joined_group(device: str = "cpu", patience: float = PATIENCE) -> Generator[Group]:
    """Join the processes that torchrun has started, for as long as it is entered; whoever fails in it waits for none.

    Args:
        device: Where networks live; on `cuda` each process takes the GPU of its number on its machine.
        patience: Seconds that one waits for another before it gives up.

    Raises:
        ConfigError: There are more processes than GPUs.
        GroupError: The others do not come.
    """
    if launch().size == 1 or dist.is_initialized():
        yield present_group()
        return
    if device.startswith("cuda"):
        torch.cuda.set_device(own_gpu())
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    with _answered(None):
        waiting = timedelta(seconds=patience)
        store, rank, size = next(rendezvous("env://", timeout=waiting))
        # torchrun may keep the store when it starts all again: what an earlier attempt wrote there is not ours
        own = PrefixStore(f"attempt {launch().restarts}", store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=waiting)
    try:
        yield present_group()
        _leave_together(own, rank, size, patience)
    finally:
        dist.destroy_process_group()


def _leave_together(store: Any, rank: int, size: int, patience: float) -> None:
    """Wait for the last one: a process that ends takes with it what it has said and others have not read yet.

    The first may be the one that keeps the store, so it waits until nobody reads there any more.
    """
    deadline = time.monotonic() + patience

    def wait(told: str, by: int) -> None:
        while store.add(told, 0) < by and time.monotonic() < deadline:
            time.sleep(_PAUSE)

    with suppress(RuntimeError):
        store.add("done", 1)
        wait("done", by=size)
        if rank:
            store.add("gone", 1)
        else:
            wait("gone", by=size - 1)


def own_gpu() -> int:
    """Return the number of the GPU that is for this process of those on its machine."""
    number, there = launch().local_rank, torch.cuda.device_count()
    if number >= there:
        raise ConfigError(
            f"This is process {number + 1} on its machine, but torch sees {there} GPUs there and each process needs "
            "one. Start as many processes as there are GPUs with --nproc-per-node, or take --device cpu."
        )
    return number


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


@contextmanager
def _answered(group: Group | None) -> Generator[None]:
    """Say in plain words that another process is gone, or does not answer."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        who = "The other processes" if group is None else f"Of {group.size} processes that learn together, another one"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise GroupError(
            f"{who} did not answer (this is rank {launch().rank}): it has ended or hangs. What it said "
            f"itself tells why; go on from the last checkpoint with 'twostep resume'. ({reason[:200]})"
        ) from error
