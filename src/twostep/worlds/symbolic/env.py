"""One expression at a time, as a Gymnasium environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from twostep.errors import EnvError
from twostep.worlds.symbolic.config import SymbolicConfig
from twostep.worlds.symbolic.discoveries import Discovery
from twostep.worlds.symbolic.grammar import Array
from twostep.worlds.symbolic.laws import Task
from twostep.worlds.symbolic.search import Search


class SymbolicEnv(gym.Env[Array, Any]):
    """An expression is written token by token, in prefix order, to explain data; `Search` says what is observed.

    `action_masks()`, and `info["action_mask"]`, say which tokens may come next. The reward comes with the last token:
    the part of the data's deviation that is explained, more where the law is found, a little less for a large
    expression. Nothing is ever cut: every expression ends within its limits.
    """

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 - declared so by Gymnasium

    def __init__(
        self, config: SymbolicConfig | None = None, *, render_mode: str | None = None, **settings: Any
    ) -> None:
        """Take a config, or its settings one by one."""
        self.config = SymbolicConfig.from_dict(settings) if config is None else config
        if config is not None and settings:
            raise EnvError(f"{', '.join(settings)} came beside a config, which says it already. Give one of the two.")
        self.search = Search(self.config, 1)
        self.observation_space = self.search.observation_space
        self.action_space = self.search.action_space
        self.render_mode = render_mode
        self._begun = self._over = False

    def set_task(self, task: Task | Sequence[Task]) -> None:
        """Let expressions begun from now on be for this task, or each for one drawn from several."""
        self.search.set_task(task)

    def best(self) -> dict[str, Discovery]:
        """Return the best expression so far for each law."""
        return dict(self.search.best)

    def action_masks(self) -> Array:
        """Return which tokens may come next, `[n]`."""
        return self.search.masks()[0]

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin an expression; `options={"task": ...}` says for what, this time."""
        super().reset(seed=seed)
        if seed is not None or not self._begun:
            self.search.seed([0], [self.config.seed if seed is None else seed])
        self._begun, self._over = True, False
        self.search.begin([0], (options or {}).get("task"))
        return self._observed(), {"task": self.search.task_name(0), "action_mask": self.action_masks()}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Write one token."""
        if not self._begun or self._over:
            raise EnvError("step was called, but no expression is being written. Call reset first.")
        written = self.search.write(np.asarray(action).reshape(1))
        self._over = bool(len(written.ended))
        info = written.infos.get(0, {"task": self.search.task_name(0)})
        info["action_mask"] = self.action_masks()
        return self._observed(), float(written.rewards[0]), self._over, False, info

    def _observed(self) -> Array:
        return self.search.observe()[0].copy()

    def render(self) -> str | None:
        """Return the words so far."""
        if self.render_mode is None:
            return None
        tokens = self.search.drafts.tokens[0]
        return " ".join(self.search.grammar.words[token] for token in tokens[tokens >= 0].tolist())
