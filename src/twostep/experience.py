"""Rollouts as a whole: joined, saved, loaded, made up for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from twostep.errors import RolloutError
from twostep.rollout import _TREES, Episode, RolloutBuffer, same_structure
from twostep.tree import Tree, tree_items, tree_map, tree_stack

RolloutLike = TypeVar("RolloutLike", RolloutBuffer, dict[str, Any])
FORMAT = 1


def combine_rollouts(rollouts: Sequence[RolloutLike]) -> RolloutLike:
    """Join rollouts along rows, shorter ones filled up with invalid steps; empty ones add nothing.

    Dicts give a dict, buffers a buffer. Advantages stay raw: they are normalised when learning, over the union. They are
    kept only where every rollout has them.
    """
    if not rollouts:
        raise RolloutError("combine_rollouts([]) has nothing to join. Pass at least one rollout.")
    if isinstance(rollouts[0], Mapping):
        buffers = [RolloutBuffer.from_dict(cast("dict[str, Any]", rollout)) for rollout in rollouts]
        return cast("RolloutLike", _combine(buffers).to_dict())
    return cast("RolloutLike", _combine(cast("list[RolloutBuffer]", list(rollouts))))


def _combine(rollouts: list[RolloutBuffer]) -> RolloutBuffer:
    filled = [rollout for rollout in rollouts if rollout.rewards.numel()]
    if not filled:
        return rollouts[0]
    same_structure(filled)
    steps = max(rollout.num_steps for rollout in filled)
    length = filled[0].sequence_length
    fields: dict[str, Any] = {}
    for name in _TREES:
        trees = [getattr(rollout, name) for rollout in filled]
        if any(tree is None for tree in trees):
            continue
        size = -(-steps // length) if name == "states" else steps
        padded = [_lengthened(tree, size, name) for tree in trees]
        fields[name] = tree_stack(lambda leaves: torch.cat(leaves, dim=1), padded)
    episodes: list[Episode] = []
    first_row = 0
    for rollout in filled:
        episodes += [Episode(**{**asdict(e), "row": e.row + first_row}) for e in rollout.episodes]
        first_row += rollout.num_rows
    versions = {rollout.policy_version for rollout in filled}
    version = versions.pop() if len(versions) == 1 else None
    return RolloutBuffer(**fields, sequence_length=length, episodes=episodes, policy_version=version)


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


def save_rollouts(rollout: RolloutBuffer | Mapping[str, Any], path: str | Path) -> Path:
    """Write a rollout to one safetensors file: no pickle, readable from any language."""
    buffer = rollout if isinstance(rollout, RolloutBuffer) else RolloutBuffer.from_dict(rollout)
    tensors: dict[str, Tensor] = {}
    structure: dict[str, Any] = {}
    for name in _TREES:
        tree = getattr(buffer, name)
        structure[name] = _described(tree)
        tensors |= {key: leaf.contiguous().clone() for key, leaf in tree_items(tree, name)}
    described = {
        "format": FORMAT,
        "structure": structure,
        "sequence_length": buffer.sequence_length,
        "policy_version": buffer.policy_version,
        "episodes": [asdict(episode) for episode in buffer.episodes],
    }
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    save_file(tensors, partial, metadata={"twostep": json.dumps(described)})
    return partial.replace(target)


def load_rollouts(path: str | Path, device: torch.device | str = "cpu") -> RolloutBuffer:
    """Read a rollout that `save_rollouts` wrote."""
    try:
        with safe_open(str(path), framework="pt", device=str(device)) as file:
            described = json.loads((file.metadata() or {}).get("twostep", "null"))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError as error:
        raise RolloutError(f"There is no rollout file at {path}.") from error
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise RolloutError(f"{path} is not a whole rollout file: {error}. Collect it again.") from error
    if described is None:
        raise RolloutError(f"{path} holds tensors but no rollout. Use a file that save_rollouts wrote.")
    if described["format"] > FORMAT:
        raise RolloutError(f"{path} has format {described['format']}, newer than this version reads. Upgrade twostep.")
    fields = {name: _rebuilt(shape, name, tensors) for name, shape in described["structure"].items()}
    return RolloutBuffer(
        **fields,
        sequence_length=described["sequence_length"],
        episodes=[Episode(**episode) for episode in described["episodes"]],
        policy_version=described["policy_version"],
    )


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
