"""The trainer: collect, learn, and both in turn. Every phase can be called alone, and overridden alone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from twostep.checkpoint import load_state, save_state
from twostep.collect.collector import RolloutCollector
from twostep.collect.tasks import Score
from twostep.collect.trajectories import task_trajectories
from twostep.config import TrainingConfig, ppo_settings, require_own_rewards
from twostep.curriculum import make_curriculum
from twostep.environments import action_space_of
from twostep.errors import ConfigError, EnvError
from twostep.every import Every
from twostep.group import present_group
from twostep.learn.custom import CustomLoss
from twostep.learn.losses import ppo_loss
from twostep.learn.ppo import PPOOptimizer
from twostep.learn.replay import ReplayBuffer, Replayed, make_replay
from twostep.learn.settings import PPOConfig
from twostep.policies.adapters import as_policy
from twostep.protocols import Curriculum, Sink, Stateful
from twostep.resumption import kept, take_up
from twostep.rollout import RolloutBuffer
from twostep.runtime import chosen_device, keep_freed_memory
from twostep.seeds import process_seed, training_seeds
from twostep.stats import StatsLogger
from twostep.store import described
from twostep.training_state import Counted, TrainingState, timings
from twostep.tree import Tree
from twostep.vector.agents import require_agents

Callback = Callable[["PPOTrainer", dict[str, float]], Any]
"""`fn(trainer, metrics)` after every update; returning False stops the training."""


class PPOTrainer(Counted):
    """Proximal Policy Optimization in two steps.

    >>> trainer = PPOTrainer(policy, env)
    >>> data = trainer.collect_rollouts(n_steps=1000)     # no learning
    >>> metrics = trainer.learn(data)                     # no environment
    >>> history = trainer.train(total_timesteps=100_000)  # both in turn
    """

    def __init__(
        self,
        policy: Any,
        env: Any = None,
        config: Any = None,
        *,
        device: torch.device | str | None = None,
        run_dir: str | Path | None = None,
        seed: int | None = None,
        optimizer: torch.optim.Optimizer | str | None = None,
        custom_losses: Sequence[CustomLoss] = (),
        curriculum: Curriculum | None = None,
        task_score: str | Score = "return",
        checkpoint_dir: str | Path | None = None,
        replay: ReplayBuffer | None = None,
        **settings: Any,
    ) -> None:
        """Take a policy and an environment, or, as `PPOTrainer(policy, config, device)`, settings in their place.

        `settings` are fields of `PPOConfig` by any of their names. Without a config they change the defaults for a
        single environment: rollouts of 2048 steps, 10 epochs, minibatches of 64. `optimizer` is one of your own, whose
        learning rates a schedule then scales, or the name of the one that is made. `checkpoint_dir` is `run_dir` by the
        name it had before. Every episode plays a task of `curriculum`, which is told how it went by `task_score`, see
        `RolloutCollector`; checkpoints hold it.

        Processes that `torch.distributed` has joined learn together, each from the rows of its own environment: all of
        them make the same calls, and the one that leads writes.
        """
        if isinstance(env, (PPOConfig, TrainingConfig)):
            env, config, device = None, env, device if device is not None else config
        if isinstance(optimizer, str):
            settings, optimizer = {**settings, "optimizer": optimizer}, None
        chosen = ppo_settings(config, settings)
        self.device = chosen_device(device)
        self.env = env
        folder = run_dir if run_dir is not None else checkpoint_dir
        self.run_dir = Path(folder) if folder is not None else None
        self.seed = seed
        self.group = present_group()
        self._seeds = training_seeds(None if seed is None else process_seed(seed, self.group.rank))
        self._collectors: dict[int, RolloutCollector] = {}
        self.policy = as_policy(policy, action_space_of(env)).to(self.device)
        self.acting: Any = self.policy
        """Who acts while rollouts are collected: the policy, unless a subclass lets somebody else."""
        self.learner = PPOOptimizer(
            self.policy, optimizer, self.device, chosen, seed=self._seeds.order, group=self.group
        )
        self.custom_losses = tuple(custom_losses)
        self.state = TrainingState(group=self.group)
        self.interrupted = False
        self.curriculum, self._task_score, self.replay = curriculum, task_score, replay
        parts = {"curriculum": curriculum, "replay": replay}
        self.companions: dict[str, Stateful] = {name: part for name, part in parts.items() if part is not None}
        """What else checkpoints hold, by name: a league of past selves, say."""

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any] | str | Path | TrainingConfig, env: Any, policy: Any, device: Any = None
    ) -> PPOTrainer:
        """Take the settings from a nested dict, a YAML file or a `TrainingConfig`.

        Raises:
            ConfigError: They are those of imitation or self-play, which need more than a policy and an environment.
        """
        if isinstance(config, (str, Path)):
            config = TrainingConfig.from_yaml(config)
        elif not isinstance(config, TrainingConfig):
            config = TrainingConfig.from_dict(config)
        require_own_rewards(config)
        return cls(
            policy,
            env,
            config.ppo,
            device=device if device is not None else config.device,
            seed=config.seed,
            curriculum=make_curriculum(config.curriculum, config.seed),
            task_score=config.curriculum.score,
            replay=make_replay(config.replay, config.seed) if config.replay.ratio else None,
        )

    @property
    def config(self) -> PPOConfig:
        """The settings of PPO; assign others, and they hold from the next rollout on."""
        return self.learner.config

    @config.setter
    def config(self, config: Any) -> None:
        self.learner.config = ppo_settings(config, {})

    @property
    def model(self) -> Any:
        """The policy, by its other name."""
        return self.policy

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the policy's parameters."""
        return self.learner.optimizer

    @property
    def return_normalizer(self) -> Any:
        """The running deviation of returns, in use where `config.normalize_returns`."""
        return self.learner.return_normalizer

    # ------------------------------------------------------------------ phase one: collect

    def collect_rollouts(self, n_steps: int, **context: Tensor) -> dict[str, Any]:
        """Act for `n_steps` per row without learning, and return everything as a dict of tensors.

        `context` is handed to the policy by keyword and kept with the data, so that `learn` sees it too.
        """
        rollout = self._collect(self._collector(self.env), n_steps, context)
        rollout.compute_gae(gamma=self.config.gamma, gae_lambda=self.config.gae_lambda)
        return rollout.to_dict()

    def collect_rollout(
        self, env: Any = None, agent_ids: Sequence[str] | None = None, state: Tree = None
    ) -> RolloutBuffer | tuple[RolloutBuffer, Tree]:
        """Act for `config.rollout_steps` and return the rollout; `train` goes through `collect_rollouts` instead.

        Memory is carried on by the trainer; whoever passes `state` gets the rollout and the memory after it.
        """
        collector = self._collector(env if env is not None else self.env)
        if agent_ids is not None:
            require_agents(collector.vecenv, agent_ids)
        if state is None:
            return self._collect(collector, self.config.rollout_steps, {})
        collector.set_memory(state)
        rollout = self._collect(collector, self.config.rollout_steps, {})
        return rollout, collector.memory()

    def rehearse(self) -> None:
        """Begin to collect without a step, so that what cannot work is said before anything is made of it."""
        self._collector(self.env).make_experience(self.config.rollout_steps)

    def _collect(self, collector: RolloutCollector, n_steps: int, context: Mapping[str, Tensor]) -> RolloutBuffer:
        collector.on_nonfinite = self.config.on_nonfinite
        rollout = collector.rollout(n_steps, context)
        self.state.count(rollout, collector.statistics)
        return rollout

    def _collector(self, env: Any) -> RolloutCollector:
        """Return the collector of an environment, which knows where its episodes stand."""
        if env is None:
            raise EnvError("This trainer has no environment to collect from. Pass env= to PPOTrainer or to this call.")
        if id(env) not in self._collectors:
            self._collectors[id(env)] = RolloutCollector(
                env,
                self.acting,
                device=self.device,
                bptt_length=self.config.bptt_length,
                seed=self._seeds.actions + len(self._collectors),
                env_seed=self._seeds.env,
                curriculum=self.curriculum,
                task_score=self._task_score,
                group=self.group,
            )
        return self._collectors[id(env)]

    def get_task_trajectories(self, task: Any, count: int = 8, length: int = 16) -> Tensor:
        """Set the environment to a task and return `task_trajectories` of it; their steps count."""
        seed = self._seeds.actions + self.total_timesteps
        trajectories, steps = task_trajectories(self._collector(self.env), task, count, length, seed)
        self.state.agent_steps += sum(self.group.tell(steps))
        return trajectories

    # ------------------------------------------------------------------ phase two: learn

    def learn(
        self,
        rollout_data: Mapping[str, Any] | RolloutBuffer,
        recompute: bool = False,
        replayed: Replayed | None = None,
    ) -> dict[str, float]:
        """Learn from a rollout, however old and wherever collected, without touching an environment.

        Advantages that come with the data are used as they are, unless only what they came from was changed since: then
        they are computed anew. The data are not changed. `recompute` values them anew with the present critic, for data
        collected long ago. `replayed` is past experience to learn from beside them.
        """
        buffer = rollout_data
        if not isinstance(buffer, RolloutBuffer):
            buffer = RolloutBuffer.from_dict(buffer)
        if recompute:
            buffer = self.learner.revalued(buffer)
        metrics = self.learner.update(buffer, self.custom_losses, replayed)
        self.state.epoch += not math.isnan(metrics["loss"])
        return metrics

    def update(self, buffer: RolloutBuffer, init_state: Tree = None) -> dict[str, float]:
        """Learn from a rollout buffer; its memory is stored in it, so `init_state` is not needed.

        It goes through `learn`, which is what to override for `train`: `train` does not call `update`.
        Metrics carry both names of the two losses: `policy_loss` and `pg_loss`, `value_loss` and `vf_loss`.
        """
        metrics = self.learn(buffer)
        return metrics | {"pg_loss": metrics["policy_loss"], "vf_loss": metrics["value_loss"]}

    def _compute_losses(
        self, buffer: RolloutBuffer, new_logprobs: Tensor, new_values: Tensor, new_entropies: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss on a whole rollout for given new log-probabilities, values and entropies, all `[T, B]`.

        It is there to be called: learning computes its own, to which `custom_losses` add terms.
        """
        if buffer.advantages is None or buffer.returns is None:
            buffer.compute_gae(gamma=self.config.gamma, gae_lambda=self.config.gae_lambda)
        assert buffer.advantages is not None
        assert buffer.returns is not None
        loss, metrics = ppo_loss(
            new_logprobs,
            new_values,
            new_entropies,
            old_logprobs=buffer.logprobs,
            old_values=buffer.values,
            advantages=buffer.advantages,
            returns=buffer.returns,
            config=self.config,
            valid=None if bool(buffer.valid.all()) else buffer.valid,
            count=int(buffer.valid.sum()),
            value_scale=self.policy.value_scale if self.config.normalize_returns else None,
        )
        names = {"policy_loss": "pg_loss", "value_loss": "vf_loss"}
        return loss, {names.get(name, name): value for name, value in metrics.items()}

    # ------------------------------------------------------------------ both in turn

    def train(
        self,
        total_timesteps: int,
        rollout_length: int | None = None,
        log_interval: int = 1,
        save_interval: int | None = None,
        callback: Callback | None = None,
        sinks: Iterable[Sink] = (),
        **settings: Any,
    ) -> dict[str, list[float]]:
        """Collect and learn in turn until the counter `self.total_timesteps` reaches `total_timesteps`.

        Each turn calls `collect_rollouts` and `learn`, so a subclass changes training by overriding these two.
        Returns what was measured, a list per metric with an entry every `log_interval` updates. `settings` are tensors
        that condition the policy, or fields of `PPOConfig` for this and later calls. Ctrl-C stops between two steps and
        keeps everything learned so far; `interrupted` tells.
        """
        context = {name: value for name, value in settings.items() if isinstance(value, Tensor)}
        named = {name: value for name, value in settings.items() if value is not None and name not in context}
        if named:
            self.config = ppo_settings(self.config, named)
        keep_freed_memory()
        length = rollout_length or self.config.rollout_steps
        history: dict[str, list[float]] = {}
        logger = StatsLogger(sinks if self.group.leads else ())
        self.interrupted = False
        saving = Every(save_interval or 0, self.n_updates)
        try:
            while self.total_timesteps < total_timesteps:
                metrics = self._iterate(length, total_timesteps, context)
                if self.n_updates % max(1, log_interval) == 0 or self.total_timesteps >= total_timesteps:
                    logger.log(metrics, self.total_timesteps)
                    for name, value in metrics.items():
                        history.setdefault(name, []).append(value)
                if saving.due(self.n_updates):
                    self.save_checkpoint()
                if self.group.any(callback is not None and callback(self, metrics) is False):
                    break
            self.learner.set_progress(self.total_timesteps / total_timesteps)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            logger.close()
        return history

    def _iterate(self, length: int, total_timesteps: int, context: Mapping[str, Tensor]) -> dict[str, float]:
        """Collect once, learn once, and tell what happened."""
        self.learner.set_progress(self.total_timesteps / total_timesteps)
        if self.curriculum is not None:
            self.curriculum.set_progress(self.total_timesteps / total_timesteps)
        before = self.total_timesteps
        started = time.perf_counter()
        data = self.collect_rollouts(length, **context)
        collected = time.perf_counter()
        metrics = self.learn(data) if self.replay is None else self._learn_beside_past(data, self.replay)
        learned = time.perf_counter()
        taught = {} if self.curriculum is None else self.curriculum.metrics()
        steps = self.total_timesteps - before
        return metrics | taught | self.state.metrics() | timings(steps, started, collected, learned)

    def use_replay(self, replay: ReplayBuffer) -> None:
        """Keep what `train` collects from here on, and learn from it again; checkpoints hold its state."""
        self.replay = self.companions["replay"] = replay

    def _learn_beside_past(self, data: Mapping[str, Any], replay: ReplayBuffer) -> dict[str, float]:
        fresh = RolloutBuffer.from_dict(data)
        replayed = replay.draw(self.learner, fresh)
        metrics = self.learn(data) if replayed is None else self.learn(data, replayed=replayed)
        replay.add(fresh)
        return metrics

    # ------------------------------------------------------------------ keeping

    def save_checkpoint(self, path: str | Path | None = None) -> Path:
        """Write everything needed to go on: weights, optimizer, normalisers, counters, random states, settings."""
        if path is None:
            if self.run_dir is None:
                raise ConfigError("There is nowhere to save: pass run_dir= to PPOTrainer or a path to save_checkpoint.")
            path = self.run_dir / "checkpoints" / f"step_{self.total_timesteps:012d}"
        state = self.state_dict()
        return save_state(Path(path), state, self.manifest()) if self.group.leads else Path(path)

    def manifest(self) -> dict[str, Any]:
        """Return what a checkpoint says beside the state: how the policy is built, and how far it has come."""
        return {"policy": described(self.policy, self.state.about())}

    def state_dict(self) -> dict[str, Any]:
        """Return all that the rest of the training depends on, running episodes included where they can tell."""
        return kept(self.learner, self._own_collector, self.companions) | self.state.state_dict()

    def load_checkpoint(self, path: str | Path, *, same_episodes: bool = True) -> None:
        """Go on from a checkpoint as if training had never stopped: see `load_state_dict`."""
        self.load_state_dict(load_state(Path(path))[0], same_episodes=same_episodes)

    def load_state_dict(self, state: Mapping[str, Any], *, same_episodes: bool = True) -> None:
        """Go on from where `state_dict` was taken, bit for bit on a CPU.

        Environments go on in the middle of their episodes, in this process or in workers. Where their state could not
        be kept, where their number is another, or without `same_episodes`, they begin new ones, from seeds that follow
        from the state; `restart_reason` tells. Other settings and another device are fine, another optimizer is not.
        """
        take_up(state, self.learner, self._own_collector, self.companions, same_episodes=same_episodes)
        self.state.load_state_dict(state)

    @property
    def restart_reason(self) -> str:
        """Why episodes could not be kept when the state was last kept or taken up; empty where they could."""
        return "" if self._own_collector is None else self._own_collector.restart_reason

    @property
    def _own_collector(self) -> RolloutCollector | None:
        return None if self.env is None else self._collector(self.env)
