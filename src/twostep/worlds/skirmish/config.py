"""What a match is made of: the classes of mechs, the arena, the rules, the rewards and the scripted opponent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from twostep.errors import ConfigError
from twostep.worlds.settings import check_kinds, require, settings_from

if TYPE_CHECKING:
    from twostep.worlds.skirmish.env import SkirmishEnv
    from twostep.worlds.skirmish.rows import SkirmishRows


@dataclass(frozen=True, kw_only=True)
class MechClass:
    """What a mech can do. Lengths in metres, times in seconds, angles in radians."""

    radius: float
    hit_points: float
    speed: float
    """Forwards; sideways and backwards it is slower (`simulation.SIDEWAYS`, `simulation.BACKWARDS`)."""
    turn_rate: float
    vision: float
    """How far it sees, in all directions, where no wall is between."""
    weapon_range: float
    """Up to half of this a hit does full damage, at the end of it half."""
    damage: float
    cooldown: float
    """Between two shots."""
    tracking: float
    """Targets that cross faster than this, in radians per second as seen from here, are missed."""
    shot_heat: float
    heat_capacity: float
    """At this heat the mech shuts down: no shots, half the speed and turn rate, for `simulation.SHUTDOWN` seconds."""
    dissipation: float
    """Heat lost per second."""


CLASSES: dict[str, MechClass] = {
    "scout": MechClass(
        radius=0.7, hit_points=70, speed=9.0, turn_rate=3.0, vision=30, weapon_range=14, damage=6, cooldown=0.8,
        tracking=2.0, shot_heat=10, heat_capacity=100, dissipation=7,
    ),
    "light": MechClass(
        radius=0.8, hit_points=100, speed=7.5, turn_rate=2.6, vision=25, weapon_range=16, damage=9, cooldown=0.8,
        tracking=1.4, shot_heat=11, heat_capacity=100, dissipation=7,
    ),
    "medium": MechClass(
        radius=1.0, hit_points=140, speed=6.0, turn_rate=2.2, vision=22, weapon_range=18, damage=15, cooldown=1.2,
        tracking=1.0, shot_heat=18, heat_capacity=100, dissipation=8,
    ),
    "heavy": MechClass(
        radius=1.2, hit_points=200, speed=4.5, turn_rate=1.8, vision=20, weapon_range=21, damage=23, cooldown=1.6,
        tracking=0.7, shot_heat=25, heat_capacity=100, dissipation=8,
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RewardWeights:
    """What each part of an agent's reward is worth; the parts are in `infos[agent]["reward_parts"]`, weighted.

    What is suffered costs nothing by default, and what one mech does to another brings little: agents that fear for
    themselves, or hunt for themselves, leave the zone to one another, and win less the longer they learn. Being
    destroyed costs enough already: all that would have been earned later.
    """

    approach: float = 1.0
    """Coming closer to the zone, per side of the arena."""
    zone: float = 1.0
    """Own team's part of the score that wins, as gained in this step, minus the other team's."""
    damage_dealt: float = 0.2
    """Per full hit points of the target."""
    damage_taken: float = 0.0
    """Per own full hit points, as a loss."""
    kill: float = 0.2
    """Per enemy destroyed, shared out by damage among those who hit it in that step."""
    death: float = 0.0
    """When destroyed, as a loss."""
    terminal: float = 2.0
    """When the match is won; as a loss when it is lost. Goes to those who were alive when the last step began."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        check_kinds(self)


@dataclass(frozen=True, kw_only=True)
class HeuristicConfig:
    """How the scripted opponent plays. It never flees, never focuses its fire, and each mech comes at its own speed."""

    engage: float = 1.0
    """It turns to fight enemies within this many weapon ranges, and otherwise goes for the zone."""
    standoff: float = 0.7
    """Distance it keeps from the enemy it fights, in weapon ranges."""
    heat_limit: float = 0.9
    """It holds its fire where a shot would bring the heat above this part of the capacity."""
    spread: float = 0.5
    """How far from the middle of the zone it wants to stand, in zone radii."""
    fire_share: float = 1.0
    """Part of its decisions in which it may fire, evenly spread: below 1 it is an opponent to begin with."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        check_kinds(self)
        require(self, "engage", self.engage >= 0, "0 or more", "0 only fires in passing, 1 is a good opponent")
        require(self, "standoff", 0 <= self.standoff <= 1, "between 0 and 1", "0.7 is the default")
        require(self, "heat_limit", 0 <= self.heat_limit <= 1, "between 0 and 1", "0 never fires, 0.9 is the default")
        require(self, "spread", 0 <= self.spread <= 1, "between 0 and 1", "0.5 is the default")
        require(self, "fire_share", 0 <= self.fire_share <= 1, "between 0 and 1", "1 is the default")

    def changed(self, values: Mapping[str, Any]) -> HeuristicConfig:
        """Return the same with some other values; names it does not know are refused."""
        return settings_from(HeuristicConfig, {**asdict(self), **values}, "skirmish", "heuristic.")


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """Everything that makes one skirmish different from another."""

    team: tuple[str, ...] = ("scout", "light", "medium", "medium", "heavy")
    """The class of each mech, the same for both teams."""
    size: float = 60.0
    """Side of the square arena, in metres; the walls grow with it."""
    walls: int = 8
    """How many walls stand in it, in pairs that mirror each other through the middle."""
    zone_radius: float = 7.0
    """Radius of the zone in the middle."""
    zone_seconds: float = 15.0
    """A team that has held the zone alone for so long wins."""
    max_seconds: float = 60.0
    """After this the match is decided: by the zone score, then by the hit points, else it is a draw."""
    tick_seconds: float = 0.1
    """One step of the motion."""
    ticks_per_step: int = 4
    """Steps of the motion per decision; sight, weapons and the zone are settled once per decision."""
    control: Literal["discrete", "continuous"] = "discrete"
    """What actions are: a choice each of move, turn and fire, or numbers (see `control`)."""
    rays: int = 8
    """In how many directions an agent feels the distance to the next wall."""
    rewards: RewardWeights = field(default_factory=RewardWeights)
    """What agents are rewarded for."""
    heuristic: HeuristicConfig = field(default_factory=HeuristicConfig)
    """How the scripted opponent plays."""
    record_replay: bool = False
    """Whether `get_replay` has something to give."""
    seed: int | None = None
    """What the first reset without a seed uses; None draws one from the operating system."""

    def __post_init__(self) -> None:
        """Take sequences and mappings for what they stand for, and refuse what cannot work."""
        team: Any = self.team
        if isinstance(team, (str, Sequence)):
            object.__setattr__(self, "team", (team,) if isinstance(team, str) else tuple(team))
        _nest(self, "rewards", RewardWeights)
        _nest(self, "heuristic", HeuristicConfig)
        self._check_team()
        check_kinds(self)
        widest = max(CLASSES[name].radius for name in self.team)
        require(self, "size", 30 <= self.size <= 1000, "between 30 and 1000 metres", "60 is the default")
        require(
            self, "walls", self.walls >= 0 and self.walls % 2 == 0, "even, 0 or more", "walls come in mirrored pairs"
        )
        require(
            self,
            "zone_radius",
            widest <= self.zone_radius <= self.size / 4,
            f"between {widest} (the widest mech) and a quarter of size={self.size}",
            "7.0 is the default",
        )
        require(self, "tick_seconds", 0 < self.tick_seconds <= 0.2, "above 0 and at most 0.2", "0.1 is the default")
        require(self, "ticks_per_step", 1 <= self.ticks_per_step <= 20, "between 1 and 20", "4 is the default")
        for name in ("zone_seconds", "max_seconds"):
            rule = f"at least one step of {self.step_seconds:g} s"
            require(self, name, getattr(self, name) >= self.step_seconds, rule, "15 and 60 are the defaults")
        known = self.control in ("discrete", "continuous")
        require(self, "control", known, "'discrete' or 'continuous'", "'discrete' learns faster")
        require(self, "rays", 0 <= self.rays <= 64, "between 0 and 64", "8 is the default")
        seed: Any = self.seed
        fits = seed is None or (isinstance(seed, (int, np.integer)) and bool(seed >= 0))
        require(self, "seed", fits, "a whole number, 0 or more, or None", "None draws one")

    def _check_team(self) -> None:
        team: Any = self.team
        if not isinstance(team, tuple) or not 1 <= len(self.team) <= 20:
            raise ConfigError(f"team={self.team!r} must name 1 to 20 mechs: ('scout', 'heavy') is the smallest mix.")
        for name in self.team:
            if name not in CLASSES:
                raise ConfigError(f"team={self.team!r} names the class {name!r}; classes are {', '.join(CLASSES)}.")

    @property
    def step_seconds(self) -> float:
        """What one decision takes."""
        return self.tick_seconds * self.ticks_per_step

    @property
    def max_steps(self) -> int:
        """Decisions until time is up."""
        return math.ceil(self.max_seconds / self.step_seconds - 1e-6)

    @property
    def agent_ids(self) -> tuple[str, ...]:
        """Blue agents first, each team in the order of `team`."""
        return tuple(f"{team}_{slot}" for team in ("blue", "red") for slot in range(len(self.team)))

    def make(self) -> SkirmishEnv:
        """Make the environment."""
        from twostep.worlds.skirmish.env import SkirmishEnv

        return SkirmishEnv(self)

    def make_rows(self, num_envs: int, *, agent_ids: str | Sequence[str] | None = None) -> SkirmishRows:
        """Make many matches as one."""
        from twostep.worlds.skirmish.rows import SkirmishRows

        return SkirmishRows(self, num_envs, agent_ids="blue_*" if agent_ids is None else agent_ids)

    def to_dict(self) -> dict[str, Any]:
        """Return plain containers that JSON and YAML can hold."""
        return {**asdict(self), "team": list(self.team)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EnvConfig:
        """Read what `to_dict` wrote, or any part of it; names it does not know are refused."""
        return settings_from(cls, values, "skirmish")


def _nest(settings: EnvConfig, name: str, kind: type[RewardWeights] | type[HeuristicConfig]) -> None:
    """Let a mapping stand for the settings it holds."""
    value = getattr(settings, name)
    if isinstance(value, Mapping):
        read: Any = settings_from(kind, value, "skirmish", f"{name}.")
        object.__setattr__(settings, name, read)
    elif not isinstance(value, kind):
        raise ConfigError(f"{name}={value!r} must be a {kind.__name__}, or a mapping of its settings.")
