"""Evaluations on the way: they keep the best agent, and of matches a replay."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, cast

from twostep.cli.terrains import QUADRUPED, score_on_terrains
from twostep.config import TrainingConfig
from twostep.config.suites import load_suite
from twostep.errors import CheckpointError
from twostep.stats.console import number
from twostep.stats.sinks import JsonLinesSink, read_rows

if TYPE_CHECKING:
    from twostep.collect.league import League
    from twostep.evaluation import BackgroundEvaluator, Evaluated, PolicyEvaluator, SuiteScores
    from twostep.protocols import RowEnv
    from twostep.trainer import PPOTrainer

_LOG = logging.getLogger("twostep.cli")

LEAGUE = "league"
"""By what name a trainer and its checkpoints hold past selves."""
BEST, EVALUATIONS_FILE, REPLAYS = "best", "evaluations.jsonl", "replays"
SKIRMISH = "skirmish"
_SEED_OFFSET = 2
"""Added to the run's seed: the same episodes at every evaluation, and others than `twostep eval` plays (1)."""


class Evaluations:
    """Plays the same episodes every time, so that the best agent can be kept.

    For skirmish the score is the part of matches won against the scripted opponent, for a robot the part of successes
    on every type of terrain and difficulty alike, elsewhere the mean return; with `trainer.suite` it is that of the
    suite.
    """

    def __init__(self, config: TrainingConfig, folder: Path, first_step: int = 0) -> None:
        """Begin, or go on after `first_step`: what was evaluated later than that is forgotten."""
        self.config, self.folder = config, folder
        self.best: tuple[float, float] | None = None
        """Score and, among equals, hit points or how far robots came."""
        self._rows: JsonLinesSink | None = None
        if config.trainer.eval_every:
            path = folder / EVALUATIONS_FILE
            self._rows = JsonLinesSink(path, resume_step=first_step)
            self.best = max(map(_rank, read_rows(path)), default=None)
        self.last_score: float | None = None
        self._env: RowEnv | None = None
        self._suite: PolicyEvaluator | None = None
        self._background: BackgroundEvaluator | None = None
        if config.trainer.suite:
            from twostep.evaluation import BackgroundEvaluator, PolicyEvaluator

            self._suite = PolicyEvaluator(load_suite(config.trainer.suite))
            self._background = BackgroundEvaluator(self._suite) if config.trainer.eval_background else None

    def run(self, trainer: PPOTrainer) -> bool:
        """Evaluate, write the row, and say whether this agent is the best so far.

        In the background the evaluation only begins; `take_in` does the rest.
        """
        steps = trainer.total_timesteps
        if self._background is not None:
            self._background.submit(trainer.policy, steps)
            return False
        started = time.perf_counter()
        if self._suite is not None:
            score, row = _suite_row(self._suite.evaluate(trainer.policy))
        else:
            plays = {SKIRMISH: self._skirmish, QUADRUPED: self._terrains}.get(self.config.env.id, self._episodes)
            score, row = plays(trainer)
        row |= {"seconds": time.perf_counter() - started}
        league = trainer.companions.get(LEAGUE)
        if league is not None:
            row |= cast("League", league).metrics()
        return self._write(score, row, steps)

    def take_in(self, *, wait: bool = False) -> bool:
        """Write down what was evaluated in the background, keep the best agent, and say whether there was anything."""
        evaluated = None if self._background is None else self._background.result(wait=wait)
        if evaluated is None:
            return False
        score, row = _suite_row(evaluated.scores)
        if self._write(score, row, evaluated.step):
            self._keep_best(evaluated)
        return True

    def _keep_best(self, evaluated: Evaluated) -> None:
        from twostep.store import PolicyStore

        scores = evaluated.scores
        about = {"agent_step": evaluated.step, "score": scores.score, "eval_scores": _finite(scores)}
        try:
            PolicyStore(self.folder).save(BEST, evaluated.policy, about)
        except CheckpointError as error:
            _LOG.warning("The best agent could not be saved: %s", error)

    def _write(self, score: float, row: dict[str, float], step: int) -> bool:
        """Write the row of the policy that was at `step`, and say whether it is the best so far."""
        self.last_score = score
        if self._rows is not None:
            self._rows.log({"score": score} | row, step)
        rank = _rank({"score": score} | row)
        improved = self.best is None or rank > self.best
        self.best = rank if self.best is None else max(self.best, rank)
        return improved

    def words(self) -> str:
        """Say in a few words how the last evaluation went."""
        if self.last_score is None or self.best is None:
            return ""
        if self.config.env.id == SKIRMISH and self._suite is None:
            return f"{self.last_score:.0%} of matches won, best {self.best[0]:.0%}"
        return f"evaluated at {number(self.last_score)}, best {number(self.best[0])}"

    def close(self) -> None:
        """Close file and environments, and end what goes on in the background; harmless when called twice."""
        if self._background is not None:
            self._background.close()
        if self._rows is not None:
            self._rows.close()
        env, self._env = self._env, None
        if env is not None:
            env.close()

    def _skirmish(self, trainer: PPOTrainer) -> tuple[float, dict[str, float]]:
        from twostep.evaluation import evaluate_vs_heuristic
        from twostep.worlds.skirmish import EnvConfig, save_replay

        episodes = self.config.trainer.eval_episodes
        seed = self.config.seed + _SEED_OFFSET  # matches of which none has a seed that training draws
        env_config = EnvConfig.from_dict(self.config.env.kwargs)
        stats, replay = evaluate_vs_heuristic(
            trainer.policy, env_config, episodes, seed, trainer.device, save_replay=True
        )
        if replay is not None:
            save_replay(replay, self.folder / REPLAYS / f"step_{trainer.total_timesteps:012d}.npz")
        return stats.win_rate, stats.metrics()

    def _terrains(self, trainer: PPOTrainer) -> tuple[float, dict[str, float]]:
        config = replace(self.config, seed=self.config.seed + _SEED_OFFSET)
        scores = score_on_terrains(config, trainer.policy, self.config.trainer.eval_episodes)
        measures = {name: fmean(scores.values(name)) for name in ("success", "progress", "fell")}
        by_type = {f"success/{name}": fmean(scores.values("success", name)) for name in scores.terrains}
        return scores.success, {**measures, **by_type, "episodes": float(len(scores.infos))}

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


def _suite_row(scores: SuiteScores) -> tuple[float, dict[str, float]]:
    played = sum(len(case.returns) for case in scores.cases.values())
    return scores.score, _finite(scores) | {"episodes": float(played)}


def _finite(scores: SuiteScores) -> dict[str, float]:
    """Return the scores without the whole and without what is not known."""
    return {name: value for name, value in scores.items() if name != "score" and math.isfinite(value)}


def _rank(row: Mapping[str, float | None]) -> tuple[float, float]:
    """Order evaluations; one whose score nobody knows is the last."""
    score = row["score"]
    return -math.inf if score is None or math.isnan(score) else score, row.get(
        "mean_hp_margin", row.get("progress")
    ) or 0.0
