"""`twostep tune`: many trainings, each with settings of its own, to find which learn best."""

from __future__ import annotations

import math
import os
import re
import signal
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from twostep.cli.locking import RunLock
from twostep.cli.options import TuneRequest
from twostep.cli.runs import CHECKPOINTS, CONFIG_FILE, METRICS_FILE
from twostep.cli.stopping import Stopping
from twostep.cli.together import cores_shared
from twostep.cli.training import GoingOn, load_config, run_training
from twostep.config import TrainingConfig
from twostep.errors import ConfigError, TwostepError
from twostep.every import Every
from twostep.stats.sinks import read_rows
from twostep.tuning import Channel, Crew, Order, Study, StudySettings, write_report
from twostep.tuning.display import SearchProgress
from twostep.tuning.report import BEST_FILE, PICTURE_FILE, REPORT_FILE, said
from twostep.tuning.space import grid_points, with_params
from twostep.tuning.study import REPORTS, require_optuna

if TYPE_CHECKING:
    from twostep.tuning.study import Tried

_USUAL_TRIALS = 30
LOG_FILE = "log.txt"


def run_tuning(request: TuneRequest) -> int:
    """Search, and report what was found, also where it is stopped; return the exit code."""
    require_optuna()
    config = load_config(request.task, request.changes)
    settings = StudySettings(space=request.space, **request.study)
    trials = request.trials or (len(grid_points(settings.dimensions())) if settings.grid else _USUAL_TRIALS)
    _require_buildable(config, settings)
    folder = _folder(request, config)
    with RunLock(folder), Stopping() as stopping:
        study = Study(folder, settings, config.seed)
        config = _same_config(config, folder / CONFIG_FILE)
        with SearchProgress(trials, study.count()) as progress:
            crew = Crew(study, train_trial, trials, request.workers)
            crew.reached = lambda number, step, value: progress.reached(
                number, step / (REPORTS * settings.seeds), value
            )
            crew.ended = lambda number: progress.ended(number, _line(study, number))
            crew.run(lambda: stopping.received is not None)
        write_report(study, config)
    print(_summary(study, trials, stopping.received is not None))
    return stopping.exit_code


def train_trial(order: Order, pipe: Connection) -> None:
    """Train one trial in a process of its own, seed after seed; what it says goes into a file in its folder."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all: whoever decides passes it on
    order.home.mkdir(parents=True, exist_ok=True)
    log = os.open(order.home / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    channel = Channel(pipe)
    study = TrainingConfig.from_yaml(order.home.parent.parent / CONFIG_FILE)
    base = cores_shared(_quiet(with_params(study, order.changes)), order.side_by_side)
    try:
        values: list[float] = []
        for at in range(order.seeds):
            code = _train_seed(order, at, base, channel)
            if code == 1:
                channel.fail(_last_words(order.home / LOG_FILE))
                return
            if code:
                with suppress(ConnectionError):
                    channel.break_off()
                return
            values.append(_value(order, at))
        channel.finish(values)
    except TwostepError as error:
        channel.fail(str(error))
    except Exception as error:
        channel.fail(f"{type(error).__name__}: {error}")
        raise


def _train_seed(order: Order, at: int, base: TrainingConfig, channel: Channel) -> int:
    """Train one seed, or go on with what was trained of it; return the exit code."""
    config = replace(base, seed=base.seed + at, logging=replace(base.logging, run_dir=str(_place(order, at))))
    total = config.trainer.total_timesteps
    going_on = _begun(order, at)
    done = _steps_done(order, at)
    if done >= total:
        return 0
    every = Every(max(1, total // REPORTS), done)

    def watch(step: int, metrics: dict[str, float]) -> bool:
        value = metrics.get(order.metric, math.nan)
        if not every.due(step) or not math.isfinite(value):
            return True
        report = min(REPORTS, step * REPORTS // total)
        try:
            return not channel.report(at * REPORTS + report, value)
        except (EOFError, OSError):  # whoever decides has died
            os.kill(os.getpid(), signal.SIGTERM)  # as if asked to: everything is saved
            return True

    return run_training(config, going_on, watch)


def _place(order: Order, at: int) -> Path:
    return order.home / f"seed_{at}"


def _run_of(order: Order, at: int) -> Path | None:
    """Return the folder of the run of a seed, where there is one that saved something."""
    found = sorted(path.parent for path in _place(order, at).glob(f"*/{CHECKPOINTS}"))
    return found[-1] if found else None


def _begun(order: Order, at: int) -> GoingOn | None:
    folder = _run_of(order, at)
    return None if folder is None else GoingOn(folder)


def _steps_done(order: Order, at: int) -> int:
    folder = _run_of(order, at)
    rows = read_rows(folder / METRICS_FILE) if folder is not None else []
    return rows[-1]["step"] if rows else 0


def _value(order: Order, at: int) -> float:
    """Return what the metric was last."""
    folder = _run_of(order, at)
    rows = read_rows(folder / METRICS_FILE) if folder is not None else []
    known = [row[order.metric] for row in rows if isinstance(row.get(order.metric), (int, float))]
    return float(known[-1]) if known else math.nan


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].removeprefix("twostep: ") if lines else "it said nothing"


def _quiet(config: TrainingConfig) -> TrainingConfig:
    """Return settings for many trainings side by side: no displays, no early end, which would make all alike."""
    quiet = replace(config.logging, progress=False, tensorboard=False, wandb="off")
    return replace(config, logging=quiet, trainer=replace(config.trainer, solved_at=None))


def _require_buildable(config: TrainingConfig, settings: StudySettings) -> None:
    """Refuse a space in which some value is no valid setting, before anything is trained."""
    dimensions = {dimension.name: dimension for dimension in settings.dimensions()}
    for dimension in dimensions.values():
        if dimension.name == "ppo.bptt_length" and config.agent.memory == "none":
            raise ConfigError("space: bptt changes nothing without memory: leave it out, or add --agent.memory gru.")
        for value in dimension.ends():
            with_params(config, {dimension.name: value})
    lengths, rollouts = (
        dimensions[name].ends() if name in dimensions else (getattr(config.ppo, name.removeprefix("ppo.")),)
        for name in ("ppo.bptt_length", "ppo.rollout_steps")
    )
    if "ppo.bptt_length" in dimensions and max(lengths) > min(rollouts):
        raise ConfigError(
            f"space: bptt_length={max(lengths)} is longer than a rollout of rollout_steps={min(rollouts)}, so it is no "
            f"other than {min(rollouts)}: leave it out, or collect longer rollouts, --ppo.rollout_steps {max(lengths)}."
        )


def _folder(request: TuneRequest, config: TrainingConfig) -> Path:
    name = re.sub(r"[^\w.-]+", "-", config.experiment_name or config.env.id).strip("-.") or "study"
    folder = Path(request.out or Path(config.logging.run_dir) / f"tune-{name}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}. Choose another with --out.") from error
    return folder


def _same_config(config: TrainingConfig, file: Path) -> TrainingConfig:
    """Note what all trials share, or refuse to go on with something else."""
    if not file.is_file():
        config.save_yaml(file, "What all trials of this study share.")
        return config
    before = TrainingConfig.from_yaml(file)
    wanted, noted = config.to_dict(), before.to_dict()
    differs = sorted(name for name in wanted if wanted[name] != noted[name])
    if differs:
        raise ConfigError(
            f"{file.parent} holds a study with another {differs[0]}: {noted[differs[0]]}. Go on with it as it was, or "
            "give this one a folder of its own with --out."
        )
    return before


def _line(study: Study, number: int) -> str:
    one: Tried = study.tried()[number]
    chosen = "  ".join(f"{name.rpartition('.')[2]} {said(value)}" for name, value in one.params.items())
    how = f"{study.settings.metric} {one.value:.5g}" if one.value is not None else one.state
    best = study.best
    standing = f"best {best.value:.5g} of trial {best.number}" if best is not None else "none finished yet"
    return f"trial {number}: {how}{f': {one.error}' if one.error else ''}  |  {chosen}  |  {standing}"


def _summary(study: Study, trials: int, stopped: bool) -> str:
    lines = [f"{study.count()} of {trials} trials{', stopped' if stopped else ''}: {study.folder}"]
    best = study.best
    if best is not None:
        chosen = ", ".join(f"{name}={said(value)}" for name, value in best.params.items())
        lines.append(f"  best: {study.settings.metric} {best.value:.5g} of trial {best.number} with {chosen}")
        lines.append(f"    {BEST_FILE:12} twostep train {study.folder / BEST_FILE}")
    lines.append(f"    {REPORT_FILE:12} all trials; {PICTURE_FILE}: the same as a picture")
    if stopped:
        lines.append("Next: the same command goes on.")
    return "\n".join(lines)


__all__ = ["run_tuning", "train_trial"]
