"""What a training process asks of the machine. Nothing here runs on import."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache

import torch
from torch import nn

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT = 1 << 29


def keep_freed_memory() -> None:
    """Let the allocator keep up to half a gigabyte of freed memory instead of handing it back at every step.

    A learning step frees and takes the same blocks again; giving them back to the system costs page faults that can
    outweigh the arithmetic. Changes the whole process; does nothing where the C library is not glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        adjust = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    adjust(_MMAP_THRESHOLD, _KEPT)
    adjust(_TRIM_THRESHOLD, _KEPT)


def chosen_device(device: torch.device | str | None) -> torch.device:
    """Return the device of that name; None and "auto" take a GPU if there is one."""
    if device is None or device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def device_memory(device: torch.device | str) -> int | None:
    """Return how many bytes a device has, in use or not; None where nobody can tell."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if device.type != "cpu":
        return None
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


SMALL_NETWORK = 300_000
"""Parameters below which a second thread waits longer than it works."""


def limit_threads(policy: nn.Module) -> None:
    """Compute a small network in one thread of this process, unless the environment says how many."""
    if "OMP_NUM_THREADS" not in os.environ and _is_small(policy):
        torch.set_num_threads(1)


@contextmanager
def suitable_threads(policy: nn.Module, device: torch.device) -> Generator[None, None, None]:
    """Compute a small network on a CPU in one thread for a while, unless the environment says how many."""
    before = torch.get_num_threads()
    if before == 1 or device.type != "cpu" or "OMP_NUM_THREADS" in os.environ or not _is_small(policy):
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _is_small(policy: nn.Module) -> bool:
    return sum(p.numel() for p in policy.parameters()) < SMALL_NETWORK


LARGE_PRODUCT = 1024
"""Samples at once from which the other product kernel of a CPU pays; for small ones its calls cost more."""
_EXACT = 1e-6


_threads_computing = 0


@contextmanager
def one_kernel() -> Generator[None]:
    """Keep to one kernel while several threads compute: which one is in use is the whole process's to choose.

    Otherwise a thread would round by what another one happens to do. To be entered and left by one thread.
    """
    global _threads_computing
    _threads_computing += 1
    try:
        yield
    finally:
        _threads_computing -= 1


@contextmanager
def fast_products(samples: int, device: torch.device) -> Generator[None, None, None]:
    """Let large products on a CPU run through the faster of its two kernels, where that one keeps single precision.

    On some processors it computes in bfloat16 instead, which is measured once and then refused.
    """
    if device.type != "cpu" or samples < LARGE_PRODUCT or _threads_computing or not _stays_exact():
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@cache
def _stays_exact() -> bool:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(256, 256, generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        error = (a @ b - exact).abs().max() / exact.abs().max()
    finally:
        torch.set_float32_matmul_precision(before)
    return bool(error < _EXACT)
