"""The policy as it acts: from an observation to actions in one call."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from twostep.compiled import Code, Compiled, drawing_from
from twostep.policies.actor_critic import compilable
from twostep.tree import Tree, tree_map

COMPILED_AFTER = 50_000
"""Operations of torch after which acting becomes machine code."""


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
    """Samples from a policy; where its operations are known and small enough to matter, in machine code.

    Whatever draws random numbers draws from `generator`, and the process's own stream stays as it is.
    """

    def __init__(self, policy: Any, generator: torch.Generator) -> None:
        self.policy, self.generator = policy, generator
        self._compiled: Compiled | None = None
        if compilable(policy, generator.device):
            self._compiled = Compiled(
                policy, lambda given: _act(policy, given, generator), generator, after=COMPILED_AFTER
            )
        self._replay: Code | None = None

    def state_dict(self) -> dict[str, int]:
        """Return how far the way to machine code is gone."""
        return {} if self._compiled is None else self._compiled.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there."""
        if self._compiled is not None:
            self._compiled.load_state_dict(state)

    def begin(self) -> None:
        """Notice what became of the policy since the last rollout, in which nothing but numbers changes."""
        self._replay = None
        if self._compiled is not None:
            self._compiled.notice_changes()

    def __call__(self, obs: Tree, state: Tree, episode_starts: Tensor, conditions: dict[str, Tree]) -> Acted:
        """Act once on observations `[1, B, ...]`."""
        given = (obs, state, episode_starts, conditions)
        if self._replay is not None:
            return Acted(*self._replay(given))
        if self._compiled is None:
            with drawing_from(self.generator):  # networks of others draw from the process's own stream
                return Acted(*_act(self.policy, given, None))
        key = self.policy.fingerprint()
        self._replay = self._compiled.code(given, key)
        return Acted(*self._compiled(given, key))


def _act(policy: Any, given: Tree, generator: torch.Generator | None) -> Tree:
    obs, state, episode_starts, conditions = given
    output = policy(obs, state, episode_starts, **conditions)
    actions = output.distribution.sample() if generator is None else output.distribution.sample(generator)
    outward = policy.to_env(tree_map(_first, actions))
    return actions, outward, output.distribution.log_prob(actions), output.values, output.state


def _first(leaf: Tensor) -> Tensor:
    return leaf[0]
