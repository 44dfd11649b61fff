"""Simulators that hand out batched tensors, which stay on their device from the simulation to the loss."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces

from twostep.errors import EnvError
from twostep.protocols import Step
from twostep.tree import Tree, tree_items, tree_map

_FINAL_KEYS = ("final_obs", "final_observation")
_NUM_ROWS_NAMES = ("num_rows", "num_envs")


class TensorEnv:
    """A simulator of many rows on one device as a `RowEnv` whose leaves are tensors.

    The simulator resets ended rows itself, in the step that ends them, and returns from `step` either
    `(obs, rewards, terminated, truncated, infos)` or `(obs, rewards, dones, infos)`, where `infos["time_outs"]`
    (`[B]`) says which of the `dones` only ran out of time. `obs` is a tensor `[B, ...]` or a dict of such. `reset`
    returns `obs` or `(obs, infos)`. Action masks come in `infos["action_mask"]` (`[B, n]`).

    The value of a row that ran out of time is that of the state it was cut in, so the last observations must come too:
    in `infos["final_obs"]`, `infos["final_observation"]` or `infos["observations"]["final"]`, each the structure of
    `obs` with all `B` rows, of which only those of ended rows are read.

    Args:
        env: The simulator.
        observation_space: The space of one row; by default the simulator's `single_observation_space`, or
            `observation_space`, or unbounded boxes in the shapes of the first observations.
        action_space: The space of one row; by default the simulator's, or an unbounded box of `num_actions`.
        num_rows: By default the simulator's `num_rows` or `num_envs`.
        missing_final_obs: What to do where a row runs out of time without its last observation: `"error"`, or
            `"previous"` to value the observation before the last action in its stead, an approximation that costs a
            copy of the observations per step.
        seed: What the first `reset` without a seed uses, where the simulator's `reset` takes one.

    A step waits for the device once, to learn which rows ended.
    """

    def __init__(
        self,
        env: Any,
        *,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        num_rows: int | None = None,
        missing_final_obs: Literal["error", "previous"] = "error",
        seed: int | None = None,
    ) -> None:
        if missing_final_obs not in ("error", "previous"):
            raise EnvError(f"missing_final_obs={missing_final_obs!r}, but must be 'error' or 'previous'. Choose one.")
        self.env = env
        self.num_rows = num_rows or _first_attribute(env, _NUM_ROWS_NAMES)
        self.action_space = action_space or _action_space(env)
        self._takes_seed = "seed" in inspect.signature(env.reset).parameters
        self._stand_in = missing_final_obs == "previous"
        self._seed = seed
        self._previous_obs: Tree = None
        self._closed = False
        self.observation_space = observation_space or self._observation_space()

    def _observation_space(self) -> spaces.Space[Any]:
        space = _declared_space(self.env, "observation_space")
        if space is not None:
            return space
        return space_like(self._reset_env(self._seed)[0])

    def reset(self, seed: int | None = None) -> Step:
        """Start every row anew; a seed reaches the simulator where its `reset` takes one."""
        seed, self._seed = (self._seed if seed is None else seed), None
        obs, infos = self._reset_env(seed)
        self._remember(obs)
        starts = torch.ones(self.num_rows, dtype=torch.bool, device=_device(obs))
        return Step(obs, starts, action_masks=_action_masks(infos))

    def _reset_env(self, seed: int | None) -> tuple[Tree, Mapping[str, Any]]:
        with _outside_inference_mode():
            result = self.env.reset(seed=seed) if self._takes_seed and seed is not None else self.env.reset()
        obs, infos = result if isinstance(result, tuple) else (result, {})
        obs = _as_tree(obs)
        _require_tensors(obs, self.num_rows)
        return obs, infos if isinstance(infos, Mapping) else {}

    def step(self, actions: Tree) -> Step:
        """Take one action per row."""
        with _outside_inference_mode():
            # Cloned: the simulator may clip or scale its actions in place, and the rollout keeps the ones given.
            result = self.env.step(tree_map(torch.clone, actions))
        obs, rewards, terminated, truncated, infos = self._unpack(result)
        ended = terminated | truncated
        step = Step(obs, ended, rewards, terminated, truncated, action_masks=_action_masks(infos))
        final_rows = ended.nonzero().squeeze(-1)
        if len(final_rows):
            step.final_rows = final_rows
            step.final_obs = self._final_observations(infos, final_rows, truncated)
        self._remember(obs)
        return step

    def _unpack(self, result: Any) -> tuple[Tree, torch.Tensor, torch.Tensor, torch.Tensor, Mapping[str, Any]]:
        if not isinstance(result, tuple) or len(result) not in (4, 5):
            found = f"a tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
            raise EnvError(
                f"step returned {found}, but must return (obs, rewards, terminated, truncated, infos) or "
                f"(obs, rewards, dones, infos) with infos['time_outs']. Wrap the simulator to return one of these."
            )
        obs, rewards, *ends, infos = result
        obs = _as_tree(obs)
        for name, leaf in (("rewards", rewards), *zip(("terminated or dones", "truncated"), ends, strict=False)):
            if not isinstance(leaf, torch.Tensor) or leaf.shape != (self.num_rows,):
                raise EnvError(
                    f"step returned {name} as {_describe(leaf)}, but it must be a tensor of shape [{self.num_rows}]. "
                    f"Look at the order of what step returns; squeeze a trailing dimension."
                )
        if len(ends) == 2:
            terminated, truncated = (leaf.bool() for leaf in ends)
        else:
            dones = ends[0].bool()
            time_outs = infos.get("time_outs")
            truncated = torch.zeros_like(dones) if time_outs is None else time_outs.to(dones.device).bool() & dones
            terminated = dones & ~truncated
        return obs, rewards.float(), terminated, truncated, infos

    def _final_observations(self, infos: Mapping[str, Any], final_rows: torch.Tensor, truncated: torch.Tensor) -> Tree:
        finals = next((infos[key] for key in _FINAL_KEYS if infos.get(key) is not None), None)
        if finals is None and isinstance(infos.get("observations"), Mapping):
            finals = infos["observations"].get("final")
        if finals is None:
            if not self._stand_in and bool(truncated.any()):
                raise EnvError(
                    f"Rows {truncated.nonzero().squeeze(-1).tolist()} ran out of time, but infos has none of "
                    f"'final_obs', 'final_observation', ['observations']['final'] (keys: {sorted(map(str, infos))}): "
                    f"the value of the state they were cut in is unknown. Write it there before the simulator resets "
                    f"these rows, or pass missing_final_obs='previous' to TensorEnv to value the one before instead."
                )
            # Only terminated rows come here without the stand-in: the values of their next states are never asked for.
            finals = self._previous_obs
        return tree_map(lambda leaf: leaf[final_rows].clone(), _as_tree(finals))

    def _remember(self, obs: Tree) -> None:
        # Cloned: simulators write the next observations into the same memory.
        self._previous_obs = tree_map(torch.clone, obs) if self._stand_in else obs

    def close(self) -> None:
        """Close the simulator where it can be closed; harmless when called twice."""
        close = getattr(self.env, "close", None)
        if callable(close) and not self._closed:
            close()
        self._closed = True


@contextmanager
def _outside_inference_mode() -> Generator[None]:
    """Let simulators make tensors that they may change in place later, whatever mode the caller is in."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def space_like(obs: Tree) -> spaces.Space[Any]:
    """Return unbounded boxes in the structure of a batch of observations `[B, ...]`."""
    if isinstance(obs, Mapping):
        return spaces.Dict({key: space_like(obs[key]) for key in obs})
    if isinstance(obs, tuple):
        return spaces.Tuple([space_like(branch) for branch in obs])
    if obs.dtype == torch.uint8:
        return spaces.Box(0, 255, tuple(obs.shape[1:]), np.uint8)
    return spaces.Box(-np.inf, np.inf, tuple(obs.shape[1:]), np.float32)


def _declared_space(env: Any, name: str) -> spaces.Space[Any] | None:
    single = getattr(env, f"single_{name}", None)
    space = single if single is not None else getattr(env, name, None)
    return space if isinstance(space, spaces.Space) else None


def _action_space(env: Any) -> spaces.Space[Any]:
    space = _declared_space(env, "action_space")
    if space is not None:
        return space
    num_actions = getattr(env, "num_actions", None)
    if isinstance(num_actions, int):
        return spaces.Box(-np.inf, np.inf, (num_actions,), np.float32)
    raise EnvError(
        f"{type(env).__name__} has neither single_action_space, action_space (a Gymnasium space) nor num_actions, so "
        f"nobody knows its actions. Pass action_space= to TensorEnv."
    )


def _first_attribute(env: Any, names: tuple[str, ...]) -> int:
    for name in names:
        if isinstance(getattr(env, name, None), int):
            return getattr(env, name)
    raise EnvError(
        f"{type(env).__name__} has no {' or '.join(names)}: rows must be counted. Pass num_rows= to TensorEnv."
    )


def _as_tree(obs: Any) -> Tree:
    """Turn any mapping, TensorDict included, into plain dicts."""
    if isinstance(obs, torch.Tensor) or obs is None:
        return obs
    if isinstance(obs, tuple):
        return tuple(_as_tree(branch) for branch in obs)
    if isinstance(obs, Mapping) or callable(getattr(obs, "keys", None)):
        return {str(key): _as_tree(obs[key]) for key in obs.keys()}  # noqa: SIM118 - a TensorDict iterates its rows
    return obs


def _require_tensors(obs: Tree, num_rows: int) -> None:
    for path, leaf in tree_items(obs):
        if not isinstance(leaf, torch.Tensor) or leaf.ndim < 1 or leaf.shape[0] != num_rows:
            raise EnvError(
                f"reset returned obs{f' {path!r}' if path else ''} as {_describe(leaf)}, but it must be a tensor of "
                f"shape [{num_rows}, ...]. Simulators that hand out numpy arrays go to twostep.vector.as_env."
            )


def _device(obs: Tree) -> torch.device:
    return next(leaf.device for _, leaf in tree_items(obs))


def _action_masks(infos: Mapping[str, Any]) -> Tree:
    masks = infos.get("action_mask")
    return None if masks is None else tree_map(lambda leaf: leaf.bool(), _as_tree(masks))


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return f"a {type(value).__name__}"
