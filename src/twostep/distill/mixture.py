"""Who acts while a student learns: the student, and sometimes the teacher; both remember what they saw."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from twostep.errors import ConfigError, PolicyError
from twostep.policies.actor_critic import ActorCritic
from twostep.policies.encoders import seen_leaves, space_tree
from twostep.protocols import Distribution, PolicyOutput
from twostep.tree import Tree, tree_items, tree_map


class Mixture(nn.Module):
    """A policy that acts as the teacher with probability `teacher_share`, else as the student.

    Each row draws anew at each step. Memory is a pair, the student's and the teacher's, and both forget at the starts
    of episodes: the teacher knows what it would know had it walked the student's way itself.
    """

    def __init__(self, student: ActorCritic, teacher: ActorCritic) -> None:
        super().__init__()
        self.student, self.teacher = student, teacher
        self.teacher_share = 0.0

    def forward(self, obs: Tree, state: Tree, episode_starts: Tensor, **conditions: Any) -> PolicyOutput:
        """See `protocols.Policy`; values are the student's."""
        mine, theirs = state
        student = self.student(obs, mine, episode_starts, **conditions)
        teacher = self.teacher(obs, theirs, episode_starts, **conditions)
        distribution = _Mixed(student.distribution, teacher.distribution, self.teacher_share)
        return PolicyOutput(distribution, student.values, (student.state, teacher.state))

    def initial_state(self, batch: int) -> Tree:
        """Return the memory of rows that have seen nothing."""
        return self.student.initial_state(batch), self.teacher.initial_state(batch)

    def to_env(self, actions: Tree) -> Tree:
        """Turn sampled actions, whoever's they are, into what the environment takes."""
        return self.student.to_env(actions)

    @property
    def version(self) -> int:
        """That of the student, who alone changes."""
        return self.student.version


class _Mixed:
    """Samples of two, densities of the first."""

    __slots__ = ("share", "student", "teacher")

    def __init__(self, student: Distribution, teacher: Distribution, share: float) -> None:
        self.student, self.teacher, self.share = student, teacher, share

    def sample(self, generator: torch.Generator | None = None) -> Tree:
        """Draw the student's action, or take the teacher's."""
        own = self.student.sample(generator)
        if not self.share:
            return own
        chances = torch.empty_like(self.student.log_prob(own)).uniform_(generator=generator)  # [T, B]
        taken = chances < self.share

        def chosen(mine: Tensor, theirs: Tensor) -> Tensor:
            return torch.where(taken.reshape(*taken.shape, *[1] * (mine.dim() - taken.dim())), theirs, mine)

        return tree_map(chosen, own, self.teacher.mode())

    def mode(self) -> Tree:
        """Return what the student would do."""
        return self.student.mode()

    def log_prob(self, actions: Tree) -> Tensor:
        """Return how likely the student finds them."""
        return self.student.log_prob(actions)

    def entropy(self) -> Tensor:
        """Return how undecided the student is."""
        return self.student.entropy()


def teacher_for(student: ActorCritic, saved: Any, name: str) -> ActorCritic:
    """Return a saved policy as one that is shown all the student's environment shows, and looks at its own part of it.

    Raises:
        PolicyError: It cannot be a teacher here; the message names it by `name`.
    """
    if type(saved) is not ActorCritic:
        raise PolicyError(f"{name} is of the class {type(saved).__name__}, but a teacher must be an ActorCritic.")
    if saved.action_space != student.action_space:
        raise PolicyError(
            f"{name} acts in {saved.action_space}, but actions here are in {student.action_space}. Let the environment "
            "take what the teacher's took."
        )
    own, theirs = (_family(policy.config.action_dist) for policy in (student, saved))
    if own != theirs:
        raise ConfigError(f"action_dist={own!r} of the student must be that of the teacher: {theirs!r}.")
    seen = seen_leaves(saved.observation_space, saved.config)
    shown = dict(tree_items(space_tree(student.observation_space)))
    for path, space in seen.items():
        if path not in shown or shown[path].shape != space.shape:
            there = "is of another shape" if path in shown else "is missing"
            raise PolicyError(
                f"{name} looks at {path or 'one unnamed group'!r}, which {there} in what the environment shows: "
                f"{sorted(shown)}. Switch it on there, beside what the student sees."
            )
    config = saved.config if "" in seen else replace(saved.config, observations=tuple(seen))
    teacher = ActorCritic(student.observation_space, student.action_space, config)
    teacher.load_state_dict(saved.state_dict())
    return teacher.eval().requires_grad_(False)


def _family(action_dist: str) -> str:
    return "gaussian" if action_dist == "auto" else action_dist
