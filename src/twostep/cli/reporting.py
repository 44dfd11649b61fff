"""The end of a run in words and as a picture: what came out, where it is, and what can be done next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twostep.cli.discoveries import SYMBOLIC, in_words, keep_discoveries
from twostep.cli.evaluations import BEST, EVALUATIONS_FILE, REPLAYS
from twostep.cli.runs import CHECKPOINTS, CURVE_FILE, METRICS_FILE, ROLLOUTS
from twostep.errors import TwostepError
from twostep.stats.console import duration, number
from twostep.stats.plots import plot_learning_curve
from twostep.stats.troubleshooting import where_time_went

if TYPE_CHECKING:
    from twostep.cli.training import Run


def report(run: Run, seconds: float, failure: TwostepError | None) -> None:
    """Draw the learning curve and say how the run ended; of several processes the one that leads does."""
    from twostep.cli import complain

    if run.leads:
        drawn = _draw(run)
        print(f"{run.config.env.id}: {_outcome(run, seconds, failure)}")
        if run.config.env.id == SYMBOLIC:
            print(in_words(keep_discoveries(run.folder, run.trainer.env), "the best expression that was written:"))
        if seconds and any(run.times.values()):
            print(f"  {where_time_went(run.times['collect_time'], run.times['learn_time'], seconds)}")
        for words in run.troubles.present.values():
            print(f"  {words}")
        _list(run, drawn=drawn)
    if failure is not None:
        who = "training" if run.leads else f"process {run.trainer.group.rank}"
        complain(f"{who} failed: {failure}")
    elif run.leads:
        print(f"Next: twostep eval {run.folder}")
        unfinished = run.trainer.total_timesteps < run.config.trainer.total_timesteps
        if unfinished and not (run.solved or run.found):
            print(f"  or: twostep resume {run.folder}")


def _list(run: Run, *, drawn: bool) -> None:
    """Say what is in the folder."""
    print(f"  {run.folder}")
    about = {
        CHECKPOINTS: "the agent, and all that is needed to go on",
        BEST: f"the agent that did best in evaluation: {run.evaluations.words()}",
        REPLAYS: f"a match of every evaluation: twostep play {run.folder}",
        ROLLOUTS: f"the newest experience: twostep inspect {run.folder / ROLLOUTS}",
    }
    for name, words in about.items():
        if (run.folder / name).is_dir():
            print(f"    {name:20} {words}")
    if drawn:
        print(f"    {CURVE_FILE:20} the run as a picture")
    print(f"    {METRICS_FILE:20} a row per update; config.yaml: every setting")


def _outcome(run: Run, seconds: float, failure: TwostepError | None) -> str:
    trainer, settings = run.trainer, run.config.trainer
    rewards = list(trainer.episode_rewards)
    how = "finished"
    if run.solved:
        how = f"solved ({settings.solved_at:g})"
    elif run.found:
        how = "the law was found"
    elif failure is not None:
        how = "failed"
    elif run.stopped:
        how = "stopped"
    result = "no episode has ended yet"
    if rewards:
        last = f"{len(rewards)} episodes" if len(rewards) > 1 else "episode"
        result = f"mean return {number(sum(rewards) / len(rewards))} over the last {last}"
    return f"{how} after {trainer.total_timesteps:,} steps in {duration(seconds)}; {result}."


def _draw(run: Run) -> bool:
    config = run.config
    try:
        plot_learning_curve(
            run.folder / METRICS_FILE,
            run.folder / CURVE_FILE,
            title=f"{config.experiment_name or config.env.id}, seed {config.seed}",
            solved_at=config.trainer.solved_at,
            evaluations_jsonl=run.folder / EVALUATIONS_FILE,
        )
    except (TwostepError, ImportError, OSError):
        return False
    return True
