"""The settings of a curriculum, and the curriculum that they describe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from twostep.curriculum.drawn import LearningProgressCurriculum, LowRewardCurriculum, UniformCurriculum
from twostep.curriculum.levels import StagedCurriculum, SuccessRateCurriculum
from twostep.curriculum.terrain import TerrainGrid
from twostep.errors import ConfigError
from twostep.protocols import Curriculum
from twostep.values import settle

Kind = Literal["none", "uniform", "staged", "success_rate", "low_reward", "learning_progress", "terrain_grid"]


@dataclass(kw_only=True)
class CurriculumConfig:
    """What environments play when."""

    kind: Kind = "none"
    """Who chooses tasks: weights (uniform), time (staged), or scores; none lets environments be as they are."""
    tasks: dict[str, Any] = field(default_factory=dict[str, Any])
    """What environments are told, by the task's name, the easiest first: `{short: {length: 3}, long: {length: 9}}`."""
    score: str = "return"
    """What says how an episode went: its return, or the name of a number in the environment's last info (`success`)."""
    weights: tuple[float, ...] = ()
    """For uniform: how often each task is drawn beside the others; none draws all alike."""
    stages: tuple[float, ...] = (0.3, 0.6)
    """For staged: beyond which part of training each task but the first begins."""
    promote_above: float | None = None
    """Mean score, for terrain_grid part of successes, above which the next level begins; none is 0.8 and 0.5."""
    demote_below: float = 0.3
    """The same, below which the level before comes back."""
    history: int = 10
    """Episodes of a level that are judged."""
    explore: float | None = None
    """For low_reward and learning_progress: part of episodes drawn without weights; none is 0 and 0.2."""
    terrains: tuple[str, ...] = ("flat", "stairs", "curbs", "gaps", "stepping_stones")
    """For terrain_grid: names of the types."""
    num_levels: int = 10
    """For terrain_grid: number of difficulties."""
    success_at: float = 0.8
    """For terrain_grid: score from which on an episode is a success."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        settle(self)
        if self.kind not in ("none", "terrain_grid") and not self.tasks:
            raise ConfigError(f"tasks={{}} must name what kind={self.kind!r} chooses from: {{easy: {{length: 3}}}}?")
        make_curriculum(self)


def make_curriculum(config: CurriculumConfig, seed: int | None = None) -> Curriculum | None:
    """Make the curriculum that the settings describe; None for none."""
    tasks = config.tasks
    explore = {} if config.explore is None else {"explore": config.explore}
    limits: dict[str, Any] = {"demote_below": config.demote_below}
    if config.promote_above is not None:
        limits["promote_above"] = config.promote_above
    match config.kind:
        case "none":
            return None
        case "uniform":
            return UniformCurriculum(tasks, config.weights or None, seed=seed)
        case "staged":
            return StagedCurriculum(tasks, config.stages)
        case "success_rate":
            return SuccessRateCurriculum(tasks, history=config.history, **limits)
        case "low_reward":
            return LowRewardCurriculum(tasks, seed=seed, **explore)
        case "learning_progress":
            return LearningProgressCurriculum(tasks, seed=seed, **explore)
        case "terrain_grid":
            limits |= {"min_attempts": config.history, "success_at": config.success_at, "seed": seed}
            return TerrainGrid(config.terrains, config.num_levels, **limits)
