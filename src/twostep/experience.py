"""Rollouts as a whole: joined, saved, loaded, made up for tests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from twostep.columns import TREES
from twostep.errors import RolloutError
from twostep.rollout import Episode, RolloutBuffer
from twostep.tree import Tree, tree_items, tree_leaves, tree_map, tree_stack, tree_structure

RolloutLike = TypeVar("RolloutLike", RolloutBuffer, dict[str, Any])
FORMAT = 1
_OF_ANY_SHAPE = ("obs", "actions", "states", "action_masks", "context")
"""Columns that hold more than one number per step; of all others there is exactly one."""


def combine_rollouts(rollouts: Iterable[RolloutLike]) -> RolloutLike:
    """Join rollouts along rows, shorter ones filled up with invalid steps; empty ones add nothing.

    Dicts give a dict, buffers a buffer. Advantages stay raw: they are normalised when learning, over the union. They
    are kept only where every rollout has them.
    """
    rollouts = list(rollouts)
    if not rollouts:
        raise RolloutError("combine_rollouts([]) has nothing to join. Pass at least one rollout.")
    combined = _combine([_as_buffer(rollout) for rollout in rollouts])
    return cast("RolloutLike", combined.to_dict() if isinstance(rollouts[0], Mapping) else combined)


def _as_buffer(rollout: RolloutBuffer | Mapping[str, Any]) -> RolloutBuffer:
    return rollout if isinstance(rollout, RolloutBuffer) else RolloutBuffer.from_dict(rollout)


def _combine(rollouts: list[RolloutBuffer]) -> RolloutBuffer:
    filled = [rollout for rollout in rollouts if rollout.rewards.numel()]
    if not filled:
        return rollouts[0]
    steps = max(rollout.num_steps for rollout in filled)
    length = max(rollout.sequence_length for rollout in filled)
    filled = [_with_sequence_length(rollout, length) for rollout in filled]
    _require_same_structure(filled)
    fields: dict[str, Any] = {}
    for name in TREES:
        trees = [getattr(rollout, name) for rollout in filled]
        if any(tree is None for tree in trees):
            continue
        size = -(-steps // length) if name == "states" else steps
        padded = [_lengthened(tree, size, name) for tree in trees]
        fields[name] = tree_stack(lambda leaves: torch.cat(leaves, dim=1), padded)
    episodes: list[Episode] = []
    first_row = 0
    for rollout in filled:
        episodes += [replace(episode, row=episode.row + first_row) for episode in rollout.episodes]
        first_row += rollout.num_rows
    versions = {rollout.policy_version for rollout in filled}
    version = versions.pop() if len(versions) == 1 else None
    return RolloutBuffer(**fields, sequence_length=length, episodes=episodes, policy_version=version)


def _with_sequence_length(rollout: RolloutBuffer, length: int) -> RolloutBuffer:
    """Cut into longer sequences where that changes nothing: without memory, or with a single sequence."""
    free = not tree_leaves(rollout.states) or rollout.num_steps <= rollout.sequence_length
    return replace(rollout, sequence_length=length) if free else rollout


def _require_same_structure(rollouts: list[RolloutBuffer]) -> None:
    """Raise where rollouts cannot be joined, naming the first thing that differs."""
    first = rollouts[0]
    for number, other in enumerate(rollouts[1:], start=1):
        for name in ("obs", "actions", "states", "action_masks", "context"):
            mine, theirs = getattr(first, name), getattr(other, name)
            if tree_structure(mine) != tree_structure(theirs):
                raise RolloutError(
                    f"Rollout {number} has {name} {tree_structure(theirs)}, rollout 0 has {tree_structure(mine)}. "
                    "Only rollouts of one kind of environment and policy can be joined."
                )
            for (path, a), (_, b) in zip(tree_items(mine, name), tree_items(theirs, name), strict=True):
                if a.shape[2:] != b.shape[2:] or a.dtype != b.dtype:
                    raise RolloutError(
                        f"Rollout {number} has {path} of {tuple(b.shape[2:])} {b.dtype} per step, rollout 0 of "
                        f"{tuple(a.shape[2:])} {a.dtype}. Only rollouts of one kind of environment can be joined."
                    )
        if first.sequence_length != other.sequence_length:
            raise RolloutError(
                f"Rollout {number} stores memory every {other.sequence_length} steps, rollout 0 every "
                f"{first.sequence_length}. Collect both with one bptt_length."
            )


def _lengthened(tree: Tree, steps: int, name: str) -> Tree:
    """Repeat the last step up to `steps`; what is added counts nowhere and starts nothing."""

    def lengthen(leaf: Tensor) -> Tensor:
        missing = steps - leaf.shape[0]
        if not missing:
            return leaf
        filler = leaf[-1:].expand(missing, *leaf.shape[1:])
        if name in ("valid", "terminated", "truncated", "episode_starts"):
            filler = torch.zeros_like(filler)
        return torch.cat((leaf, filler))

    return tree_map(lengthen, tree)


def select_rows(rollout: RolloutBuffer, rows: Sequence[int]) -> RolloutBuffer:
    """Return some rows of a rollout, as a rollout of their own."""
    index = torch.tensor(list(rows), dtype=torch.int64, device=rollout.device)
    columns = {name: tree_map(lambda leaf: leaf.index_select(1, index), getattr(rollout, name)) for name in TREES}
    places = {row: place for place, row in enumerate(rows)}
    episodes = [replace(one, row=places[one.row]) for one in rollout.episodes if one.row in places]
    return replace(rollout, **columns, episodes=episodes)


def save_rollouts(rollout: RolloutBuffer | Mapping[str, Any], path: str | Path) -> Path:
    """Write a rollout to one safetensors file: no pickle, readable from any language."""
    buffer = _as_buffer(rollout)
    tensors: dict[str, Tensor] = {}
    structure: dict[str, Any] = {}
    for name in TREES:
        tree = getattr(buffer, name)
        structure[name] = _described(tree)
        tensors |= {key: leaf.cpu().contiguous().clone() for key, leaf in tree_items(tree, name)}
    described = {
        "format": FORMAT,
        "structure": structure,
        "sequence_length": buffer.sequence_length,
        "policy_version": buffer.policy_version,
        "episodes": [episode.to_dict() for episode in buffer.episodes],
    }
    target = Path(path)
    partial = target.with_name(f"{target.name}.partial")
    metadata = {"twostep": json.dumps(described), "sha256": _digest(tensors, described)}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial, metadata=metadata)
        return partial.replace(target)
    except (OSError, SafetensorError) as error:
        raise RolloutError(f"{target} could not be written: {error}. Make room, or choose another place.") from error


def load_rollouts(path: str | Path, device: torch.device | str = "cpu") -> RolloutBuffer:
    """Read a rollout that `save_rollouts` wrote."""
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            described = json.loads(metadata.get("twostep", "null"))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError as error:
        raise RolloutError(f"There is no rollout file at {path}.") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise RolloutError(f"{path} is not a whole rollout file: {error}. Collect it again.") from error
    if not isinstance(described, dict) or not isinstance(described.get("format"), int):
        raise RolloutError(f"{path} holds tensors but no rollout. Use a file that save_rollouts wrote.")
    if described["format"] > FORMAT:
        raise RolloutError(f"{path} has format {described['format']}, newer than this version reads. Upgrade twostep.")
    if metadata.get("sha256") != _digest(tensors, described):
        raise RolloutError(f"{path} is damaged: its SHA-256 is not the one it carries. Collect it again.")
    try:
        rollout = _assembled(described, tensors)
        _require_one_size(rollout)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError, RecursionError) as error:
        raise RolloutError(f"{path} was not written by save_rollouts: {error!r}. Collect it again.") from error
    return rollout.to(device)


def _assembled(described: dict[str, Any], tensors: Mapping[str, Tensor]) -> RolloutBuffer:
    return RolloutBuffer(
        **{name: _rebuilt(shape, name, tensors) for name, shape in described["structure"].items()},
        sequence_length=described["sequence_length"],
        episodes=[Episode(**episode) for episode in described["episodes"]],
        policy_version=described["policy_version"],
    )


def _require_one_size(rollout: RolloutBuffer) -> None:
    """Refuse columns that do not belong together, before anything reads one by the size of another."""
    steps, rows = rollout.rewards.shape
    sequences = -(-steps // rollout.sequence_length)
    for name in TREES:
        first = sequences if name == "states" else steps
        for path, leaf in tree_items(getattr(rollout, name), name):
            if tuple(leaf.shape[:2]) != (first, rows) or (name not in _OF_ANY_SHAPE and leaf.dim() != 2):
                raise ValueError(f"{path} of shape {tuple(leaf.shape)} in a rollout of {steps} steps and {rows} rows")


def rollout_digest(path: str | Path) -> str:
    """Return the SHA-256 that a rollout file carries, without reading its tensors; loading it proves it."""
    try:
        with safe_open(str(path), framework="pt") as file:
            return (file.metadata() or {})["sha256"]
    except (SafetensorError, OSError, KeyError) as error:
        raise RolloutError(f"{path} is no whole rollout file: {error}. Collect it again.") from error


def _digest(tensors: Mapping[str, Tensor], described: dict[str, Any]) -> str:
    """Return the SHA-256 of tensors on the CPU with their names, types and shapes, and of what is said about them."""
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for key in sorted(tensors):
        digest.update(f"{key} {tensors[key].dtype} {tuple(tensors[key].shape)}".encode())
        digest.update(tensors[key].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _described(tree: Tree) -> Any:
    """Describe a tree's structure in JSON: a dict, a list, `"leaf"` or null."""
    if isinstance(tree, Mapping):
        return {key: _described(tree[key]) for key in sorted(tree)}
    if isinstance(tree, tuple):
        return [_described(branch) for branch in tree]
    return None if tree is None else "leaf"


def _rebuilt(shape: Any, path: str, tensors: Mapping[str, Tensor]) -> Tree:
    if isinstance(shape, dict):
        return {key: _rebuilt(branch, f"{path}/{key}", tensors) for key, branch in shape.items()}
    if isinstance(shape, list):
        return tuple(_rebuilt(branch, f"{path}/{i}", tensors) for i, branch in enumerate(shape))
    return None if shape is None else tensors[path]


def create_fake_rollout_data(
    n_samples: int = 1000, obs_dim: int = 4, n_actions: int = 2, seed: int | None = None
) -> dict[str, Any]:
    """Make up rollout data for testing the learning phase alone: discrete actions, unit-variance returns."""
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "observations": normal(n_samples, obs_dim),
        "actions": torch.randint(n_actions, (n_samples,), generator=generator),
        "rewards": normal(n_samples),
        "values": normal(n_samples),
        "log_probs": torch.full((n_samples,), -float(torch.tensor(float(n_actions)).log())),
        "advantages": normal(n_samples),
        "returns": normal(n_samples),
        "dones": torch.rand(n_samples, generator=generator) < 0.05,
    }
