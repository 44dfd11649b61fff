"""Gymnasium's vector environments, EnvPool's among them, as a `RowEnv`: three ways to reset, told apart once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from twostep.errors import EnvError
from twostep.protocols import Step
from twostep.seeds import row_seeds
from twostep.tree import Tree, tree_items, tree_map, tree_stack
from twostep.vector.masks import MASK_KEY, MaskMemory
from twostep.vector.spaces import cast_actions, require_supported_space
from twostep.vector.tasks import require_envs

AutoresetName = Literal["next_step", "same_step", "disabled"]
_MODES: dict[str, AutoresetName] = {"nextstep": "next_step", "samestep": "same_step", "disabled": "disabled"}
_FINAL_OBS_KEYS = ("final_obs", "final_observation")


class GymVectorAdapter:
    """A `gymnasium.vector.VectorEnv` as a `RowEnv`.

    What an ended row looks like depends on the mode that the environment's metadata names:

    - next_step (Gymnasium's default, EnvPool): the step after the end ignores its action and resets. The observation
      that comes with the end is the true last one; the step after it is a phantom, `valid=False`, with reward 0.
    - same_step: the row is reset at once and the last observation comes in `infos["final_obs"]`. Gymnasium's own
      vectors put the environment's array there uncopied: one that writes every observation into the same array needs
      another mode.
    - disabled: this adapter resets ended rows at once through `reset(options={"reset_mask": ...})`.

    Args:
        env: The vector environment.
        seed: What the first `reset` without a seed uses. EnvPool takes its seed where it is made, not here.
        autoreset_mode: The mode of an environment whose metadata does not name one.
    """

    def __init__(self, env: Any, seed: int | None = None, *, autoreset_mode: AutoresetName | None = None) -> None:
        self.env = env
        self.num_rows = int(env.num_envs)
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        require_supported_space(self.observation_space, "single_observation_space")
        require_supported_space(self.action_space, "single_action_space")
        self.autoreset: AutoresetName = autoreset_mode or _autoreset_mode(env)
        _require_all_rows_at_once(env)
        self._finish = {"next_step": self._next_step, "same_step": self._same_step, "disabled": self._disabled}[
            self.autoreset
        ]
        self._seed = seed
        self.spec_name = type(env.unwrapped).__name__
        self._masks: MaskMemory | None = None
        self._masks_sought = False
        self._ended = np.zeros(self.num_rows, dtype=np.bool_)
        self._closed = False
        self._tasks: dict[int, Any] = {}

    def assign(self, tasks: Mapping[int, Any]) -> None:
        """Give environments, by number, the options of their resets from the next one on.

        Only this adapter's own resets can tell them: those of a vector that it resets itself, in the mode `disabled`.
        """
        if self.autoreset != "disabled":
            raise EnvError(
                f"{self.spec_name} resets its environments by itself (autoreset mode {self.autoreset}), so none can be "
                f"told its task. Use vectorization='serial', num_workers=, or autoreset_mode='Disabled'."
            )
        require_envs(tasks, self.num_rows)
        self._tasks.update(tasks)

    def reset(self, seed: int | None = None) -> Step:
        """Start every row anew; the constructor's seed is used by the first call only."""
        seed, self._seed = (self._seed if seed is None else seed), None
        seed_argument = _seed_argument(self.env, seed, self.num_rows)
        obs, infos = self.env.reset(**seed_argument)
        _require_rows(obs, self.num_rows)
        self._ended = np.zeros(self.num_rows, dtype=np.bool_)
        if not self._masks_sought:
            self._masks_sought = True
            if MASK_KEY in infos or (isinstance(obs, dict) and MASK_KEY in obs):
                self._masks = MaskMemory(self.action_space, self.num_rows)
        everyone = np.ones(self.num_rows, dtype=np.bool_)
        step = Step(obs, everyone)
        self._read_masks(step, infos)
        if self._tasks:  # once more, now that every environment is there to be reset on its own
            self._begin_episodes(step, everyone, infos, seed_argument)
        return step

    def step(self, actions: Tree) -> Step:
        """Take one action per row."""
        _require_rows(actions, self.num_rows, "actions")
        obs, rewards, terminated, truncated, infos = self.env.step(cast_actions(self.action_space, actions))
        step = Step(
            obs=obs,
            episode_starts=np.zeros(self.num_rows, dtype=np.bool_),
            rewards=np.asarray(rewards, dtype=np.float32),
            terminated=np.asarray(terminated, dtype=np.bool_),
            truncated=np.asarray(truncated, dtype=np.bool_),
        )
        ended = step.terminated | step.truncated
        self._finish(step, ended, infos)
        return step

    def _next_step(self, step: Step, ended: np.ndarray[Any, Any], infos: dict[str, Any]) -> None:
        phantoms = self._ended
        if phantoms.any():
            step.valid = ~phantoms
            step.episode_starts = phantoms
            step.rewards = np.where(phantoms, np.float32(0), step.rewards)
            step.terminated = step.terminated & step.valid
            step.truncated = step.truncated & step.valid
        # As the environment sees it, even where it ends in a phantom: it will ignore the next action there too.
        self._ended = ended
        if ended.any():
            ended_rows = np.flatnonzero(step.terminated | step.truncated)
            step.infos = {row: row_info(infos, row) for row in ended_rows.tolist()}
        self._read_masks(step, infos, ignored=ended)

    def _same_step(self, step: Step, ended: np.ndarray[Any, Any], infos: dict[str, Any]) -> None:
        if ended.any():
            step.episode_starts = ended
            step.final_rows = np.flatnonzero(ended)
            step.final_obs = _final_observations(infos, step.final_rows)
            last = infos.get("final_info", {key: infos[key] for key in infos if not key.startswith("final_")})
            step.infos = {row: row_info(last, row) for row in step.final_rows.tolist()}
        self._read_masks(step, infos)

    def _disabled(self, step: Step, ended: np.ndarray[Any, Any], infos: dict[str, Any]) -> None:
        if not ended.any():
            self._read_masks(step, infos)
            return
        rows = np.flatnonzero(ended)
        step.infos = {row: row_info(infos, row) for row in rows.tolist()}
        step.episode_starts = ended
        step.final_rows = rows
        step.final_obs = tree_map(lambda leaf: np.array(np.asarray(leaf)[rows]), step.obs)
        self._begin_episodes(step, ended, infos, {})

    def _begin_episodes(
        self, step: Step, chosen: np.ndarray[Any, Any], infos: dict[str, Any], seed_argument: dict[str, Any]
    ) -> None:
        """Reset the chosen rows, those with equal tasks together, and show in `step` what they begin with."""
        # Copied first: the reset may write into the very arrays that the step returned.
        step.obs = tree_map(np.array, step.obs)
        sources = [infos] * self.num_rows
        for task, rows in self._by_task(np.flatnonzero(chosen).tolist()):
            mask = np.zeros(self.num_rows, dtype=np.bool_)
            mask[rows] = True
            options = {**(task or {}), "reset_mask": mask}
            reset_obs, reset_infos = self.env.reset(**seed_argument, options=options)
            step.obs = tree_map(lambda old, new, rows=rows: _replace_rows(old, new, rows), step.obs, reset_obs)
            for row in rows:
                sources[row] = reset_infos
        if self._masks is not None:
            row_masks = [_row_mask(step.obs, source, row) for row, source in enumerate(sources)]
            step.action_masks = self._masks.write(row_masks, "after a reset")

    def _by_task(self, rows: list[int]) -> list[tuple[Any, list[int]]]:
        groups: list[tuple[Any, list[int]]] = []
        for row in rows:
            task = self._tasks.get(row)
            together = next((members for other, members in groups if other == task), None)
            if together is None:
                groups.append((task, [row]))
            else:
                together.append(row)
        return groups

    def _read_masks(self, step: Step, infos: dict[str, Any], ignored: np.ndarray[Any, Any] | None = None) -> None:
        """Read the masks of the next actions; rows that ignore their next action may have none to allow."""
        if self._masks is None:
            return
        row_masks = [
            None if ignored is not None and ignored[row] else _row_mask(step.obs, infos, row)
            for row in range(self.num_rows)
        ]
        step.action_masks = self._masks.write(row_masks, "for the next action")

    def close(self) -> None:
        """Close the wrapped environment, once."""
        if not self._closed:
            self._closed = True
            self.env.close()


def row_info(infos: dict[str, Any], row: int) -> dict[str, Any]:
    """Take one row's info out of a vector's infos.

    Gymnasium writes `{"key": values, "_key": which rows have it}`; EnvPool writes values only; both nest.
    """
    info: dict[str, Any] = {}
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        present = infos.get(f"_{key}")
        if present is not None and not present[row]:
            continue
        if isinstance(value, dict):
            info[key] = row_info(value, row)
        elif isinstance(value, (np.ndarray, list, tuple)) and len(value) > row:
            info[key] = _as_plain(value[row])
        else:
            info[key] = value
    return info


def _as_plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _autoreset_mode(env: Any) -> AutoresetName:
    named = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    mode = _MODES.get(str(getattr(named, "value", named)).lower().replace("_", "").replace("-", ""))
    if mode is None:
        raise EnvError(
            f"{type(env).__name__}: metadata['autoreset_mode'] is {named!r}, but must be one of NextStep, SameStep, "
            f"Disabled: otherwise nobody can tell which observations are an episode's last. Set it on the environment, "
            f"or pass autoreset_mode= to GymVectorAdapter ('next_step' for vectors of Gymnasium before 1.1)."
        )
    return mode


def is_envpool(env: Any) -> bool:
    """Whether EnvPool made this environment; told by name, so that EnvPool need not be installed."""
    return any(base.__name__ == "EnvPoolMixin" for base in type(env).__mro__)


def _require_all_rows_at_once(env: Any) -> None:
    settings = env.config if is_envpool(env) else vars(env.unwrapped)
    batch_size = settings.get("batch_size", env.num_envs)
    if batch_size != env.num_envs:
        raise EnvError(
            f"{type(env).__name__} answers for batch_size={batch_size} of its {env.num_envs} environments at a time; "
            f"every step must answer for all of them. Make it with batch_size={env.num_envs}."
        )


def _seed_argument(env: Any, seed: int | None, num_rows: int) -> dict[str, Any]:
    """Say how a vector takes its seed: one per row where Gymnasium's own classes run single environments."""
    if seed is None:
        return {}
    if isinstance(env.unwrapped, (SyncVectorEnv, AsyncVectorEnv)):
        return {"seed": row_seeds(seed, num_rows)}
    if is_envpool(env) and list(env.config["env_seed"]) == row_seeds(seed, num_rows):
        return {}
    return {"seed": row_seeds(seed, 1)[0]}


def _require_rows(tree: Tree, num_rows: int, name: str = "obs") -> None:
    for path, leaf in tree_items(tree):
        shape = np.shape(leaf)
        if not shape or shape[0] != num_rows:
            raise EnvError(
                f"{name}{f' {path!r}' if path else ''} has shape {list(shape)}, but there are {num_rows} environments: "
                f"the first dimension must be {num_rows}. Return one row per environment."
            )


def _final_observations(infos: dict[str, Any], rows: np.ndarray[Any, Any]) -> Tree:
    """Gather the last observations of `rows`, given one by one (Gymnasium) or as one batch."""
    finals: Tree = next((infos[key] for key in _FINAL_OBS_KEYS if key in infos), None)
    if isinstance(finals, np.ndarray) and finals.dtype == object:
        chosen: list[Tree] = [finals[row] for row in rows]
        finals = None if any(one is None for one in chosen) else tree_stack(np.stack, chosen)
    elif finals is not None:
        finals = tree_map(lambda leaf: np.array(np.asarray(leaf)[rows]), finals)
    if finals is None:
        raise EnvError(
            f"Rows {rows.tolist()} ended, but infos has no 'final_obs' for them (keys: {sorted(infos)}): with "
            f"autoreset_mode SameStep each ended row must give its last observation there, for its value to be known."
        )
    return finals


def _replace_rows(old: np.ndarray[Any, Any], new: Any, rows: list[int]) -> np.ndarray[Any, Any]:
    old[rows] = np.asarray(new)[rows]
    return old


def _row_mask(obs: Tree, infos: dict[str, Any], row: int) -> Tree:
    present = infos.get(f"_{MASK_KEY}")
    if MASK_KEY in infos and (present is None or present[row]):
        return tree_map(lambda leaf: leaf[row], infos[MASK_KEY])
    if isinstance(obs, dict) and MASK_KEY in obs:
        return obs[MASK_KEY][row]
    raise EnvError(
        f"env {row}: infos has no '{MASK_KEY}' for it now, but had one after the first reset (keys: {sorted(infos)}). "
        f"An environment that masks actions must do so after every reset and step."
    )
