"""What a policy is scored on: a suite of named cases, each an environment, how it is played, and against whom."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np

from twostep.errors import ConfigError
from twostep.values import settle, show
from twostep.vector.makers import require_own

HEURISTIC = "heuristic"
"""The environment's own player, as the name of an opponent."""
MOST_CASES, MOST_EPISODES, MOST_ENVS = 1_000, 1_000_000, 4_096

_NAME = re.compile(r"[\w.+-]+(/[\w.+-]+)?")


@dataclass(kw_only=True)
class SimulationCase:
    """An environment in which a policy is scored; what is none here is as the suite says."""

    env: Any = ""
    """A Gymnasium id, `skirmish`, `module:function`; from Python also a function or class."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the environment itself takes, over what the suite's `kwargs` say."""
    episodes: int | None = None
    """Episodes to play."""
    max_steps: int | None = None
    """Steps after which an episode is cut, where the environment does not end it."""
    max_time_s: float | None = None
    """Seconds after which the case ends with the episodes that were finished."""
    num_envs: int | None = None
    """Environments stepped together."""
    agent_ids: tuple[str, ...] = ()
    """Whom of many agents the policy plays, by ids or patterns such as `blue_*`; none: as the environment says."""
    npc: str | None = None
    """Who plays the other agents: `heuristic`, the environment's own player, or a policy's URI."""
    npc_selector: Literal["latest", "best"] | None = None
    """Which policy is taken where the URI names many."""
    deterministic: bool | None = None
    """Whether both sides act by the mode of their distributions instead of sampling from them."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        settle(self)
        if not (isinstance(self.env, str) or callable(self.env) or callable(getattr(self.env, "make", None))):
            raise ConfigError(f"env={show(self.env)} must be an environment's id or a function: CartPole-v1, say.")
        _check(self)


@dataclass(kw_only=True)
class SimulationSuite:
    """Cases by name, such as `navigation/maze`: what comes before the slash is the category."""

    cases: dict[str, SimulationCase] = field(default_factory=dict[str, SimulationCase])
    """The environments in which a policy is scored."""
    name: str = "suite"
    """Names the table and the files of results."""
    seed: int = 0
    """What all episodes grow from: the same seed gives the same scores."""
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """What every environment takes."""
    episodes: int = 20
    """Episodes of each case."""
    max_steps: int | None = None
    """Steps after which an episode is cut; none leaves it to the environment."""
    max_time_s: float | None = None
    """Seconds that a case may take; none plays all episodes."""
    num_envs: int = 8
    """Environments stepped together."""
    npc: str = HEURISTIC
    """Who plays the agents that the policy does not play: `heuristic`, or a policy's URI."""
    npc_selector: Literal["latest", "best"] = "latest"
    """Which policy is taken where the URI names many."""
    deterministic: bool = True
    """Whether both sides act by the mode of their distributions."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        cases, self.cases = self.cases, {}
        settle(self)
        self.cases = _checked_cases(cases)
        _check(self)
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed={self.seed} must be from 0 to {2**32 - 1}: 0 is a good start.")

    def resolved(self) -> dict[str, SimulationCase]:
        """Return the cases with the suite's values filled in wherever a case says nothing."""
        return {name: self._resolved(case) for name, case in self.cases.items()}

    def _resolved(self, case: SimulationCase) -> SimulationCase:
        taken = {name: getattr(self, name) for name in _SHARED if getattr(case, name) is None}
        return replace(case, kwargs={**self.kwargs, **case.kwargs}, **taken)

    def seed_of(self, name: str) -> int:
        """Return the seed of a case, which other cases beside it do not change."""
        return int(np.random.SeedSequence([self.seed, zlib.crc32(name.encode())]).generate_state(1)[0])


_SHARED = ("episodes", "max_steps", "max_time_s", "num_envs", "npc", "npc_selector", "deterministic")
"""What a case takes from its suite."""


def category_of(name: str) -> str:
    """Return what comes before the slash; a case without one is a category of its own."""
    return name.partition("/")[0]


def _checked_cases(cases: Any) -> dict[str, SimulationCase]:
    if not isinstance(cases, Mapping) or not cases:
        raise ConfigError(
            f"cases={show(cases)} must be cases by name, one at least: {{'balance/cartpole': {{env: CartPole-v1}}}}."
        )
    named = dict(cast("Mapping[Any, Any]", cases))
    if len(named) > MOST_CASES:
        raise ConfigError(f"cases={show(named)} must be at most {MOST_CASES:,}, not {len(named):,}: wrong file?")
    for name, case in named.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"cases.{show(name)} must be named by letters, digits, '_', '-', '.' and '+', with one slash after the "
                "category at most: 'navigation/maze'."
            )
        if name.rpartition("/")[2] == "score":
            raise ConfigError(f"cases.{name} must have another name: that is the score of its category.")
        if not isinstance(case, SimulationCase):
            raise ConfigError(f"cases.{name}={show(case)} must be a SimulationCase: SimulationCase(env='CartPole-v1').")
        if case.env == "":
            raise ConfigError(f"cases.{name} has no env: name its environment, such as env: CartPole-v1.")
    return named


def _check(settings: SimulationCase | SimulationSuite) -> None:
    """Check what suite and case have in common."""
    for name, most in (("episodes", MOST_EPISODES), ("num_envs", MOST_ENVS), ("max_steps", None)):
        value = getattr(settings, name)
        if value is not None and not 1 <= value <= (most or value):
            raise ConfigError(f"{name}={value} must be {f'from 1 to {most:,}' if most else '1 or more'}: 20 is usual.")
    if settings.max_time_s is not None and settings.max_time_s <= 0:
        raise ConfigError(f"max_time_s={settings.max_time_s} must be positive: none plays all episodes.")
    if settings.npc is not None and settings.npc != HEURISTIC and not re.search(r"[/\\.]", settings.npc):
        raise ConfigError(
            f"npc={settings.npc!r} must be {HEURISTIC!r} or the URI or path of a policy: file://runs/mine/checkpoint."
        )
    require_own(settings.kwargs)
