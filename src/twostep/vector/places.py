"""Errors of environments, with the place in the run where they happened."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import NoReturn

from twostep.errors import EnvError
from twostep.vector.spaces import TreeSlot

_STORING = TreeSlot.__setitem__.__code__.co_filename
_elsewhere = 0


def count_envs_from(first: int) -> None:
    """Say that environments `0..first-1` live in other processes, so that messages number those here from `first`."""
    global _elsewhere
    _elsewhere = first


def env_name(index: int) -> str:
    """Return what messages call the environment at `index` of this process."""
    return f"env {_elsewhere + index}"


def raise_at(place: str, error: Exception) -> NoReturn:
    """Raise an environment's error as it is, with a note that says where in the run it happened."""
    if sys.version_info >= (3, 11):
        error.add_note(f"This happened in {place}.")
        raise error
    raise EnvError(f"{place}: {type(error).__name__}: {error}") from error


def raised_by_us(error: Exception, files: Collection[str]) -> bool:
    """Whether the error came from storing, in one of `files`, what an environment returned, and not from within it."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_code.co_filename in (_STORING, *files)
