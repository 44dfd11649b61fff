"""What random actions meet in an environment: by this a task can be told from others before anything is learned."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from twostep.collect.collector import RolloutCollector
from twostep.errors import EnvError
from twostep.protocols import Step
from twostep.tree import Tree, tree_map, tree_stack
from twostep.vector.checks import allowed_action


def task_trajectories(collector: RolloutCollector, task: Any, count: int, length: int, seed: int) -> tuple[Tensor, int]:
    """Set a collector's environments to a task, act there at random, and let its next rollout begin anew.

    Returns `count` trajectories `[1, count, length, features]`, and how many steps that took. A transition is the
    observation, the action, the reward and whether the episode ended, each flattened as Gymnasium does it. Where an
    episode ends early the trajectory goes on with the next.
    """
    env: Any = collector.vecenv
    if not hasattr(env, "call"):
        raise EnvError(
            f"{type(env).__name__} cannot be told a task. Use environments with a method set_task(task), from make_env "
            "or as they are."
        )
    if count < 1 or length < 1:
        raise EnvError(f"{count} trajectories of {length} steps tell nothing: both must be 1 or more. Try 8 of 16.")
    env.call("set_task", task)
    space = copy.deepcopy(env.action_space)
    space.seed(seed)
    rounds = -(-count // env.num_rows)
    played = [_played(env, env.reset(seed + number), space, length) for number in range(rounds)]
    collector.begin()
    rows = np.concatenate(played, axis=1)[:, :count]  # [length, count, features]
    trajectories = torch.from_numpy(rows.swapaxes(0, 1)[None].copy())
    return trajectories.to(collector.device), rounds * env.num_rows * length


def _played(env: Any, step: Step, space: spaces.Space[Any], length: int) -> np.ndarray:
    """Play one trajectory in every row: `[length, B, features]`."""
    told: list[np.ndarray] = []
    for _ in range(length):
        seen = [_flat(env.observation_space, _row(step.obs, row)) for row in range(env.num_rows)]
        actions = [allowed_action(space, _row_masks(step.action_masks, row)) for row in range(env.num_rows)]
        done = [_flat(space, action) for action in actions]
        step = env.step(tree_stack(_stacked, actions))
        ended = np.asarray(step.terminated) | np.asarray(step.truncated)
        outcomes = np.stack([np.asarray(step.rewards), ended], axis=1)
        told.append(np.concatenate([np.stack(seen), np.stack(done), outcomes], axis=1, dtype=np.float32))
    return np.stack(told)


def _row_masks(masks: Tree, row: int) -> Tree:
    return tree_map(lambda leaf: np.asarray(leaf[row : row + 1]), masks)


def _stacked(leaves: list[Any]) -> np.ndarray:
    return np.stack([np.asarray(leaf) for leaf in leaves])


def _row(tree: Any, row: int) -> Any:
    return tree_map(lambda leaf: np.asarray(leaf[row]), tree)


def _flat(space: spaces.Space[Any], value: Any) -> np.ndarray:
    return np.asarray(spaces.flatten(space, value), dtype=np.float32)
