"""The loop of imitation: collect on the student's ways, ask the teacher, learn whole sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from twostep.config import TrainingConfig
from twostep.distill.lessons import Lesson, Lessons
from twostep.distill.mixture import Mixture
from twostep.errors import ConfigError
from twostep.learn.replay import Replayed
from twostep.learn.settings import ImitationConfig, PPOConfig
from twostep.policies.actor_critic import ActorCritic
from twostep.policies.encoders import seen_leaves
from twostep.rollout import RolloutBuffer
from twostep.runtime import suitable_threads
from twostep.trainer import PPOTrainer
from twostep.tree import Tree, tree_items, tree_leaves, tree_map

HEEDED = (
    *("lr", "lr_schedule", "lr_min_ratio", "optimizer", "weight_decay", "adam_eps", "max_grad_norm", "update_epochs"),
    *("rollout_steps", "num_minibatches", "bptt_length", "normalize_obs", "on_nonfinite", "precision"),
)
"""Settings of PPO that imitation goes by, too."""


class Distiller(PPOTrainer):
    """Lets a student act, asks the teacher what it would have done, and makes that likelier.

    Everything else is as in `PPOTrainer`: checkpoints, resuming in the middle of episodes, schedules, curricula.

    >>> student = make_policy(env, AgentConfig(memory="gru", observations=("proprioception", "depth", "commands")))
    >>> teacher = teacher_for(student, PolicyStore().policy("run://runs/teacher").policy(), "the teacher")
    >>> Distiller(student, teacher, env, lr=1e-3).train(1_000_000)

    Args:
        teacher: Sees what the environment shows beside what the student sees; see `teacher_for`.
        imitation: How much of the way is the teacher's own, and how much of the past is learned from.
        settings: What `PPOTrainer` takes; of `PPOConfig` those in `HEEDED`.
    """

    def __init__(
        self,
        student: ActorCritic,
        teacher: ActorCritic,
        env: Any,
        config: Any = None,
        *,
        imitation: ImitationConfig | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(student, env, PPOConfig() if config is None else config, **settings)
        _require_heeded(self.config)
        if self.group.size > 1:
            raise ConfigError("Imitation learns in one process: start it without torchrun. A GPU takes many rows.")
        self.imitation = imitation or ImitationConfig()
        self.teacher = teacher.to(self.device)
        self.acting = Mixture(self.policy, self.teacher)
        self.lessons = self.companions["lessons"] = Lessons(self.imitation.keep)

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any] | str | Path | TrainingConfig, env: Any, policy: Any, device: Any = None
    ) -> PPOTrainer:
        """Refuse: who teaches is a policy, which settings can only name.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "Distiller.from_config has no place for a teacher's policy: make Distiller(student, teacher, env, "
            "config.ppo, imitation=config.imitation), or take 'twostep train' with imitation.teacher."
        )

    def collect_rollouts(self, n_steps: int, **context: Any) -> dict[str, Any]:
        """Act for `n_steps` per row, as far as the mixture says by the teacher's own actions."""
        self.acting.teacher_share = self.teacher_share
        return super().collect_rollouts(n_steps, **context)

    @property
    def teacher_share(self) -> float:
        """How likely each action is the teacher's own."""
        if not self.imitation.mix_steps:
            return 0.0
        return max(0.0, 1.0 - self.total_timesteps / self.imitation.mix_steps)

    def learn(
        self,
        rollout_data: Mapping[str, Any] | RolloutBuffer,
        recompute: bool = False,
        replayed: Replayed | None = None,
    ) -> dict[str, float]:
        """Ask the teacher about a rollout, and learn from it and from the newest ones before it."""
        if recompute or replayed is not None:
            raise ConfigError("recompute and replayed are about rewards, which imitation does not look at: leave them.")
        rollout = rollout_data if isinstance(rollout_data, RolloutBuffer) else RolloutBuffer.from_dict(rollout_data)
        rollout = rollout.to(self.device)
        self.learner.normalize_observations(rollout)
        self.lessons.add(self.lesson(rollout))
        with suitable_threads(self.policy, self.device):
            metrics = self.lessons.learn(self.learner, self.policy)
        self.policy.version += 1
        self.state.epoch += 1
        rate = float(self.optimizer.param_groups[0]["lr"])
        return metrics | {"teacher_share": self.acting.teacher_share, "lr": rate}

    @torch.no_grad()
    def lesson(self, rollout: RolloutBuffer) -> Lesson:
        """Return a rollout with what the teacher would have done at every step, with its own memory of the way."""
        mine, theirs = self.acting.initial_state(rollout.num_rows)
        if tree_leaves(rollout.states):
            mine, theirs = tree_map(lambda leaf: leaf[0], rollout.states)
        conditions: dict[str, Any] = dict(rollout.context or {})
        if rollout.action_masks is not None:
            conditions["action_masks"] = rollout.action_masks
        asked = self.teacher(rollout.obs, theirs, rollout.episode_starts, **conditions)
        labels = asked.distribution.mode()
        return Lesson(self._seen(rollout.obs), labels, rollout.episode_starts, rollout.valid, mine, conditions)

    def _seen(self, obs: Tree) -> Tree:
        """Keep only what the student looks at: a large part may be the teacher's."""
        paths = seen_leaves(self.policy.observation_space, self.policy.config)
        return obs if "" in paths else _only(obs, set(paths))


def _only(tree: Tree, paths: set[str]) -> Tree:
    """Return the leaves of a tree that are named, each under the path that names it."""
    return {path: leaf for path, leaf in tree_items(tree) if path in paths}


def _require_heeded(config: PPOConfig) -> None:
    changed = [one.name for one in fields(config) if getattr(config, one.name) != one.default]
    if ignored := [name for name in changed if name not in HEEDED]:
        raise ConfigError(
            f"{ignored[0]}={getattr(config, ignored[0])!r} changes nothing where a teacher is imitated: leave it out. "
            f"These are heeded: {', '.join(HEEDED)}."
        )
    if config.lr_schedule == "adaptive_kl":
        raise ConfigError("lr_schedule='adaptive_kl' follows a policy's KL, which imitation does not measure: cosine?")
    if config.precision == "fp16":
        raise ConfigError("precision='fp16' needs a scale of the loss, which imitation has not: use bf16 or fp32.")
