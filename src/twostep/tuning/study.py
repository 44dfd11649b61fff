"""A study: what was tried, how it went, what is tried next. All of it lies in a journal that every step is added to."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from twostep.errors import ConfigError
from twostep.files import replace_text
from twostep.tuning.space import Dimension, grid_points, parse_space
from twostep.values import settle, show

if TYPE_CHECKING:
    from optuna.study import Study as OptunaStudy
    from optuna.trial import FrozenTrial, Trial

JOURNAL_FILE, SETTINGS_FILE, TRIALS = "journal.log", "study.json", "trials"
REPORTS = 20
"""How often a training says how far it is; a hopeless one may be given up at each."""
_WITHOUT_JUDGING = 5
"""Trials before any is given up, and reports of a trial before it may be."""
_ERROR, _CONTINUES, _HOME = "error", "continues", "home"


@dataclass(kw_only=True, frozen=True)
class StudySettings:
    """What makes one study a different one from another."""

    space: str
    """What is searched, see `parse_space`."""
    grid: bool = False
    """Whether every combination of values is tried once, in random order, instead of what looks best."""
    metric: str = "mean_reward"
    """The number, as it is logged in training, that is to be large at the end."""
    seeds: int = 1
    """Trainings per trial, of different seeds; their mean counts."""
    pruner: Literal["median", "halving", "none"] = "median"
    """What gives trials up on the way: half of the others were better, too few resources go to bad ones, nothing."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        settle(self)
        if self.seeds < 1:
            raise ConfigError(f"seeds={self.seeds} must be 1 or more: 3 tell chance from skill.")

    def dimensions(self) -> tuple[Dimension, ...]:
        """Return what is searched."""
        return parse_space(self.space, grid=self.grid)


@dataclass(frozen=True)
class Tried:
    """One trial as it stands."""

    number: int
    state: Literal["finished", "given up", "failed", "running", "broken off"]
    value: float | None
    params: dict[str, Any]
    reached: dict[int, float]
    """The metric at each report."""
    error: str = ""

    @property
    def counts(self) -> bool:
        """Whether it is one of the trials that were asked for; one that was broken off goes on as another."""
        return self.state in ("finished", "given up", "failed")


class Study:
    """The trials of a folder. One process at a time has it open; whoever opens it again goes on where it stands."""

    def __init__(self, folder: Path, settings: StudySettings, seed: int = 0) -> None:
        require_optuna()
        self.folder, self.settings = folder, settings
        self.dimensions = settings.dimensions()
        points = grid_points(self.dimensions) if settings.grid else []
        _require_same(folder / SETTINGS_FILE, settings)
        self._optuna = _open(folder / JOURNAL_FILE, settings, seed)
        if points and not self._optuna.trials:
            random.Random(seed).shuffle(points)
            for point in points:
                self._optuna.enqueue_trial(point)
        self._running: dict[int, Trial] = {}
        self._reported: dict[int, set[int]] = {}
        for trial in self._trials("RUNNING"):  # of a process that was killed
            self._requeue(trial)

    def next(self) -> int | None:
        """Begin a trial and return its number; None where a grid has been gone through."""
        waiting = self._trials("WAITING")
        if self.settings.grid and not waiting:
            return None
        trial = self._optuna.ask()
        for dimension in self.dimensions:
            dimension.suggest(trial)
        before = trial.user_attrs.get(_CONTINUES)
        known = {} if before is None else self._optuna.trials[before].intermediate_values
        for step, value in known.items():
            trial.report(value, step)
        self._running[trial.number], self._reported[trial.number] = trial, set(known)
        return trial.number

    def params(self, number: int) -> dict[str, Any]:
        """Return the settings of a trial that runs, by dotted name."""
        return dict(self._running[number].params)

    def home(self, number: int) -> Path:
        """Return the folder of a trial that runs: that of the trial which it goes on with, if it does."""
        return self.folder / TRIALS / self._running[number].user_attrs.get(_HOME, f"{number:04}")

    def report(self, number: int, step: int, value: float) -> bool:
        """Take in how a trial does at a report, and say whether it is given up."""
        trial, reported = self._running[number], self._reported[number]
        if step not in reported:  # a training that was killed before it saved says it again
            reported.add(step)
            trial.report(value, step)
        return bool(trial.should_prune())

    def finish(self, number: int, value: float) -> None:
        """Take in how a trial ended."""
        if not math.isfinite(value):
            self.fail(number, f"{self.settings.metric} was never a number: train longer, or choose another metric")
            return
        self._optuna.tell(self._running.pop(number), value)

    def give_up(self, number: int) -> None:
        """Take in that a trial was stopped because others do better."""
        from optuna.trial import TrialState

        self._optuna.tell(self._running.pop(number), state=TrialState.PRUNED)

    def fail(self, number: int, error: str) -> None:
        """Take in that a trial cannot be trained; the study goes on."""
        from optuna.trial import TrialState

        trial = self._running.pop(number)
        trial.set_user_attr(_ERROR, error)
        self._optuna.tell(trial, state=TrialState.FAIL)

    def break_off(self, number: int) -> None:
        """Take in that a trial was stopped from outside: it goes on when the study does."""
        self._running.pop(number)
        self._requeue(self._optuna.trials[number])

    def tried(self) -> list[Tried]:
        """List all trials that began, the oldest first."""
        return [_tried(trial) for trial in self._optuna.trials if trial.state.name != "WAITING"]

    def count(self) -> int:
        """Return how many trials have ended, one way or another."""
        return sum(one.counts for one in self.tried())

    @property
    def best(self) -> Tried | None:
        """The finished trial of the highest value; None before there is one."""
        finished = [one for one in self.tried() if one.state == "finished" and one.value is not None]
        return max(finished, key=lambda one: one.value or -math.inf, default=None)

    def importance(self) -> dict[str, float]:
        """Return how much each setting matters for the value, in parts of 1; empty where that cannot be told yet."""
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        values = {one.value for one in self.tried() if one.state == "finished"}
        if len(values) < 2 or len(self.dimensions) < 2:
            return {}
        return get_param_importances(self._optuna, evaluator=PedAnovaImportanceEvaluator())

    def _trials(self, state: str) -> list[FrozenTrial]:
        return [trial for trial in self._optuna.trials if trial.state.name == state]

    def _requeue(self, trial: FrozenTrial) -> None:
        """Put a trial in line again, to go on in the same folder."""
        from optuna.trial import TrialState

        home = trial.user_attrs.get(_HOME, f"{trial.number:04}")
        attributes = {_CONTINUES: trial.number, _HOME: home}
        if set(trial.params) == {dimension.name for dimension in self.dimensions}:
            self._optuna.enqueue_trial(trial.params, user_attrs=attributes)
        self._optuna.tell(trial.number, state=TrialState.FAIL)


def require_optuna() -> None:
    """Refuse to begin without what draws the trials."""
    if find_spec("optuna") is None:
        raise ConfigError("tune needs optuna: pip install 'twostep[tune]'.")


def _open(journal: Path, settings: StudySettings, seed: int) -> OptunaStudy:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruners = {
        "median": lambda: optuna.pruners.MedianPruner(_WITHOUT_JUDGING, _WITHOUT_JUDGING),
        "halving": lambda: optuna.pruners.SuccessiveHalvingPruner(min_resource=_WITHOUT_JUDGING, reduction_factor=3),
        "none": optuna.pruners.NopPruner,
    }
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(journal))),
        pruner=pruners[settings.pruner](),
        study_name="twostep",
        direction="maximize",
        load_if_exists=True,
    )
    # A sampler that begins anew would draw again what was drawn before the study was stopped.
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))
    return study


def _require_same(file: Path, settings: StudySettings) -> None:
    """Note what the study is about; refuse to go on with another."""
    wanted = asdict(settings)
    if not file.is_file():
        replace_text(file, json.dumps(wanted, indent=2) + "\n")
        return
    before = json.loads(file.read_text(encoding="utf-8"))
    for name, value in wanted.items():
        if before.get(name) != value:
            raise ConfigError(
                f"{file.parent} holds a study with {name}={show(before.get(name))}, not {show(value)}: go on with it "
                "as it was, or give this one a folder of its own with --out."
            )


_STATES: dict[str, Literal["finished", "given up", "failed", "running"]] = {
    "COMPLETE": "finished",
    "PRUNED": "given up",
    "FAIL": "failed",
    "RUNNING": "running",
}


def _tried(trial: FrozenTrial) -> Tried:
    error = trial.user_attrs.get(_ERROR, "")
    state = "broken off" if trial.state.name == "FAIL" and not error else _STATES[trial.state.name]
    value = trial.value if state == "finished" else None
    return Tried(trial.number, state, value, dict(trial.params), dict(trial.intermediate_values), error)
