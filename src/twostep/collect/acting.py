"""The policy as it acts: from an observation to actions in one call."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from twostep.policies.actor_critic import ActorCritic
from twostep.recorded import ONE_AT_A_TIME, Recorded
from twostep.tree import Tree, tree_map


class Acted(NamedTuple):
    """What came of one step; leaves `[1, B, ...]`, except `outward` and `state`, which are `[B, ...]`."""

    actions: Tree
    """As sampled."""
    outward: Tree
    """As the environment takes them."""
    logprobs: Tensor
    values: Tensor
    state: Tree
    """Memory after the step."""


class Actor:
    """Samples from a policy; where its operations are known and small enough to matter, from a recording of it."""

    def __init__(self, policy: Any, device: torch.device) -> None:
        self.policy = policy
        self._recorded = None
        if isinstance(policy, ActorCritic) and device.type == "cpu" and not policy.convolutional:
            self._recorded = Recorded(policy, self._act)

    def __call__(self, obs: Tree, state: Tree, episode_starts: Tensor, conditions: dict[str, Tree]) -> Acted:
        """Act once on observations `[1, B, ...]`."""
        given = (obs, state, episode_starts, conditions)
        if self._recorded is None:
            return Acted(*self._act(given))
        return Acted(*self._recorded(given, self.policy.fingerprint()))

    def _act(self, given: Tree) -> Tree:
        obs, state, episode_starts, conditions = given
        output = self.policy(obs, state, episode_starts, **conditions)
        actions = output.distribution.sample()
        outward = self.policy.to_env(tree_map(_first, actions))
        return actions, outward, output.distribution.log_prob(actions), output.values, output.state


@contextmanager
def drawing_from(generator: torch.Generator) -> Generator[None, None, None]:
    """Let everything that draws random numbers on the generator's device draw from it, and nothing else change.

    The default stream belongs to the process: collectors in several threads take turns.
    """
    cpu = generator.device.type == "cpu"
    default = torch.default_generator if cpu else torch.cuda.default_generators[generator.device.index or 0]
    with ONE_AT_A_TIME:
        before = default.get_state()
        default.set_state(generator.get_state())
        try:
            yield
        finally:
            generator.set_state(default.get_state())
            default.set_state(before)


def _first(leaf: Tensor) -> Tensor:
    return leaf[0]
