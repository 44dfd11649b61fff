"""What is learned from: rollouts with what the teacher would have done at every step, gone through in their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from twostep.errors import NumericsError
from twostep.learn.guard import means_of_steps
from twostep.learn.ppo import PPOOptimizer
from twostep.policies.actor_critic import ActorCritic
from twostep.tree import Tree, tree_leaves, tree_map


@dataclass
class Lesson:
    """A rollout as a student learns from it; leaves are `[T, B, ...]`, `state` is `[B, ...]`."""

    obs: Tree
    """What the environment showed of what the student looks at."""
    labels: Tree
    """What the teacher would have done, as sampled."""
    episode_starts: Tensor
    valid: Tensor
    state: Tree
    """The student's memory before the first step, as it was then."""
    conditions: dict[str, Any]

    def rows(self, chosen: Tensor) -> Lesson:
        """Return the part of some rows."""
        over_time = (self.obs, self.labels, self.episode_starts, self.valid)
        obs, labels, starts, valid = tree_map(lambda leaf: leaf[:, chosen], over_time)
        conditions = tree_map(lambda leaf: leaf[:, chosen], self.conditions)
        return Lesson(obs, labels, starts, valid, tree_map(lambda leaf: leaf[chosen], self.state), conditions)

    def stretches(self, length: int) -> Iterator[tuple[Tree, Tree, Tensor, Tensor, dict[str, Any]]]:
        """Yield observations, labels, starts, validity and conditions, so many steps at a time, in order."""
        whole = (self.obs, self.labels, self.episode_starts, self.valid, self.conditions)
        for start in range(0, len(self.valid), length):
            yield tree_map(lambda leaf, at=start: leaf[at : at + length], whole)


class Lessons:
    """The newest lessons, and how a student goes through them. Stateful."""

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self.held: list[Lesson] = []

    def add(self, lesson: Lesson) -> None:
        """Take in the newest, and forget the oldest where there are more than are kept."""
        self.held = [*self.held, lesson][-self.keep :]

    def learn(self, learner: PPOOptimizer, student: ActorCritic) -> dict[str, float]:
        """Go through all lessons `update_epochs` times, and return the means of what was measured.

        Where `on_nonfinite` is not stop, a step whose gradient is no number is left out.

        Rows go together in random groups, stretches of `bptt_length` steps one after the other: gradients stay within
        a stretch, memory goes on into the next one as the student of now would have it.
        """
        measured: list[dict[str, Tensor]] = []
        for _ in range(learner.config.update_epochs):
            for at in torch.randperm(len(self.held), generator=learner.generator).tolist():
                lesson = self.held[at]
                order = torch.randperm(lesson.valid.shape[1], generator=learner.generator)
                for chosen in order.tensor_split(min(learner.config.num_minibatches, len(order))):
                    measured += _follow(lesson.rows(chosen.to(lesson.valid.device)), learner, student)
        if not measured:
            return {}
        return means_of_steps(measured, stop=False)

    def state_dict(self) -> dict[str, Any]:
        """Return all lessons."""
        return {"held": [vars(lesson) for lesson in self.held]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.held = [Lesson(**kept) for kept in state["held"]]


def _follow(lesson: Lesson, learner: PPOOptimizer, student: ActorCritic) -> Iterator[dict[str, Tensor]]:
    """Go through one lesson in its order, with a step of the optimizer after every stretch."""
    state = lesson.state
    for obs, labels, starts, valid, conditions in lesson.stretches(learner.config.bptt_length):
        output = student(obs, state, starts, **conditions)
        state = tree_map(torch.Tensor.detach, output.state)
        count = valid.sum()
        if not bool(count):
            continue
        surprise = torch.where(valid, output.distribution.log_prob(labels).neg(), 0.0).sum() / count
        learner.optimizer.zero_grad(set_to_none=True)
        surprise.backward()
        norm = torch.nn.utils.clip_grad_norm_(learner.parameters, learner.config.max_grad_norm)
        if bool(norm.isfinite()):
            learner.optimizer.step()
        elif learner.config.on_nonfinite == "stop":
            raise NumericsError(
                f"The gradient of imitation is {float(norm)}: what the teacher does, or what the student sees, is no "
                "number. Look at the environment's observations, or lower lr."
            )
        apart = _apart(student, output.distribution.mode(), labels, valid)
        yield {"loss": surprise.detach(), "imitation_error": apart, "grad_norm": norm}


@torch.no_grad()
def _apart(student: ActorCritic, own: Tree, labels: Tree, valid: Tensor) -> Tensor:
    """Return how far the student's likeliest actions are from the teacher's, as the environment takes them.

    That is the mean distance per number, and the part of choices that differ.
    """
    pairs = zip(tree_leaves(student.to_env(own)), tree_leaves(student.to_env(labels)), strict=True)
    parts: list[Tensor] = []
    for mine, theirs in pairs:
        apart = (mine - theirs).abs() if mine.is_floating_point() else (mine != theirs).float()
        parts.append(apart[valid].mean())
    return torch.stack(parts).mean()
