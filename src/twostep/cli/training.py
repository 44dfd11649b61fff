"""`twostep train`: from settings to a trained agent, a folder that holds all about it, and a summary."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from twostep.cli.discoveries import SYMBOLIC, is_found
from twostep.cli.evaluations import BEST, LEAGUE, Evaluations
from twostep.cli.fitting import require_fitting
from twostep.cli.locking import RunLock
from twostep.cli.reporting import report
from twostep.cli.runs import (
    CHECKPOINTS,
    CONFIG_FILE,
    CSV_FILE,
    METRICS_FILE,
    ROLLOUTS,
    find_checkpoint,
    make_run_folder,
)
from twostep.cli.stopping import Stopping
from twostep.cli.teachers import make_distiller, with_teacher_named
from twostep.cli.together import joined, launched_before, mark_launched, own_part
from twostep.config import TrainingConfig, shipped_config
from twostep.config.suites import load_suite
from twostep.curriculum import make_curriculum
from twostep.errors import CheckpointError, ConfigError, EnvError, TwostepError
from twostep.every import Every
from twostep.launch import launch
from twostep.protocols import RowEnv, Sink
from twostep.seeds import process_seed
from twostep.stats.console import Progress
from twostep.stats.sinks import CsvSink, JsonLinesSink, TensorBoardSink, WandbSink
from twostep.stats.troubleshooting import Troubleshooter, out_of_memory
from twostep.values import show

if TYPE_CHECKING:
    from twostep.checkpoint import TrainingCheckpointer
    from twostep.collect.league import League
    from twostep.trainer import PPOTrainer

_LOG = logging.getLogger("twostep.cli")

EPISODES_TO_BE_SOLVED = 100
TIME_TO_SETTLE = 0.25
"""Part of a search for a law in which the policy may learn to write it always; then having found it is enough."""
INTERRUPTED = 130
_FIXED = ("env.id", "seed", "ppo.optimizer", "ppo.weight_decay", "ppo.adam_eps")
"""What the rest of a run cannot do without, beside the network."""
_SAME_EPISODES = ("env.num_envs", "env.num_workers")
"""What of the environments may change without making others of them."""
OWN_TEAM = "blue_*"
"""Who learns in self-play, unless `env.agent_ids` says it."""


def load_config(task: str, changes: dict[str, Any]) -> TrainingConfig:
    """Return the settings for an environment or from a YAML file, with the command line's changes."""
    if task.lower().endswith((".yaml", ".yml")) or Path(task).is_file():
        config = TrainingConfig.from_yaml(task, changes)
        if not config.env.id:
            raise ConfigError(f"{task} names no environment: add 'env: {{id: CartPole-v1}}' to it, or --env.id.")
        return config
    if Path(task).is_dir():
        raise ConfigError(f"{show(task)} is a folder: give an environment or a YAML file; 'twostep eval' takes runs.")
    return shipped_config(task, changes) or TrainingConfig.from_dict({"env": {"id": task}}, changes)


Watch = Callable[[int, dict[str, float]], bool]
"""Is told steps and metrics after each update; False ends the training."""


class GoingOn(NamedTuple):
    """Where a run goes on."""

    folder: Path
    step: int | None = None
    """From the checkpoint of this step; None from the newest that is whole."""
    same_episodes: bool = True
    """Whether environments go on in the middle of their episodes, where their state could be kept."""


def run_training(config: TrainingConfig, going_on: GoingOn | None = None, watch: Watch | None = None) -> int:
    """Train, save and report, in a new folder or in that of a run that goes on; return the exit code."""
    try:
        with joined(config):
            return _training(config, going_on, watch)
    except _FailedError:
        return 1


class _FailedError(Exception):
    """A training that failed, and has said so."""


def _training(config: TrainingConfig, going_on: GoingOn | None, watch: Watch | None) -> int:
    started = time.monotonic()
    config = with_teacher_named(config)
    if config.trainer.suite:
        load_suite(config.trainer.suite)  # what is wrong with it is said before anything is made
    before = launched_before(config)
    if before is not None:
        going_on = GoingOn(before)
    if going_on is not None:
        with _locked(going_on.folder):
            return _train_in(going_on.folder, *build(config), config, started, going_on, watch)
    require_fitting(config)
    env, trainer = build(config)
    try:
        trainer.rehearse()
        heading = "Every setting of this run, which 'twostep train' with this file repeats."
        made = str(make_run_folder(config, heading)) if trainer.group.leads else ""
        folder = Path(trainer.group.tell(made)[0])
    except BaseException:
        env.close()
        raise
    with _locked(folder):
        return _train_in(folder, env, trainer, config, started, watch=watch)


def _locked(folder: Path) -> AbstractContextManager[Any]:
    """Hold the folder of a run, if this is the process that writes there."""
    return nullcontext() if launch().rank else RunLock(folder)


def _train_in(
    folder: Path,
    env: RowEnv,
    trainer: PPOTrainer,
    config: TrainingConfig,
    started: float,
    going_on: GoingOn | None = None,
    watch: Watch | None = None,
) -> int:
    try:
        if config.replay.kept:
            from twostep.learn.replay import make_replay

            rank = trainer.group.rank
            rollouts = folder / (f"{ROLLOUTS}_{rank}" if rank else ROLLOUTS)
            trainer.use_replay(make_replay(config.replay, process_seed(config.seed, rank), rollouts))
        if going_on is not None:
            _go_on(trainer, going_on)
        if trainer.group.leads:
            mark_launched(folder)
            if going_on is not None:
                config.save_yaml(folder / CONFIG_FILE, "Every setting of this run, as it went on last.")
        run = Run(config, trainer, folder, watch)
        with Stopping() as stopping, run.progress:
            failure = run.train(stopping)
        report(run, time.monotonic() - started, failure)
    finally:
        env.close()
    if failure is not None:
        raise _FailedError
    return INTERRUPTED if trainer.interrupted else stopping.exit_code


def _go_on(trainer: PPOTrainer, going_on: GoingOn) -> None:
    checkpointer = _checkpointer(going_on.folder)
    if not checkpointer.steps():  # all processes were started again before anything was saved
        return
    loaded = checkpointer.load(going_on.step)
    trainer.load_state_dict(loaded.state, same_episodes=going_on.same_episodes)
    trainer.group.any(False)  # all have read it
    if not trainer.group.leads:
        return
    if trainer.restart_reason:
        print(f"twostep: episodes begin anew: {trainer.restart_reason}")
    for left in checkpointer.leave_later(trainer.total_timesteps):
        print(f"twostep: {left} is kept under this name; the run goes on from {loaded.path.name}.")


def load_newest(trainer: PPOTrainer, folder: Path) -> None:
    """Give a trainer what a run learned, from its newest checkpoint that is whole."""
    trainer.load_state_dict(_checkpointer(folder).load().state, same_episodes=False)


def _checkpointer(folder: Path, **settings: Any) -> TrainingCheckpointer:
    from twostep.checkpoint import TrainingCheckpointer

    return TrainingCheckpointer(folder / CHECKPOINTS, **settings)


def resume_training(where: str, changes: dict[str, Any]) -> int:
    """Go on with a run from its newest checkpoint, or from the one named; return the exit code."""
    folder, step = find_checkpoint(where)
    fixed = next((name for name in changes if name.startswith("agent.") or name in _FIXED), None)
    if fixed is not None:
        raise ConfigError(f"{fixed} cannot change in the middle of a run: leave it out, or begin with 'twostep train'.")
    config = TrainingConfig.from_yaml(folder / CONFIG_FILE, changes)
    others = any(name.startswith(("env.", "imitation.")) and name not in _SAME_EPISODES for name in changes)
    return run_training(config, GoingOn(folder, step, same_episodes=not others))


def build(config: TrainingConfig, num_envs: int | None = None) -> tuple[RowEnv, PPOTrainer]:
    """Make the environments, and then, with torch, the agent and its trainer."""
    plays_itself = config.self_play.snapshot_every > 0
    env = _environments(own_part(config), num_envs)
    from twostep.policies.actor_critic import make_policy
    from twostep.runtime import limit_threads
    from twostep.trainer import PPOTrainer

    try:
        policy = make_policy(env, config.agent, seed=config.seed)
        device = device_named(config.device)
        limit_threads(policy)
        own_seed = process_seed(config.seed, launch().rank)
        taught: dict[str, Any] = {
            "curriculum": make_curriculum(config.curriculum, own_seed),
            "task_score": config.curriculum.score,
        }
        if config.imitation.teacher:
            return env, make_distiller(config, env, policy, device=device, **taught)
        if not plays_itself:
            return env, PPOTrainer(policy, env, config.ppo, device=device, seed=config.seed, **taught)
        from twostep.collect.league import League
        from twostep.collect.selfplay import SelfPlay

        settings = config.self_play
        league = League(policy, settings.league_size, heuristic_share=settings.heuristic_share)
        arena = SelfPlay(env, league, config.env.agent_ids or OWN_TEAM, seed=own_seed)
        trainer = PPOTrainer(policy, arena, config.ppo, device=device, seed=config.seed, **taught)
        trainer.companions[LEAGUE] = league
        return arena, trainer
    except BaseException:
        env.close()
        raise


def _environments(config: TrainingConfig, num_envs: int | None) -> RowEnv:
    from twostep.config.environments import make_configured

    seed = process_seed(config.seed, launch().rank)
    if not config.self_play.snapshot_every:
        return make_configured(config, num_envs, seed)
    try:
        return make_configured(config, num_envs, seed, agent_ids=("*",))
    except EnvError:
        make_configured(config, num_envs).close()  # says it where something else is wrong
    raise ConfigError(
        f"self_play.snapshot_every={config.self_play.snapshot_every} needs an environment of several agents, but "
        f"{config.env.id} has one. Leave it at 0."
    )


def device_named(name: str) -> str | None:
    """Return a device that is there; None chooses one."""
    import torch

    from twostep.group import own_gpu

    if launch().size > 1 and (name.startswith("cuda") or (name == "auto" and torch.cuda.is_available())):
        return f"cuda:{own_gpu()}"
    if name == "auto":
        return None
    kind, _, index = name.partition(":")
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if counts.get(kind, 1) <= int(index or 0):
        raise ConfigError(f"device={name!r} is not there: torch sees {counts[kind]} of that kind. Use cpu, or auto.")
    return name


class Run:
    """One training with all that watches it."""

    def __init__(self, config: TrainingConfig, trainer: PPOTrainer, folder: Path, watch: Watch | None = None) -> None:
        self.config, self.trainer, self.folder, self.watch = config, trainer, folder, watch
        self.leads = trainer.group.leads
        self.solved = self.found = False
        self.progress: Any = _Silence()
        if config.logging.progress and self.leads:
            self.progress = Progress(
                f"{config.env.id} · seed {config.seed} · {trainer.device}",
                config.trainer.total_timesteps,
                first_step=trainer.total_timesteps,
                action_space=trainer.env.action_space,
                solved_at=config.trainer.solved_at,
            )
        self.troubles = Troubleshooter(trainer.env.action_space)
        self.times = {"collect_time": 0.0, "learn_time": 0.0}
        """Seconds that both phases took."""
        self.evaluations = Evaluations(config if self.leads else TrainingConfig(), folder, trainer.total_timesteps)
        intervals = (config.trainer.eval_every, config.self_play.snapshot_every, config.trainer.checkpoint_every)
        self._evaluating, self._copying, self._saving = (Every(steps, trainer.total_timesteps) for steps in intervals)
        keeping = {"keep_last": config.trainer.keep_last, "keep_every": config.trainer.keep_every}
        self.checkpointer = _checkpointer(folder, **keeping, config=config.to_dict())
        self._stopping, self._asked_to_stop = Stopping(), False

    def train(self, stopping: Stopping) -> TwostepError | None:
        """Train to the end or until a signal stops it, and save; return what of the user's made it fail."""
        from torch import OutOfMemoryError

        self._stopping = stopping
        settings = self.config.trainer
        try:
            self.trainer.train(
                settings.total_timesteps,
                log_interval=settings.log_interval,
                callback=self._after_update,
                sinks=self._sinks() if self.leads else (),
            )
            self._save(self.checkpointer.save)
            self.evaluations.take_in(wait=not self.stopped)
        except TwostepError as error:
            return error
        except OutOfMemoryError:
            imitation = self.config.imitation
            lessons = imitation.keep if imitation.teacher else None
            return ConfigError(out_of_memory(self.config.env.num_envs, vars(self.config.ppo), lessons))
        finally:
            self.evaluations.close()
        return None

    @property
    def stopped(self) -> bool:
        """Whether somebody asked for an end."""
        return self.trainer.interrupted or self._asked_to_stop

    def _after_update(self, trainer: PPOTrainer, metrics: dict[str, float]) -> bool:
        settings = self.config.trainer
        self.progress.log(metrics, trainer.total_timesteps)
        for words in self.troubles.take_in(metrics, vars(trainer.config), rewarded=trainer.state.rewarded):
            self.progress.say(words)
        for phase in self.times:
            self.times[phase] += metrics[phase]
        step = trainer.total_timesteps
        if self.evaluations.take_in():
            self.progress.note(self.evaluations.words())
        if self._evaluating.due(step):
            if trainer.group.any(self.leads and self.evaluations.run(trainer)):
                self._save_best()
            self.progress.note(self.evaluations.words())
        if self._copying.due(step):
            cast("League", trainer.companions[LEAGUE]).add(name=f"step_{step}")
        if self._saving.due(step):
            self._save(self.checkpointer.try_save)
        enough = metrics["episodes"] >= EPISODES_TO_BE_SOLVED
        self.solved = settings.solved_at is not None and enough and metrics["mean_reward"] >= settings.solved_at
        if self.config.env.id == SYMBOLIC and step >= TIME_TO_SETTLE * settings.total_timesteps:
            self.found = is_found(self.config.env.kwargs.get("law"), trainer.env)
        unwanted = self.watch is not None and not self.watch(step, metrics)
        self._asked_to_stop = trainer.group.any(self._stopping.received is not None)
        return not (self.solved or self.found or unwanted or self._asked_to_stop)

    def _save(self, save: Callable[..., Path | None]) -> None:
        state = self.trainer.state_dict()
        if self.leads:
            save(self.trainer.total_timesteps, state, self.trainer.manifest())

    def _save_best(self) -> None:
        try:
            self.trainer.save_checkpoint(self.folder / BEST)
        except CheckpointError as error:
            _LOG.warning("The best agent could not be saved: %s", error)

    def _sinks(self) -> list[Sink]:
        last = self.trainer.total_timesteps
        sinks: list[Sink] = [JsonLinesSink(self.folder / METRICS_FILE, resume_step=last)]
        if self.config.logging.csv:
            sinks.append(CsvSink(self.folder / CSV_FILE, resume_step=last))
        if self.config.logging.tensorboard and find_spec("tensorboard") is not None:
            sinks.append(TensorBoardSink(self.folder, resume_step=last))
        logging_to = self.config.logging
        if logging_to.wandb != "off":
            about = {"project": logging_to.wandb_project, "name": self.folder.name, "mode": logging_to.wandb}
            sinks.append(WandbSink(self.folder, config=self.config.to_dict(), **about))
        return sinks


class _Silence:
    """Shows nothing."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Take in one update."""

    def note(self, words: str) -> None:
        """Take in a remark."""

    def say(self, words: str) -> None:
        """Take in a line."""
