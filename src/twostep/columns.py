"""The portable form of a rollout: which columns there are, and how a plain dict of them gets its shape back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from twostep.errors import RolloutError
from twostep.runtime import device_memory
from twostep.tree import Tree, tree_map

NUMBERS = ("logprobs", "values", "rewards", "next_values")
FLAGS = ("terminated", "truncated", "episode_starts")
TREES = ("obs", "actions", *NUMBERS, *FLAGS, "valid", "states", "action_masks", "context", "advantages", "returns")
"""Every column of a rollout that holds tensors."""
REQUIRED = ("obs", "actions", "logprobs", "values", "rewards")
PORTABLE_NAMES = {"obs": "observations", "logprobs": "log_probs"}
BELONGS_TO = "advantages_of"
"""Under which a portable dict says what its advantages were computed from."""
_USED = ("rewards", "values", "terminated", "truncated", "advantages")
SHORT_NAMES = {long: short for short, long in PORTABLE_NAMES.items()}


def require_memory(
    steps: int,
    rows: int,
    device: torch.device | str,
    per_step: Iterable[Tensor],
    sequences: int = 0,
    per_sequence: Iterable[Tensor] = (),
) -> None:
    """Refuse a rollout that the device cannot hold, before anything of it is allocated.

    `per_step` are the leaves of one step's observations, actions and conditions, `[B, ...]`, and `per_sequence` those
    of the memory that enters a sequence.
    """
    needed = steps * rows * (4 * len(NUMBERS) + len(FLAGS) + 1)  # one byte more: valid
    needed += steps * sum(leaf.numel() * leaf.element_size() for leaf in per_step)
    needed += sequences * sum(leaf.numel() * leaf.element_size() for leaf in per_sequence)
    there = device_memory(device)
    if there is not None and needed > there:
        raise RolloutError(
            f"A rollout of rollout_steps={steps} by {rows} rows needs {size_in_words(needed)} of memory, but {device} "
            f"has {size_in_words(there)}. Collect fewer steps at a time: 128 to 2048 are usual."
        )


def size_in_words(size: int) -> str:
    """Write a number of bytes in the largest unit of which it has one."""
    power = min(4, max(0, size.bit_length() - 1) // 10)
    return f"{size / 1024**power:,.1f} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def restored(given: Any) -> dict[str, Any]:
    """Bring the columns of a portable dict back to `[T, B, ...]`, and fill in what somebody else's does not have."""
    if not isinstance(given, Mapping):
        raise RolloutError(
            f"Rollout data is {type(given).__name__}; it must be a RolloutBuffer or the dict of collect_rollouts. "
            "Several are joined by combine_rollouts."
        )
    data = cast("Mapping[str, Any]", given)
    known = {SHORT_NAMES.get(name, name): value for name, value in data.items()}
    missing = [PORTABLE_NAMES.get(name, name) for name in REQUIRED if known.get(name) is None]
    if missing:
        raise RolloutError(
            f"Rollout data lacks {', '.join(missing)}; it has {', '.join(sorted(map(str, data)))}. "
            "Use the dict that collect_rollouts or to_dict gives."
        )
    total = torch.as_tensor(known["rewards"]).numel()
    steps, rows = (int(size) for size in known.get("shape", (total, 1)))
    if steps * rows != total:
        raise RolloutError(f"shape={[steps, rows]} does not fit {total} rewards; it must be [steps, rows].")
    length = int(known.get("sequence_length", 1))
    columns: dict[str, Any] = {}
    for name in TREES:
        if known.get(name) is not None:
            first = -(-steps // length) if name == "states" else steps
            columns[name] = _shaped(known[name], name, first, rows)
    for name in (*NUMBERS, "advantages", "returns", *FLAGS, "valid"):
        if name in columns:
            column = _one_each(columns[name], name)
            columns[name] = column.bool() if name in (*FLAGS, "valid") else column.float()
    _complete(columns, known, steps, rows)
    _drop_outdated(columns, known.get(BELONGS_TO))
    return {**columns, "sequence_length": length, "policy_version": known.get("policy_version")}


def _shaped(tree: Tree, name: str, first: int, rows: int) -> Tree:
    def shaped(leaf: Any) -> Tensor:
        tensor = torch.as_tensor(leaf)
        if tensor.dim() == 0 or tensor.shape[0] != first * rows:
            raise RolloutError(
                f"{PORTABLE_NAMES.get(name, name)} has shape {tuple(tensor.shape)}, but its first dimension must be "
                f"{first * rows}: one entry per {'sequence' if name == 'states' else 'transition'}. "
                "Give every column the transitions of all rows, step by step."
            )
        if tensor.is_floating_point():
            tensor = tensor.float()  # what networks take
        elif name == "actions":
            tensor = tensor.long()
        return tensor.reshape(first, rows, *tensor.shape[1:])

    return tree_map(shaped, tree)


def _one_each(column: Tensor, name: str) -> Tensor:
    if any(size != 1 for size in column.shape[2:]):
        raise RolloutError(
            f"{PORTABLE_NAMES.get(name, name)} has {tuple(column.shape[2:])} numbers per transition; there must be one."
        )
    return column.reshape(column.shape[:2])


def marks_of(columns: Mapping[str, Any]) -> list[float]:
    """Return a number for each column from which advantages are computed, and one for these: others for other data."""
    used = [columns[name].double().flatten().nan_to_num() for name in _USED]
    weights = torch.linspace(1.0, 2.0, used[0].numel(), dtype=torch.float64, device=used[0].device)
    return (torch.stack(used) @ weights).tolist()


def _drop_outdated(columns: dict[str, Any], marks: list[float] | None) -> None:
    """Let advantages be computed anew where what they came from was changed, and they were not."""
    if columns.get("advantages") is None:
        columns.pop("returns", None)
        return
    if marks is None:
        columns.setdefault("returns", columns["advantages"] + columns["values"])
        return
    *used, advantages = [
        math.isclose(now, then, rel_tol=1e-9, abs_tol=1e-9) for now, then in zip(marks_of(columns), marks, strict=True)
    ]
    if advantages and not all(used):
        columns["advantages"] = columns["returns"] = None
    else:
        columns.setdefault("returns", columns["advantages"] + columns["values"])


def _complete(columns: dict[str, Any], known: Mapping[str, Any], steps: int, rows: int) -> None:
    """Derive what is missing: `dones` are ends of the step, not told apart, so they count as terminations."""
    values = columns["values"]
    none = torch.zeros_like(values, dtype=torch.bool)
    columns.setdefault("valid", ~none)
    columns.setdefault("truncated", none.clone())
    if "terminated" not in columns:
        dones = _one_each(_shaped(known["dones"], "dones", steps, rows), "dones").bool() if "dones" in known else none
        columns["terminated"] = dones & ~columns["truncated"]
    if "episode_starts" not in columns:
        starts = torch.ones_like(none)
        starts[1:] = (columns["terminated"] | columns["truncated"])[:-1]
        columns["episode_starts"] = starts
    if "next_values" not in columns:
        columns["next_values"] = torch.where(columns["truncated"], values, torch.cat((values[1:], values[-1:])))
