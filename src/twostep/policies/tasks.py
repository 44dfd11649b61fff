"""A policy that is told by trajectories what task it is at: they become an embedding, learned with all the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from twostep.errors import PolicyError
from twostep.policies.actor_critic import ActorCritic
from twostep.policies.settings import AgentConfig
from twostep.protocols import PolicyOutput
from twostep.tree import Tree

OUTCOMES = 2
"""Numbers of a transition beside observation and action: the reward, and whether the episode ended."""


def transition_size(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> int:
    """Return how many numbers tell of one transition."""
    return spaces.flatdim(observation_space) + spaces.flatdim(action_space) + OUTCOMES


class TaskEncoder(nn.Module):
    """Trajectories of a task `[N, n, t, F]` to an embedding `[N, size]` between -1 and 1.

    Each trajectory is read in its order, and the mean over all is taken: which comes first means nothing.
    """

    def __init__(self, transition_size: int, size: int = 16, hidden_size: int = 32) -> None:
        super().__init__()
        self.reader = nn.GRU(transition_size, hidden_size, batch_first=True)
        self.summary = nn.Linear(hidden_size, size)

    def forward(self, trajectories: Tensor) -> Tensor:
        """Read every distinct set of trajectories once, however many rows and steps share it."""
        distinct, which = torch.unique(trajectories.flatten(1), dim=0, return_inverse=True)
        sets = distinct.view(-1, *trajectories.shape[1:])
        read, _ = self.reader(sets.flatten(0, 1))  # [sets * n, t, hidden]
        means = read.mean(1).unflatten(0, sets.shape[:2]).mean(1)
        return self.summary(means).tanh()[which]


class TaskActorCritic(ActorCritic):
    """An actor and a critic whose context is the embedding of `task_trajectories`.

    The trajectories come with every call, as `PPOTrainer.get_task_trajectories` makes them, and are kept with the data.
    Learning encodes them anew, so the gradient of whatever is learned reaches the encoder too.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, config: AgentConfig | None = None, embedding_size: int = 16
    ) -> None:
        super().__init__(observation_space, action_space, replace(config or AgentConfig(), context_size=embedding_size))
        self.transition_size = transition_size(observation_space, action_space)
        self.task_encoder = TaskEncoder(self.transition_size, embedding_size)

    def forward(
        self,
        obs: Tree,
        state: Tree,
        episode_starts: Tensor,
        *,
        action_masks: Tree = None,
        context: Tensor | None = None,
        task_trajectories: Tensor | None = None,
    ) -> PolicyOutput:
        """See `protocols.Policy`; `task_trajectories` are `[T, B, n, t, F]`."""
        if task_trajectories is None or context is not None:
            raise PolicyError(
                "This policy is conditioned on task_trajectories= and on nothing else. Pass them when collecting: "
                "trainer.collect_rollouts(n, task_trajectories=trainer.get_task_trajectories(task))."
            )
        if task_trajectories.dim() != 5 or task_trajectories.shape[-1] != self.transition_size:
            raise PolicyError(
                f"task_trajectories have shape {tuple(task_trajectories.shape[2:])} per row, but must be trajectories, "
                f"steps, and {self.transition_size} numbers per transition, as get_task_trajectories makes them."
            )
        embedding = self.task_encoder(task_trajectories.flatten(0, 1)).unflatten(0, episode_starts.shape)
        return super().forward(obs, state, episode_starts, action_masks=action_masks, context=embedding)
