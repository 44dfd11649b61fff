"""`twostep train`: from settings to a trained agent, a folder that holds all about it, and a summary."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from twostep.cli.discoveries import SYMBOLIC, in_words, is_found, keep_discoveries
from twostep.cli.evaluations import BEST, EVALUATIONS_FILE, LEAGUE, REPLAYS, Evaluations
from twostep.cli.locking import RunLock
from twostep.cli.runs import (
    CHECKPOINTS,
    CONFIG_FILE,
    CSV_FILE,
    CURVE_FILE,
    METRICS_FILE,
    ROLLOUTS,
    find_checkpoint,
    make_run_folder,
)
from twostep.cli.stopping import Stopping
from twostep.config import TrainingConfig, shipped_config
from twostep.config.suites import load_suite
from twostep.curriculum import make_curriculum
from twostep.errors import CheckpointError, ConfigError, EnvError, TwostepError
from twostep.every import Every
from twostep.protocols import RowEnv, Sink
from twostep.stats.console import Progress, duration, number
from twostep.stats.plots import plot_learning_curve
from twostep.stats.sinks import CsvSink, JsonLinesSink, TensorBoardSink, WandbSink
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
    started = time.monotonic()
    if config.trainer.suite:
        load_suite(config.trainer.suite)  # what is wrong with it is said before anything is made
    if going_on is not None:
        with RunLock(going_on.folder):
            return _train_in(going_on.folder, *build(config), config, started, going_on, watch)
    env, trainer = build(config)
    try:
        trainer.rehearse()
        folder = make_run_folder(config, "Every setting of this run, which 'twostep train' with this file repeats.")
    except BaseException:
        env.close()
        raise
    with RunLock(folder):
        return _train_in(folder, env, trainer, config, started, watch=watch)


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

            trainer.use_replay(make_replay(config.replay, config.seed, folder / ROLLOUTS))
        if going_on is not None:
            _go_on(trainer, going_on)
            config.save_yaml(folder / CONFIG_FILE, "Every setting of this run, as it went on last.")
        run = _Run(config, trainer, folder, watch)
        with Stopping() as stopping, run.progress:
            failure = run.train(stopping)
        run.report(time.monotonic() - started, failure)
    finally:
        env.close()
    if failure is not None:
        return 1
    return INTERRUPTED if trainer.interrupted else stopping.exit_code


def _go_on(trainer: PPOTrainer, going_on: GoingOn) -> None:
    checkpointer = _checkpointer(going_on.folder)
    loaded = checkpointer.load(going_on.step)
    trainer.load_state_dict(loaded.state, same_episodes=going_on.same_episodes)
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
    others = any(name.startswith("env.") and name not in _SAME_EPISODES for name in changes)
    return run_training(config, GoingOn(folder, step, same_episodes=not others))


def build(config: TrainingConfig, num_envs: int | None = None) -> tuple[RowEnv, PPOTrainer]:
    """Make the environments, and then, with torch, the agent and its trainer."""
    plays_itself = config.self_play.snapshot_every > 0
    env = _environments(config, num_envs)
    from twostep.policies.actor_critic import make_policy
    from twostep.runtime import limit_threads
    from twostep.trainer import PPOTrainer

    try:
        policy = make_policy(env, config.agent, seed=config.seed)
        device = device_named(config.device)
        limit_threads(policy)
        taught: dict[str, Any] = {
            "curriculum": make_curriculum(config.curriculum, config.seed),
            "task_score": config.curriculum.score,
        }
        if not plays_itself:
            return env, PPOTrainer(policy, env, config.ppo, device=device, seed=config.seed, **taught)
        from twostep.collect.league import League
        from twostep.collect.selfplay import SelfPlay

        settings = config.self_play
        league = League(policy, settings.league_size, heuristic_share=settings.heuristic_share)
        arena = SelfPlay(env, league, config.env.agent_ids or OWN_TEAM, seed=config.seed)
        trainer = PPOTrainer(policy, arena, config.ppo, device=device, seed=config.seed, **taught)
        trainer.companions[LEAGUE] = league
        return arena, trainer
    except BaseException:
        env.close()
        raise


def _environments(config: TrainingConfig, num_envs: int | None) -> RowEnv:
    from twostep.config.environments import make_configured

    if not config.self_play.snapshot_every:
        return make_configured(config, num_envs)
    try:
        return make_configured(config, num_envs, agent_ids=("*",))
    except EnvError:
        make_configured(config, num_envs).close()  # says it where something else is wrong
    raise ConfigError(
        f"self_play.snapshot_every={config.self_play.snapshot_every} needs an environment of several agents, but "
        f"{config.env.id} has one. Leave it at 0."
    )


def device_named(name: str) -> str | None:
    """Return a device that is there; None chooses one."""
    import torch

    if name == "auto":
        return None
    kind, _, index = name.partition(":")
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if counts.get(kind, 1) <= int(index or 0):
        raise ConfigError(f"device={name!r} is not there: torch sees {counts[kind]} of that kind. Use cpu, or auto.")
    return name


class _Run:
    """One training with all that watches it."""

    def __init__(self, config: TrainingConfig, trainer: PPOTrainer, folder: Path, watch: Watch | None = None) -> None:
        self.config, self.trainer, self.folder, self.watch = config, trainer, folder, watch
        self.solved = self.found = False
        self.progress: Any = _Silence()
        if config.logging.progress:
            self.progress = Progress(
                f"{config.env.id} · seed {config.seed} · {trainer.device}",
                config.trainer.total_timesteps,
                first_step=trainer.total_timesteps,
                action_space=trainer.env.action_space,
                solved_at=config.trainer.solved_at,
            )
        self.evaluations = Evaluations(config, folder, trainer.total_timesteps)
        intervals = (config.trainer.eval_every, config.self_play.snapshot_every, config.trainer.checkpoint_every)
        self._evaluating, self._copying, self._saving = (Every(steps, trainer.total_timesteps) for steps in intervals)
        keeping = {"keep_last": config.trainer.keep_last, "keep_every": config.trainer.keep_every}
        self.checkpointer = _checkpointer(folder, **keeping, config=config.to_dict())
        self._stopping = Stopping()

    def train(self, stopping: Stopping) -> TwostepError | None:
        """Train to the end or until a signal stops it, and save; return what of the user's made it fail."""
        self._stopping = stopping
        settings = self.config.trainer
        try:
            self.trainer.train(
                settings.total_timesteps,
                log_interval=settings.log_interval,
                callback=self._after_update,
                sinks=self._sinks(),
            )
            self._save(self.checkpointer.save)
            self.evaluations.take_in(wait=not self.trainer.interrupted and self._stopping.received is None)
        except TwostepError as error:
            return error
        finally:
            self.evaluations.close()
        return None

    def report(self, seconds: float, failure: TwostepError | None) -> None:
        """Draw the learning curve and say what came out, where it is and what can be done next."""
        from twostep.cli import complain

        drawn = self._draw()
        print(f"{self.config.env.id}: {self._outcome(seconds, failure)}")
        if self.config.env.id == SYMBOLIC:
            print(in_words(keep_discoveries(self.folder, self.trainer.env), "the best expression that was written:"))
        print(f"  {self.folder}")
        if (self.folder / CHECKPOINTS).is_dir():
            print(f"    {CHECKPOINTS:20} the agent, and all that is needed to go on")
        if (self.folder / BEST).is_dir():
            print(f"    {BEST:20} the agent that did best in evaluation: {self.evaluations.words()}")
        if (self.folder / REPLAYS).is_dir():
            print(f"    {REPLAYS:20} a match of every evaluation: twostep play {self.folder}")
        if (self.folder / ROLLOUTS).is_dir():
            print(f"    {ROLLOUTS:20} the newest experience: twostep inspect {self.folder / ROLLOUTS}")
        if drawn:
            print(f"    {CURVE_FILE:20} the run as a picture")
        print(f"    {METRICS_FILE:20} a row per update; config.yaml: every setting")
        if failure is not None:
            complain(f"training failed: {failure}")
            return
        print(f"Next: twostep eval {self.folder}")
        if self.trainer.total_timesteps < self.config.trainer.total_timesteps and not (self.solved or self.found):
            print(f"  or: twostep resume {self.folder}")

    def _outcome(self, seconds: float, failure: TwostepError | None) -> str:
        trainer, settings = self.trainer, self.config.trainer
        rewards = list(trainer.episode_rewards)
        how = "finished"
        if self.solved:
            how = f"solved ({settings.solved_at:g})"
        elif self.found:
            how = "the law was found"
        elif failure is not None:
            how = "failed"
        elif trainer.interrupted or self._stopping.received is not None:
            how = "stopped"
        result = "no episode has ended yet"
        if rewards:
            last = f"{len(rewards)} episodes" if len(rewards) > 1 else "episode"
            result = f"mean return {number(sum(rewards) / len(rewards))} over the last {last}"
        return f"{how} after {trainer.total_timesteps:,} steps in {duration(seconds)}; {result}."

    def _after_update(self, trainer: PPOTrainer, metrics: dict[str, float]) -> bool:
        settings = self.config.trainer
        self.progress.log(metrics, trainer.total_timesteps)
        step = trainer.total_timesteps
        if self.evaluations.take_in():
            self.progress.note(self.evaluations.words())
        if self._evaluating.due(step):
            if self.evaluations.run(trainer):
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
        return not (self.solved or self.found or unwanted or self._stopping.received is not None)

    def _save(self, save: Callable[..., Path | None]) -> None:
        save(self.trainer.total_timesteps, self.trainer.state_dict(), self.trainer.manifest())

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

    def _draw(self) -> bool:
        settings = self.config
        title = f"{settings.experiment_name or settings.env.id}, seed {settings.seed}"
        try:
            plot_learning_curve(
                self.folder / METRICS_FILE,
                self.folder / CURVE_FILE,
                title=title,
                solved_at=settings.trainer.solved_at,
                evaluations_jsonl=self.folder / EVALUATIONS_FILE,
            )
        except (TwostepError, ImportError, OSError):
            return False
        return True


class _Silence:
    """Shows nothing."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Take in one update."""

    def note(self, words: str) -> None:
        """Take in a remark."""
