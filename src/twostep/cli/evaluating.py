"""`twostep eval`: play a trained agent and say how well it does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any, NamedTuple

from twostep.cli.discoveries import SYMBOLIC, best_in, in_words, read_discoveries
from twostep.cli.evaluations import SKIRMISH
from twostep.cli.options import EvaluationRequest
from twostep.cli.suites import run_suite
from twostep.cli.teachers import find_teacher
from twostep.cli.terrains import QUADRUPED, draw_terrains, score_on_terrains
from twostep.cli.trained import Trained
from twostep.cli.training import build
from twostep.config import TrainingConfig
from twostep.errors import TwostepError

if TYPE_CHECKING:
    from twostep.protocols import RowEnv
    from twostep.trainer import PPOTrainer


def run_evaluation(request: EvaluationRequest) -> int:
    """Evaluate an agent and print how it did; return the exit code."""
    if request.suite is not None:
        return run_suite(request, request.suite)
    trained = Trained.found(request.run)
    config = trained.config()
    config = replace(
        config,
        seed=config.seed + 1 if request.seed is None else request.seed,
        device=request.device or config.device,
    )
    episodes = request.episodes or config.trainer.eval_episodes
    plays_matches = config.env.id == SKIRMISH
    env, trainer = build(config, num_envs=1 if plays_matches else min(config.env.num_envs, episodes))
    try:
        trained.load_into(trainer)
        play = {SKIRMISH: _matches, QUADRUPED: _terrains}.get(config.env.id, _episodes)
        task = _Task(config, env, trainer, trained.folder, episodes, deterministic=not request.sample)
        played = play(task, trainer.policy, str(trained))
        taught = _beside_teacher(task, trained, played, play)
        table = played.table
        if config.env.id == SYMBOLIC:
            said = in_words(best_in(env), "what it writes:")
            table = "\n".join((table, said, in_words(read_discoveries(trained.folder), "the best of its training:")))
    finally:
        env.close()
    acting = "acting by chance, as in training" if request.sample else "always taking the likeliest action"
    print(f"{trained}: {played.what}, {acting}")
    print("\n".join([table, *taught]))
    return 0


@dataclass(frozen=True)
class _Task:
    """What is to be played."""

    config: TrainingConfig
    env: RowEnv
    trainer: PPOTrainer
    folder: Path
    episodes: int
    deterministic: bool


class _Played(NamedTuple):
    """What was played and how it went."""

    what: str
    table: str
    measure: str
    """What tells who is better."""
    score: float


def _beside_teacher(
    task: _Task, trained: Trained, student: _Played, play: Callable[[_Task, Any, str], _Played]
) -> list[str]:
    """Let the teacher of a student play the same, and say both side by side; nothing without a teacher."""
    if not trained.teacher:
        return []
    try:
        teacher = find_teacher(trained.teacher, task.trainer.policy).to(task.trainer.device)
    except TwostepError as error:
        return [f"The teacher, {trained.teacher}, cannot be asked: {error}"]
    played = play(task, teacher, "")
    lines = [f"{trained.teacher}, the teacher, in the same episodes:", played.table]
    if played.score > 0:
        lines.append(f"The student keeps {student.score / played.score:.0%} of the teacher's {played.measure}.")
    return lines


def _episodes(task: _Task, policy: Any, _: str) -> _Played:
    """Play episodes, and put the result into a small table."""
    from twostep.evaluation import evaluate
    from twostep.evaluation.intervals import mean_interval

    stats = evaluate(policy, task.env, task.episodes, seed=task.config.seed, deterministic=task.deterministic)
    lines = [f"  {'':8}{'mean':>10}{'± std':>10}{'min':>10}{'max':>10}{'95 % interval':>22}"]
    for name, values in (("return", stats.returns), ("length", [float(length) for length in stats.lengths])):
        cells = (fmean(values), pstdev(values), min(values), max(values))
        low, high = mean_interval(values)
        interval = f"{low:,.1f} to {high:,.1f}" if math.isfinite(low) else "-"
        lines.append(f"  {name:8}" + "".join(f"{cell:10,.1f}" for cell in cells) + f"{interval:>22}")
    return _Played(f"{len(stats)} episodes of {task.config.env.id}", "\n".join(lines), "return", stats.mean_return)


def _terrains(task: _Task, policy: Any, who: str) -> _Played:
    """Play a robot on its types of terrain and difficulties; draw the grid of who is evaluated."""
    scores = score_on_terrains(task.config, policy, task.episodes, deterministic=task.deterministic)
    table = scores.table()
    if who and len(scores.cells) > 1:
        table += f"\n  success in every cell: {draw_terrains(scores, task.folder, task.folder.name)}"
    what = f"{len(scores.infos)} episodes of {task.config.env.id}, 95 % intervals"
    return _Played(what, table, "success", scores.success)


def _matches(task: _Task, policy: Any, _: str) -> _Played:
    """Play matches against the scripted opponent, whose seeds no match of training had; say the same of them."""
    from twostep.evaluation import evaluate_vs_heuristic
    from twostep.worlds.skirmish import EnvConfig

    rules = EnvConfig.from_dict(task.config.env.kwargs)
    stats, _replay = evaluate_vs_heuristic(
        policy, rules, task.episodes, task.config.seed, task.trainer.device, deterministic=task.deterministic
    )
    low, high = stats.win_interval
    ends = ", ".join(f"{count} by {reason}" for reason, count in stats.ends.items() if count)
    lines = (
        f"  won           {stats.win_rate:6.1%}  (95 % interval {low:.1%} to {high:.1%}): "
        f"{stats.wins} won, {stats.losses} lost, {stats.draws} drawn",
        f"  hit points    {stats.mean_hp_margin:+6.1%}  own part left at the end, minus the opponent's",
        f"  return        {stats.mean_return:6.2f}  of an agent",
        f"  length        {stats.mean_episode_length:6.1f}  steps; ended {ends}",
    )
    what = f"{stats.episodes} matches of {task.config.env.id} against the heuristic"
    return _Played(what, "\n".join(lines), "matches won", stats.win_rate)
