"""A trained policy as the other side of an environment with many agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from twostep.checkpoint import generator_state, restore_generator
from twostep.policies.adapters import as_policy
from twostep.policies.playing import choose, device_of, to_numpy
from twostep.protocols import Policy, Step
from twostep.tree import Tree, tree_map
from twostep.vector.agents import AgentId
from twostep.vector.masks import MASK_KEY


@dataclass
class _Played:
    """An agent that the opponent plays."""

    obs: Tree
    mask: Tree
    memory: Tree = None
    """None where its episode has just begun."""


class PolicyOpponent:
    """Plays agents by what each of them observes, with a network that is only used.

        make_env(simple_tag, 8, agent_ids="adversary_*", opponent=lambda: PolicyOpponent(evader))

    What it observes and does may be of other spaces than what the learners do. Every agent that it plays has memory of
    its own, which a new episode begins without. The network is not copied: give it a copy of one that still learns. It
    acts for one agent at a time; where the other side has the same spaces, `SelfPlay` is faster.

    Args:
        network: An `ActorCritic`, or any network that `as_policy` takes.
        sampling_seed: Draw actions from the distribution, repeatably; None takes its mode.
    """

    def __init__(self, network: Any, sampling_seed: int | None = None) -> None:
        self._network = network
        self._device = device_of(network)
        self._generator = None
        if sampling_seed is not None:
            self._generator = torch.Generator(self._device).manual_seed(sampling_seed)
        self._played: dict[AgentId, _Played] = {}

    def reset(self, env: Any) -> None:
        """Begin an episode."""
        self._played = {}

    def see(self, observations: Mapping[AgentId, Tree], infos: Mapping[AgentId, Mapping[str, Any]]) -> None:
        """Take in what the environment told each agent; one that it tells nothing has left, and forgets."""
        before, self._played = self._played, {}
        for agent, obs in observations.items():
            mask = infos.get(agent, {}).get(MASK_KEY)
            self._played[agent] = _Played(obs, mask, before[agent].memory if agent in before else None)

    @torch.inference_mode()
    def act(self, env: Any, agent_id: AgentId) -> Any:
        """Return the action of one agent."""
        policy: Policy = as_policy(self._network, env.action_space(agent_id))
        agent = self._played[agent_id]
        step = Step(_row(agent.obs), np.array([agent.memory is None]))
        if agent.mask is not None:
            step.action_masks = tree_map(lambda leaf: leaf.astype(np.bool_), _row(agent.mask))
        memory = policy.initial_state(1) if agent.memory is None else agent.memory
        actions, agent.memory = choose(policy, step, memory, self._generator, self._device)
        return tree_map(lambda leaf: to_numpy(leaf)[0], actions)

    def state_dict(self) -> dict[str, Any]:
        """Return what it saw last, what it remembers, and where its randomness stands."""
        played = [(agent, one.obs, one.mask, one.memory) for agent, one in self._played.items()]
        return {"played": played, "generator": None if self._generator is None else generator_state(self._generator)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken."""
        self._played = {agent: _Played(obs, mask, memory) for agent, obs, mask, memory in state["played"]}
        if self._generator is not None:
            restore_generator(self._generator, state["generator"])


def _row(tree: Tree) -> Tree:
    return tree_map(lambda leaf: np.asarray(leaf)[None], tree)
