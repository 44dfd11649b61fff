"""What must never reach learning: numbers that are not finite, masks that allow nothing. Looked for once a rollout."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from twostep.errors import EnvError, NumericsError
from twostep.protocols import RowEnv
from twostep.rollout import RolloutBuffer
from twostep.tree import Tree, tree_items
from twostep.vector.masks import choice_counts
from twostep.vector.spaces import parts_of

_FROM_THE_ENVIRONMENT = "rewards"
_FROM_THE_NETWORK = ("logprobs", "values", "next_values")


def check_numbers(rollout: RolloutBuffer, vecenv: RowEnv) -> None:
    """Name the first number that is not finite, before anything learns from it.

    Observations count wherever they are: the gradient of a step that does not count is 0, and 0 times NaN is NaN.
    """
    columns = {name: getattr(rollout, name) for name in (_FROM_THE_ENVIRONMENT, *_FROM_THE_NETWORK)}
    total = torch.stack(list(columns.values())).sum(0)
    floats = {path: leaf for path, leaf in tree_items(rollout.obs, "obs") if leaf.is_floating_point()}
    sums = [torch.where(rollout.valid, total, 0.0).sum(), *(leaf.sum() for leaf in floats.values())]
    if bool(torch.isfinite(torch.stack(sums)).all()):
        return
    for name, column in (floats | columns).items():
        bad = ~torch.isfinite(column)
        if name not in floats:
            bad &= rollout.valid
        if bool(bad.any()):
            t, row, *inside = bad.nonzero()[0].tolist()
            source = "The network computes, or is shown," if name in _FROM_THE_NETWORK else "The environment gives"
            raise NumericsError(
                f"{name}{inside or ''} is {column[t, row][tuple(inside)].item()} at step {t} of the rollout, row {row}"
                f"{_place(rollout, vecenv, t, row)}. {source} a number that is not finite; nothing was learned from "
                f"this rollout."
            )


def _place(rollout: RolloutBuffer, vecenv: Any, t: int, row: int) -> str:
    """Say which environment a row is, its seed and the episode it was in, as far as the environment tells."""
    rows_per_env = getattr(vecenv, "rows_per_env", None)
    if rows_per_env is None:
        return ""
    whereabouts = getattr(vecenv, "whereabouts", None)
    if whereabouts is None:
        return f" (env {row // rows_per_env})"
    seed, episode = whereabouts(row // rows_per_env)
    begun_since = int(rollout.episode_starts[t + 1 :, row].sum())
    begun_since += int(rollout.terminated[-1, row] | rollout.truncated[-1, row])
    return f" (env {row // rows_per_env}, seed {seed}, episode {episode - begun_since})"


def check_masks(rollout: RolloutBuffer, action_space: spaces.Space[Any]) -> None:
    """Refuse masks that leave some part of an action without any choice."""
    found = _without_choice(action_space, rollout.action_masks, "action_mask")
    bad = {name: empty & rollout.valid for name, empty in found.items()}
    if not bad or not bool(torch.stack([empty.any() for empty in bad.values()]).any()):
        return
    name, empty = next((name, empty) for name, empty in bad.items() if bool(empty.any()))
    t, row = empty.nonzero()[0].tolist()
    raise EnvError(
        f"{name} forbids every action at step {t} of the rollout, row {row}, but at least one must be allowed. End the "
        f"episode where nothing can be done; nothing was learned from this rollout."
    )


def _without_choice(space: spaces.Space[Any], masks: Tree, name: str) -> dict[str, Tensor]:
    """Return where (`[T, B]`) each part of the action has no choice left, by the part's name."""
    if masks is None:
        return {}
    found: dict[str, Tensor] = {}
    for key, part in parts_of(space):
        found |= _without_choice(part, masks[key], f"{name}[{key!r}]")
    counts = choice_counts(space)
    for number, part_mask in enumerate(masks.split(counts, dim=-1) if counts else ()):
        found[name if len(counts) == 1 else f"part {number} of {name}"] = ~part_mask.any(-1)
    return found
