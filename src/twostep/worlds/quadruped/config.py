"""What a world of walking robots is made of: ground, commands, rewards, and how much of it is left to chance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from twostep.errors import ConfigError, EnvError
from twostep.worlds.quadruped.terrain import TYPES
from twostep.worlds.settings import check_kinds, require, settings_from

if TYPE_CHECKING:
    from twostep.worlds.quadruped.env import QuadrupedEnv
    from twostep.worlds.quadruped.rows import QuadrupedRows

Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class RewardWeights:
    """What each part of the reward is worth per second, those of `fall` and `air_time` each time they come.

    Together they must leave more than nothing to a robot that only stumbles along: else it learns to fall at once.

    Sums over an episode, weighted, are in its last info, each by its name: `reward_velocity`.
    """

    velocity: float = 2.0
    """Moving as commanded: exp(-(error in m/s / 0.4)^2) of forward and sideways together."""
    yaw_rate: float = 0.75
    """Turning as commanded: exp(-(error in rad/s / 0.5)^2)."""
    survival: float = 0.5
    """Being on its feet."""
    bounce: float = -0.5
    """Square of the vertical velocity."""
    sway: float = -0.02
    """Square of the roll and pitch rates."""
    tilt: float = -1.0
    """Square of the sine of the tilt."""
    height: float = -10.0
    """Square of how far the trunk is from its usual height above the feet that carry it."""
    torque: float = -1e-4
    """Sum of squared torques."""
    work: float = -3e-4
    """Sum of the mechanical power of all motors, whether they drive or brake."""
    smoothness: float = -0.01
    """Sum of squared changes of the action from one step to the next."""
    joint_speed: float = -1e-4
    """Sum of squared joint velocities."""
    pose: float = -0.1
    """Sum of squared joint angles from the stance; hip abduction counts five times."""
    drag: float = -0.05
    """Sum of squared horizontal velocities of feet on the ground."""
    air_time: float = 0.5
    """When a foot comes down: by how much it was up longer than 0.1 s, at most by 0.2 s."""
    collision: float = -0.2
    """Number of knees on the ground."""
    fall: float = -1.0
    """When the episode ends by a fall."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        check_kinds(self)


@dataclass(frozen=True, kw_only=True)
class Chance:
    """How much is left to chance; `Chance.none()` leaves nothing, so that robots only differ in their commands."""

    bodies: int = 8
    """Different robots, each with a friction, a load and motors of its own; an episode draws one. 1: as built."""
    friction: Range = (0.5, 1.25)
    """Between feet and ground; 0.8 as built."""
    load: Range = (-0.5, 1.5)
    """Added to the trunk, in kg."""
    gains: Range = (0.9, 1.1)
    """Factor of stiffness and damping of the motors."""
    start: float = 0.1
    """Largest angle, in radians, by which joints are off the stance when an episode begins."""
    push_seconds: float = 8.0
    """Between two pushes."""
    push_speed: float = 0.4
    """Largest sudden change of the trunk's velocity in either direction, in m/s."""
    action_noise: float = 0.02
    """Largest error of joint targets, in radians."""
    observation_noise: float = 1.0
    """Factor of sensor noise: 1 is 0.01 rad, 1.5 rad/s of joints, 0.2 rad/s of the trunk, 0.05 of gravity, 2 cm."""
    phase: bool = True
    """Whether the very first episodes begin somewhere in the middle of their time, so that rows do not end together."""

    def __post_init__(self) -> None:
        """Take lists for tuples, and refuse what cannot work."""
        for name, least in (("friction", 0.05), ("load", -3.0), ("gains", 0.3)):
            _take_range(self, name, least)
        check_kinds(self)
        require(self, "bodies", 1 <= self.bodies <= 256, "from 1 to 256", "8 is the default; each holds the ground")
        require(self, "push_seconds", self.push_seconds > 0, "above 0", "8 is the default; push_speed=0 never pushes")
        for name in ("start", "push_speed", "action_noise", "observation_noise"):
            require(self, name, getattr(self, name) >= 0, "0 or more", "0 leaves nothing to chance")

    @classmethod
    def none(cls) -> Chance:
        """Leave nothing to chance."""
        quiet = dict.fromkeys(("start", "push_speed", "action_noise", "observation_noise"), 0.0)
        return cls(bodies=1, phase=False, **quiet)


@dataclass(frozen=True, kw_only=True)
class QuadrupedConfig:
    """Everything that makes one world of walking robots different from another."""

    terrains: tuple[str, ...] = ("flat",)
    """Types of ground, of which each episode draws one where no curriculum says which."""
    num_levels: int = 10
    """Difficulties of each type, from 0, which is flat."""
    levels: tuple[int, int] = (0, 0)
    """Lowest and highest difficulty that an episode draws where no curriculum says which."""
    terrain_seed: int = 0
    """Decides the details of the ground."""
    forward: Range = (0.3, 1.0)
    """Commanded velocity ahead, in m/s."""
    sideways: Range = (-0.3, 0.3)
    """Commanded velocity to the left, in m/s; 0 on all types but flat, where robots keep a heading, too."""
    yaw_rate: Range = (-0.6, 0.6)
    """Commanded turning to the left, in rad/s; elsewhere than on flat ground it corrects the heading."""
    standing: float = 0.05
    """Part of the commands that say to stand still."""
    command_seconds: float = 5.0
    """After which a new command is drawn."""
    max_seconds: float = 20.0
    """After which an episode is cut."""
    action_scale: float = 0.5
    """How far, in radians, an action of 1 takes a joint's target from the stance."""
    stiffness: float = 35.0
    """Of the motors, in Nm/rad."""
    damping: float = 0.8
    """Of the motors, in Nm s/rad."""
    substeps: int = 4
    """Steps of the physics, of 5 ms each, per action."""
    scandots: bool = True
    """Whether heights of the ground around the robot are observed."""
    depth: bool = False
    """Whether a depth image is observed."""
    privileged: bool = False
    """Whether what no sensor tells is observed, for a critic: true velocity, contacts, friction, load, motors."""
    rewards: RewardWeights = field(default_factory=RewardWeights)
    """What robots are rewarded for."""
    chance: Chance = field(default_factory=Chance)
    """How much is left to chance."""
    threads: int = 0
    """Threads that step the robots; 0 takes as many as there are cores. They change nothing but the speed."""
    seed: int | None = None
    """What the first reset without a seed uses; None draws one from the operating system."""

    def __post_init__(self) -> None:
        """Take lists and mappings for what they stand for, and refuse what cannot work."""
        given: Any = self.terrains
        object.__setattr__(self, "terrains", (given,) if isinstance(given, str) else tuple(given))
        for name in ("forward", "sideways", "yaw_rate"):
            _take_range(self, name, -3.0)
        _nest(self, "rewards", RewardWeights)
        _nest(self, "chance", Chance)
        check_kinds(self)
        self._check_terrains()
        require(self, "standing", 0 <= self.standing <= 1, "between 0 and 1", "0.05 is the default")
        require(self, "substeps", 1 <= self.substeps <= 20, "from 1 to 20", "4 gives 50 actions a second")
        for name in ("command_seconds", "max_seconds"):
            rule = f"at least one step of {self.step_seconds:g} s"
            require(self, name, getattr(self, name) >= self.step_seconds, rule, "5 and 20 are the defaults")
        for name in ("action_scale", "stiffness", "damping"):
            require(self, name, 0 < getattr(self, name) <= 1000, "above 0", "see its default")
        require(self, "threads", 0 <= self.threads <= 1024, "from 0 to 1024", "0 takes as many as there are cores")
        seed: Any = self.seed
        fits = seed is None or (isinstance(seed, (int, np.integer)) and bool(seed >= 0))
        require(self, "seed", fits, "a whole number, 0 or more, or None", "None draws one")

    def _check_terrains(self) -> None:
        known = bool(self.terrains) and all(name in TYPES for name in self.terrains)
        each_once = len(set(self.terrains)) == len(self.terrains)
        require(self, "terrains", known and each_once, f"one or more of {', '.join(TYPES)}", "('flat',) is the default")
        require(self, "num_levels", 1 <= self.num_levels <= 50, "from 1 to 50", "10 is the default")
        levels: Any = self.levels
        object.__setattr__(self, "levels", (levels, levels) if isinstance(levels, int) else tuple(levels))
        fits = len(self.levels) == 2 and 0 <= self.levels[0] <= self.levels[1] < self.num_levels
        require(self, "levels", fits, f"(lowest, highest) from 0 to {self.num_levels - 1}", "(0, 0) is the default")
        require(self, "terrain_seed", self.terrain_seed >= 0, "0 or more", "0 is the default")

    @property
    def step_seconds(self) -> float:
        """What one action takes."""
        return 0.005 * self.substeps

    @property
    def max_steps(self) -> int:
        """Actions of a whole episode."""
        return math.ceil(self.max_seconds / self.step_seconds - 1e-6)

    @property
    def camera_steps(self) -> int:
        """Actions between two depth images: ten are taken a second."""
        return max(1, round(0.1 / self.step_seconds))

    @property
    def command_steps(self) -> int:
        """Actions between two commands."""
        return math.ceil(self.command_seconds / self.step_seconds - 1e-6)

    def make(self) -> QuadrupedEnv:
        """Make the environment."""
        from twostep.worlds.quadruped.env import QuadrupedEnv

        return QuadrupedEnv(self)

    def make_rows(self, num_envs: int, *, agent_ids: None = None) -> QuadrupedRows:
        """Make many robots as one environment; there are no agents to name."""
        from twostep.worlds.quadruped.rows import QuadrupedRows

        if agent_ids is not None:
            raise EnvError(f"agent_ids={agent_ids!r} was given, but a robot is a single agent. Leave it out.")
        return QuadrupedRows(self, num_envs)

    def to_dict(self) -> dict[str, Any]:
        """Return plain containers that JSON and YAML can hold."""
        return _listed(asdict(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> QuadrupedConfig:
        """Read what `to_dict` wrote, or any part of it; names it does not know are refused."""
        return settings_from(cls, values, "quadruped")


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _listed(one) for name, one in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _nest(settings: Any, name: str, kind: Any) -> None:
    """Let a mapping stand for the settings it holds."""
    value = getattr(settings, name)
    if isinstance(value, Mapping):
        object.__setattr__(settings, name, settings_from(kind, value, "quadruped", f"{name}."))
    elif not isinstance(value, kind):
        raise ConfigError(f"{name}={value!r} must be a {kind.__name__}, or a mapping of its settings.")


def _take_range(settings: Any, name: str, least: float) -> None:
    """Take a number, or two of them, for a range."""
    value: Any = getattr(settings, name)
    ends = (value, value) if isinstance(value, (int, float)) else tuple(value)
    fits = len(ends) == 2 and all(isinstance(end, (int, float)) and math.isfinite(end) for end in ends)
    default = next(one.default for one in fields(settings) if one.name == name)
    rule = f"(lowest, highest), from {least:g} on"
    require(settings, name, fits and least <= ends[0] <= ends[1], rule, f"{default} is the default")
    object.__setattr__(settings, name, (float(ends[0]), float(ends[1])))
