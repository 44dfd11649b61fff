"""What a worker's failure is to the parent: the environment's own error where there is one, and always the place."""

from __future__ import annotations

import sys

from twostep.errors import EnvError
from twostep.vector.channels import unpacked
from twostep.vector.members import Loss, Member
from twostep.vector.worker import CALL, KEEP, MAKE, MEMORY, RESET, STEP, TAKE_UP, Trouble

_DOING = {
    MAKE: "while it made its environments",
    MEMORY: "while it was being set up",
    STEP: "in step",
    RESET: "in reset",
    CALL: "in a call",
    KEEP: "while it told its state",
    TAKE_UP: "while it took up a state",
}


def worker_name(member: Member) -> str:
    """Return what messages call a worker."""
    last = member.first_env + member.num_envs - 1
    envs = f"env {last}" if member.num_envs == 1 else f"env {member.first_env} to env {last}"
    return f"Worker {member.number} ({envs})"


def summary(loss: Loss) -> str:
    """Say in one line what happened to whom."""
    what = f": {loss.trouble.summary.removesuffix('.')}" if loss.trouble else ""
    return f"{worker_name(loss.member)} {loss.reason} {_DOING[loss.told]}{what}"


def error_of(loss: Loss, place: str, way_out: str) -> Exception:
    """Return the error to raise for a loss; `place` says which environment it was at, as far as that is known."""
    if loss.trouble is not None:
        return raised_error(loss.trouble, f"{worker_name(loss.member)}{place}. {way_out}")
    out_of_memory = "SIGKILL" in loss.reason
    hint = " Systems kill the largest process when memory runs out: look there first." if out_of_memory else ""
    words = f"\nIts last words:\n{loss.words}" if loss.words else ""
    return EnvError(f"{summary(loss)}{place}.{hint} {way_out}{words}")


def raised_error(trouble: Trouble, where: str) -> Exception:
    """Return what a worker raised, as it was where that can be rebuilt here, with the worker's own traceback."""
    note = f"This was raised in {where}\nThe worker's own traceback:\n{trouble.traceback}"
    error = _rebuilt(trouble.error)
    if error is None or sys.version_info < (3, 11):
        return EnvError(f"{trouble.summary}\n{note}")
    error.add_note(note)
    return error


def _rebuilt(packed: bytes | None) -> Exception | None:
    """Unpack an error; None where that fails, or where it would end the parent, as SystemExit would."""
    try:
        error = None if packed is None else unpacked(packed)
    except Exception:  # its class may take other arguments than it keeps: then words must do
        return None
    return error if isinstance(error, Exception) else None
