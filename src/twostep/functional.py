"""The loop as functions: every part is a value, every arrow of the data flow an assignment, and each can be replaced.

The same algorithm as `PPOTrainer.train`, with the same weights from the same seed.

>>> state = functional_training_loop(config, ppo_config, policy, vecenv=vecenv, step_fn=my_step)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch

from twostep.checkpoint import TrainingCheckpointer
from twostep.collect.collector import RolloutCollector
from twostep.config import TrainerConfig, TrainingConfig
from twostep.config.environments import make_configured
from twostep.curriculum import make_curriculum
from twostep.environments import adapted
from twostep.errors import ConfigError, EnvError
from twostep.every import Every
from twostep.group import present_group
from twostep.learn.custom import CustomLoss
from twostep.learn.ppo import PPOOptimizer
from twostep.learn.settings import PPOConfig
from twostep.policies.adapters import as_policy
from twostep.protocols import Curriculum, Sink, Stateful
from twostep.resumption import kept, take_up
from twostep.rollout import RolloutBuffer
from twostep.runtime import chosen_device, keep_freed_memory
from twostep.seeds import process_seed, training_seeds
from twostep.stats import StatsLogger
from twostep.store import PolicyStore, described
from twostep.training_state import TrainingState, timings


class Evaluator(Protocol):
    """Whatever can say how good a policy is."""

    def evaluate(self, policy: Any) -> Mapping[str, float]:
        """Return what was measured, by names without a group."""
        ...


@dataclass(frozen=True)
class TrainingComponents(Mapping[str, Any]):
    """The parts of a training loop, as attributes and by name."""

    collector: RolloutCollector
    experience: RolloutBuffer
    """What the collector fills and the optimizer reads."""
    ppo: PPOOptimizer
    optimizer: torch.optim.Optimizer
    stats_logger: StatsLogger
    evaluator: Evaluator | None = None
    policy_store: PolicyStore | None = None
    curriculum: Curriculum | None = None
    checkpointer: TrainingCheckpointer | None = None

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(f"{name!r} is no component; there are {', '.join(self)}.")
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def __iter__(self) -> Iterator[str]:
        return (field.name for field in fields(self))

    def __len__(self) -> int:
        return len(fields(self))


StepFunction = Callable[
    [TrainingState, TrainingComponents, TrainerConfig, RolloutBuffer, Sequence[CustomLoss]], dict[str, float]
]
"""`fn(state, components, config, experience, custom_losses)` -> metrics; counts what it did in `state`."""


def functional_training_loop(
    config: TrainerConfig | TrainingConfig,
    ppo_config: PPOConfig | None = None,
    policy: Any = None,
    curriculum: Curriculum | None = None,
    policy_store: PolicyStore | None = None,
    *,
    vecenv: Any = None,
    step_fn: StepFunction | None = None,
    custom_losses: Sequence[CustomLoss] = (),
    state: TrainingState | None = None,
    **parts: Any,
) -> TrainingState:
    """Train until `total_timesteps` are collected, `solved_at` is reached or `state.should_stop` is set.

    Args:
        config: How long to train and what to do on the way; a whole `TrainingConfig` also says seed and device, and
            stands in for `ppo_config`, `curriculum` and `vecenv`.
        ppo_config: How experience is gathered and learned from.
        policy: Whatever `PPOTrainer` takes.
        curriculum: Whose tasks the episodes play, and who is told how they went.
        policy_store: Keeps the policy at every `checkpoint_every` steps and at the end; a `checkpointer=` keeps then
            all that the rest of the training depends on, and where it has a checkpoint already, training goes on there.
        vecenv: Whatever `PPOTrainer` takes; it stays open. Without it the environment is made here, and closed.
        step_fn: One collection and one update; `default_training_step` unless another is given.
        custom_losses: Handed on to `step_fn`.
        state: Where to go on from.
        **parts: What else `create_training_components` takes: `sinks`, `evaluator`, `checkpointer`,
            `seed`, `device`.
    """
    state = state or TrainingState()
    keep_freed_memory()
    with _environment(config, vecenv) as env:
        components = create_training_components(
            config, ppo_config, policy, env, None, policy_store, curriculum=curriculum, **parts
        )
        state.group = components.ppo.group
        _go_on(state, components)
        _require_supported(config, components)
        with components.stats_logger:
            _loop(state, components, _trainer_config(config), step_fn or default_training_step, custom_losses)
    return state


def _loop(
    state: TrainingState,
    components: TrainingComponents,
    config: TrainerConfig,
    step_fn: StepFunction,
    custom_losses: Sequence[CustomLoss],
) -> None:
    experience = components.experience
    evaluating, saving = (Every(steps, state.agent_steps) for steps in (config.eval_every, config.checkpoint_every))
    while not _finished(state, config):
        before = (state.agent_steps, state.epoch)
        metrics = step_fn(state, components, config, experience, custom_losses)
        _require_progress(state, before, step_fn)
        state.should_stop = state.group.any(state.should_stop)
        if evaluating.due(state.agent_steps) and state.group.leads:
            metrics = metrics | _evaluated(components)
        if state.epoch % config.log_interval == 0 or _finished(state, config):
            components.stats_logger.log(metrics, state.agent_steps)
        if saving.due(state.agent_steps) or _finished(state, config):
            _keep(state, components)


def default_training_step(
    state: TrainingState,
    components: TrainingComponents,
    config: TrainerConfig | TrainingConfig,
    experience: RolloutBuffer,
    custom_losses: Sequence[CustomLoss] = (),
) -> dict[str, float]:
    """Collect once into `experience`, learn once from it, count both in `state`, and return what was measured."""
    collector, ppo, curriculum = components.collector, components.ppo, components.curriculum
    total = _trainer_config(config).total_timesteps

    started = time.perf_counter()
    ppo.set_progress(state.agent_steps / total)
    if curriculum is not None:
        curriculum.set_progress(state.agent_steps / total)
    collector.on_nonfinite = ppo.config.on_nonfinite
    collector.collect()
    steps = state.count(experience, collector.statistics)

    collected = time.perf_counter()
    losses = ppo.update(experience, custom_losses)
    state.epoch += not math.isnan(losses["loss"])
    learned = time.perf_counter()
    ppo.set_progress(state.agent_steps / total)

    taught = {} if curriculum is None else curriculum.metrics()
    return losses | taught | state.metrics() | timings(steps, started, collected, learned)


def create_training_components(
    config: TrainerConfig | TrainingConfig,
    ppo_config: PPOConfig | None,
    policy: Any,
    vecenv: Any,
    experience: RolloutBuffer | None = None,
    policy_store: PolicyStore | None = None,
    *,
    curriculum: Curriculum | None = None,
    checkpointer: TrainingCheckpointer | None = None,
    evaluator: Evaluator | None = None,
    sinks: Iterable[Sink] = (),
    device: torch.device | str | None = None,
    seed: int | None = None,
) -> TrainingComponents:
    """Make the parts of a training loop.

    Without `experience` a rollout of `ppo_config.rollout_steps` is made, shaped by policy and environment; a whole
    `TrainingConfig` says what `ppo_config`, `curriculum`, `device` and `seed` leave out. Of several
    processes that learn together each makes its own parts; the one that leads logs, evaluates and saves.
    """
    whole = config if isinstance(config, TrainingConfig) else TrainingConfig()
    settings = ppo_config or whole.ppo
    seed = seed if seed is not None or whole is not config else whole.seed
    group = present_group()
    seed = None if seed is None else process_seed(seed, group.rank)
    seeds = training_seeds(seed)
    curriculum = curriculum or make_curriculum(whole.curriculum, seed)
    place = chosen_device(device or whole.device)
    vecenv = adapted(vecenv)
    policy = as_policy(policy, vecenv.action_space).to(place)
    collector = RolloutCollector(
        vecenv,
        policy,
        experience,
        place,
        num_steps=settings.rollout_steps,
        bptt_length=settings.bptt_length,
        seed=seeds.actions,
        env_seed=seeds.env,
        curriculum=curriculum,
        task_score=whole.curriculum.score,
        group=group,
    )
    if experience is None:
        experience = collector.experience = collector.make_experience(settings.rollout_steps)
    ppo = PPOOptimizer(policy, None, place, settings, seed=seeds.order, group=group)
    return TrainingComponents(
        collector=collector,
        experience=experience,
        ppo=ppo,
        optimizer=ppo.optimizer,
        stats_logger=StatsLogger(sinks if group.leads else ()),
        evaluator=evaluator,
        policy_store=policy_store,
        curriculum=curriculum,
        checkpointer=checkpointer,
    )


@contextmanager
def _environment(config: TrainerConfig | TrainingConfig, vecenv: Any) -> Generator[Any]:
    """Lend the caller's environment, or one that the settings describe."""
    if vecenv is not None:
        yield vecenv
        return
    if not isinstance(config, TrainingConfig) or not config.env.id:
        raise EnvError(
            "There is no environment to collect from. Pass vecenv=, or a TrainingConfig with env.id as the config."
        )
    env = make_configured(config)
    try:
        yield env
    finally:
        env.close()


def _trainer_config(config: TrainerConfig | TrainingConfig) -> TrainerConfig:
    return config.trainer if isinstance(config, TrainingConfig) else config


def _finished(state: TrainingState, config: TrainerConfig) -> bool:
    return state.should_stop or state.agent_steps >= config.total_timesteps or state.reached(config.solved_at)


def _require_supported(config: TrainerConfig | TrainingConfig, components: TrainingComponents) -> None:
    """Refuse what is asked for but would not be done here, before anything is trained."""
    if _trainer_config(config).eval_every and components.evaluator is None:
        raise ConfigError("eval_every asks for evaluations, but nobody does them: pass evaluator=, or eval_every=0.")
    if isinstance(config, TrainingConfig) and (config.replay.ratio or config.self_play.snapshot_every):
        raise ConfigError(
            "replay.ratio and self_play.snapshot_every are carried out by PPOTrainer and 'twostep train'. Leave them "
            "at 0 here; a step_fn of your own can learn from the past: ppo.update(experience, replayed=...)."
        )


def _evaluated(components: TrainingComponents) -> dict[str, float]:
    assert components.evaluator is not None
    return {f"eval/{name}": value for name, value in components.evaluator.evaluate(components.ppo.policy).items()}


def _keep(state: TrainingState, components: TrainingComponents) -> None:
    policy = components.ppo.policy
    about = state.about()
    if components.policy_store is not None and state.group.leads:
        components.policy_store.save(f"step_{state.agent_steps:012d}", policy, about)
    if components.checkpointer is not None:
        whole = kept(components.ppo, components.collector, _companions(components)) | state.state_dict()
        manifest = {"policy": described(policy, about)}
        if state.group.leads:
            components.checkpointer.try_save(state.agent_steps, whole, manifest, score=about["score"])


def _go_on(state: TrainingState, components: TrainingComponents) -> None:
    """Take up the newest checkpoint, if there is one."""
    if components.checkpointer is not None and components.checkpointer.steps():
        loaded = components.checkpointer.load().state
        take_up(loaded, components.ppo, components.collector, _companions(components))
        state.load_state_dict(loaded)


def _companions(components: TrainingComponents) -> dict[str, Stateful]:
    return {} if components.curriculum is None else {"curriculum": components.curriculum}


def _require_progress(state: TrainingState, before: tuple[int, int], step_fn: StepFunction) -> None:
    if (state.agent_steps, state.epoch) == before:
        name = getattr(step_fn, "__name__", "step_fn")
        raise ConfigError(
            f"{name} left state.agent_steps={before[0]} and state.epoch={before[1]} as they were, so training would "
            "never end. Let it call state.count(experience) after collecting and add 1 to state.epoch after learning."
        )
