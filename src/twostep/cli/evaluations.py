"""Evaluations on the way: they keep the best agent, and of matches a replay."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from twostep.config import TrainingConfig
from twostep.stats.console import number
from twostep.stats.sinks import JsonLinesSink, read_rows

if TYPE_CHECKING:
    from twostep.collect.league import League
    from twostep.protocols import RowEnv
    from twostep.trainer import PPOTrainer

LEAGUE = "league"
"""By what name a trainer and its checkpoints hold past selves."""
BEST, EVALUATIONS_FILE, REPLAYS = "best", "evaluations.jsonl", "replays"
SKIRMISH = "skirmish"
_SEED_OFFSET = 2
"""Added to the run's seed: the same episodes at every evaluation, and others than `twostep eval` plays (1)."""


class Evaluations:
    """Plays the same episodes every time, so that the best agent can be kept.

    For skirmish the score is the part of matches won against the scripted opponent, elsewhere the mean return.
    """

    def __init__(self, config: TrainingConfig, folder: Path, first_step: int = 0) -> None:
        """Begin, or go on after `first_step`: what was evaluated later than that is forgotten."""
        self.config, self.folder = config, folder
        self.best: tuple[float, float] | None = None
        """Score and, among equals, hit points."""
        self._rows: JsonLinesSink | None = None
        if config.trainer.eval_every:
            path = folder / EVALUATIONS_FILE
            self._rows = JsonLinesSink(path, resume_step=first_step)
            self.best = max(map(_rank, read_rows(path)), default=None)
        self.last_score: float | None = None
        self._env: RowEnv | None = None

    def run(self, trainer: PPOTrainer) -> bool:
        """Evaluate, write the row, and say whether this agent is the best so far."""
        steps = trainer.total_timesteps
        started = time.perf_counter()
        score, row = self._skirmish(trainer) if self.config.env.id == SKIRMISH else self._episodes(trainer)
        row |= {"seconds": time.perf_counter() - started}
        league = trainer.companions.get(LEAGUE)
        if league is not None:
            row |= cast("League", league).metrics()
        self.last_score = score
        if self._rows is not None:
            self._rows.log({"score": score} | row, steps)
        rank = _rank({"score": score} | row)
        improved = self.best is None or rank > self.best
        self.best = rank if self.best is None else max(self.best, rank)
        return improved

    def words(self) -> str:
        """Say in a few words how the last evaluation went."""
        if self.last_score is None or self.best is None:
            return ""
        if self.config.env.id == SKIRMISH:
            return f"{self.last_score:.0%} of matches won, best {self.best[0]:.0%}"
        return f"evaluated at {number(self.last_score)}, best {number(self.best[0])}"

    def close(self) -> None:
        """Close file and environments; harmless when called twice."""
        if self._rows is not None:
            self._rows.close()
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _skirmish(self, trainer: PPOTrainer) -> tuple[float, dict[str, float]]:
        from twostep.evaluation import evaluate_vs_heuristic
        from twostep.vector.spaces import row_seeds
        from twostep.worlds.skirmish import EnvConfig, save_replay

        episodes = self.config.trainer.eval_episodes
        seeds = row_seeds(self.config.seed + _SEED_OFFSET, episodes)
        env_config = EnvConfig.from_dict(self.config.env.kwargs)
        stats, replay = evaluate_vs_heuristic(
            trainer.policy, env_config, episodes, seeds, trainer.device, save_replay=True
        )
        if replay is not None:
            save_replay(replay, self.folder / REPLAYS / f"step_{trainer.total_timesteps:012d}.npz")
        low, high = stats.win_interval
        return stats.win_rate, {
            "win_rate": stats.win_rate,
            "win_rate_low": low,
            "win_rate_high": high,
            "mean_hp_margin": stats.mean_hp_margin,
            "mean_length": stats.mean_episode_length,
            "episodes": float(stats.episodes),
        }

    def _episodes(self, trainer: PPOTrainer) -> tuple[float, dict[str, float]]:
        from twostep.config.environments import make_configured
        from twostep.evaluation import evaluate

        settings = self.config.trainer
        seed = self.config.seed + _SEED_OFFSET
        if self._env is None:
            self._env = make_configured(self.config, min(self.config.env.num_envs, settings.eval_episodes), seed)
        stats = evaluate(trainer.policy, self._env, settings.eval_episodes, seed)
        low, high = stats.interval
        row = {"mean_return": stats.mean_return, "low": low, "high": high, "mean_length": stats.mean_length}
        return stats.mean_return, row | {"episodes": float(len(stats))}


def _rank(row: dict[str, float]) -> tuple[float, float]:
    return row["score"], row.get("mean_hp_margin", 0.0)
