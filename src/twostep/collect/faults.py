"""What must never reach learning: numbers that are not finite, masks that allow nothing. Looked for once a rollout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor

from twostep.collect.recording import FLAGS
from twostep.errors import EnvError
from twostep.protocols import RowEnv
from twostep.rollout import RolloutBuffer
from twostep.tree import Tree, tree_items, tree_map
from twostep.vector.masks import choice_counts
from twostep.vector.spaces import parts_of

_FROM_THE_ENVIRONMENT = "rewards"
_FROM_THE_NETWORK = ("logprobs", "values", "next_values")


class Fault(NamedTuple):
    """Numbers that are not finite."""

    message: str
    """What and where the first one is."""
    rows: Tensor
    """`[M]` int: the rows with any."""


def find_fault(rollout: RolloutBuffer, vecenv: RowEnv, steps: int | None = None) -> Fault | None:
    """Look for numbers that are not finite, before anything learns from them; only at observations of `steps`, if so.

    Observations count wherever they are: the gradient of a step that does not count is 0, and 0 times NaN is NaN.
    """
    floats = {path: leaf[:steps] for path, leaf in tree_items(rollout.obs, "obs") if leaf.is_floating_point()}
    columns: dict[str, Tensor] = {}
    if steps is None:
        columns = {name: getattr(rollout, name) for name in (_FROM_THE_ENVIRONMENT, *_FROM_THE_NETWORK)}
    sums = [leaf.sum() for leaf in floats.values()]
    if columns:
        sums.append(torch.where(rollout.valid, torch.stack(list(columns.values())).sum(0), 0.0).sum())
    if not sums or bool(torch.isfinite(torch.stack(sums)).all()):
        return None
    bad = {name: ~torch.isfinite(column) for name, column in (floats | columns).items()}
    bad |= {name: bad[name] & rollout.valid for name in columns}
    found = [name for name in bad if bool(bad[name].any())]
    if not found:
        return None  # finite numbers whose sum is not
    t, row, *inside = bad[found[0]].nonzero()[0].tolist()
    source = "The network computes, or is shown," if found[0] in _FROM_THE_NETWORK else "The environment gives"
    number = (floats | columns)[found[0]][t, row][tuple(inside)].item()
    message = (
        f"{found[0]}{inside or ''} is {number} at step {t} of the rollout, row {row}{_place(rollout, vecenv, t, row)}. "
        f"{source} a number that is not finite; nothing was learned from this rollout."
    )
    rows = [bad[name].transpose(0, 1).flatten(1).any(1) for name in found]
    return Fault(message, torch.stack(rows).any(0).nonzero()[:, 0])


def leave_out(rollout: RolloutBuffer, columns: Mapping[str, Any], rows: Tensor) -> None:
    """Let whole rows of a rollout, and of its columns on the host, count nowhere."""

    def clear(leaf: Tensor) -> None:
        leaf[:, rows] = 0

    names = ("obs", "actions", "logprobs", "values", "rewards", "next_values", "states", "valid", *FLAGS)
    for name in names:
        tree_map(clear, getattr(rollout, name))
    for name in ("rewards", "valid", *FLAGS):
        columns[name][:, rows.cpu().numpy()] = 0


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
