"""What a training process asks of the machine. Nothing here runs on import."""

from __future__ import annotations

import ctypes
import sys

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
