"""A policy as a robot runs it: one step, the likeliest action in the environment's units, memory in and out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from twostep.errors import ExportError
from twostep.policies.actor_critic import ActorCritic
from twostep.policies.encoders import seen_leaves, space_tree
from twostep.tree import Tree, tree_filled, tree_items, tree_leaves, tree_map

OBSERVATION, ACTIONS, MASKS, CONTEXT, STARTS = "obs", "actions", "action_masks", "context", "episode_starts"
_MEMORIES = ("hidden", "cell")


@dataclass(frozen=True)
class Port:
    """One named tensor that goes in or comes out, `[batch, *shape]`."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    def example(self, batch: int) -> Tensor:
        """Return a tensor of this form, of zeros."""
        return torch.zeros(batch, *self.shape, dtype=self.dtype)

    def __str__(self) -> str:
        sides = ", ".join(["batch", *map(str, self.shape)])
        return f"{self.name:20} [{sides}] {str(self.dtype).removeprefix('torch.')}"


class Deployed(nn.Module):
    """The actor of a policy, from named inputs to named outputs.

    The critic, and observations that only the critic sees, are left out. Observations enter raw; actions leave as the
    environment takes them. Where there is memory, `episode_starts` says which rows forget theirs before this step.

    Args:
        masks: Whether there are inputs that say which choices are allowed.
    """

    def __init__(self, policy: ActorCritic, *, masks: bool = False) -> None:
        super().__init__()
        self.actor = _actor_of(policy)
        self._obs = _named(space_tree(policy.observation_space), OBSERVATION)
        self._actions = _prefixed(space_tree(policy.action_space), ACTIONS)
        self._memory = tree_filled(self.actor.initial_state(1), _MEMORIES)
        self.masks = _mask_names(policy.action_space) if masks else None
        self._context = (CONTEXT,) if policy.config.context_size else ()
        self._unseen = self._unseen_ports(policy)
        self.inputs = (*self._obs_ports(policy.observation_space), *self._condition_ports(policy), *self._kept("in"))
        if self._memory != ():
            self.inputs += (Port(STARTS, (), torch.bool),)
        self.outputs = (*self._action_ports(), *self._kept("out"))
        names = [port.name for port in self.inputs]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ExportError(
                f"{sorted(twice)[0]!r} would name two inputs of the file: call this group of observations otherwise."
            )

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Map the inputs to the outputs, each in its order."""
        named = dict(zip((port.name for port in self.inputs), given, strict=True))
        rows = given[0].shape[0]
        for port in self._unseen:
            named[port.name] = given[0].new_zeros((rows, *port.shape), dtype=port.dtype)
        obs = tree_map(lambda name: named[name][None], self._obs)
        state = tree_map(lambda name: named[f"{name}_in"].unsqueeze(2), self._memory)  # [B, layers, 1, H]
        starts = named.get(STARTS, torch.zeros(rows, dtype=torch.bool))[None]
        conditions: dict[str, Any] = {name: named[name][None] for name in self._context}
        if self.masks is not None:
            conditions["action_masks"] = tree_map(lambda name: named[name][None], self.masks)
        output = self.actor(obs, state, starts, **conditions)
        actions = self.actor.to_env(output.distribution.mode())
        return (
            *(leaf[0] for leaf in tree_leaves(actions)),
            *(leaf.squeeze(2) for leaf in tree_leaves(output.state)),
        )

    def flat(self, obs: Tree, state: Tree, starts: Tensor, conditions: dict[str, Any]) -> dict[str, Tensor]:
        """Lay out what a policy is called with, `[B, ...]`, as the named inputs; memory is that of `outputs`."""
        named = {str(name): leaf for name, leaf in zip(tree_leaves(self._obs), tree_leaves(obs), strict=True)}
        named |= {f"{name}_in": leaf for name, leaf in zip(tree_leaves(self._memory), tree_leaves(state), strict=True)}
        masks = conditions.get("action_masks")
        named |= dict(zip(tree_leaves(self.masks), tree_leaves(masks), strict=True))
        named |= {name: conditions[name] for name in self._context}
        named[STARTS] = starts
        return {port.name: named[port.name] for port in self.inputs}

    def _obs_ports(self, space: spaces.Space[Any]) -> list[Port]:
        hidden = {port.name for port in self._unseen}
        pairs = zip(tree_leaves(self._obs), tree_leaves(space_tree(space)), strict=True)
        return [_port(name, leaf) for name, leaf in pairs if name not in hidden]

    def _unseen_ports(self, policy: ActorCritic) -> list[Port]:
        leaves = dict(tree_items(space_tree(policy.observation_space)))
        acting = set(seen_leaves(policy.observation_space, policy.config)) - set(policy.config.critic_only)
        return [_port(name, leaf) for name, leaf in leaves.items() if name not in {*acting, ""}]

    def _condition_ports(self, policy: ActorCritic) -> list[Port]:
        given = [Port(name, (policy.config.context_size,), torch.float32) for name in self._context]
        if self.masks is None:
            return given
        choices = (leaf for leaf in tree_leaves(space_tree(policy.action_space)) if not isinstance(leaf, spaces.Box))
        pairs = zip(tree_leaves(self.masks), choices, strict=True)
        return given + [Port(name, (spaces.flatdim(space),), torch.bool) for name, space in pairs]

    def _action_ports(self) -> list[Port]:
        actions = self.actor.to_env(tree_map(lambda leaf: leaf[None], self.actor.action_head.example()))
        pairs = zip(tree_leaves(self._actions), tree_leaves(actions), strict=True)
        return [Port(name, tuple(leaf.shape[1:]), leaf.dtype) for name, leaf in pairs]

    def _kept(self, way: str) -> list[Port]:
        pairs = zip(tree_leaves(self._memory), tree_leaves(self.actor.initial_state(1)), strict=True)
        return [Port(f"{name}_{way}", tuple(leaf.squeeze(2).shape[1:]), leaf.dtype) for name, leaf in pairs]


def _actor_of(policy: ActorCritic) -> ActorCritic:
    """Build a policy of one tower out of the actor's; its critic is of no use."""
    config = replace(policy.config, shared=True, critic_only=())
    actor = ActorCritic(policy.observation_space, policy.action_space, config)
    kept = policy.state_dict()
    own = actor.state_dict()
    actor.load_state_dict({name: kept[name][: len(part)] if part.dim() else kept[name] for name, part in own.items()})
    actor.encoder.critic_only = policy.encoder.critic_only
    return actor.eval().requires_grad_(False)


def _named(tree: Tree, alone: str) -> Tree:
    """Return the tree with each leaf's path as its name; that of a single leaf is given."""
    return tree_filled(tree, [path or alone for path, _ in tree_items(tree)])


def _prefixed(tree: Tree, prefix: str) -> Tree:
    return tree_filled(tree, [f"{prefix}/{path}".rstrip("/") for path, _ in tree_items(tree)])


def _mask_names(space: spaces.Space[Any]) -> Tree:
    """Return a tree of names with None for boxes, which have no choices."""
    tree = space_tree(space)
    if all(isinstance(leaf, spaces.Box) for leaf in tree_leaves(tree)):
        raise ExportError(f"There are no choices to mask in {space}. Leave the masks out.")
    return tree_map(lambda leaf, name: None if isinstance(leaf, spaces.Box) else name, tree, _prefixed(tree, MASKS))


def _port(name: str, space: spaces.Space[Any]) -> Port:
    dtype = torch.empty(0, dtype=getattr(torch, str(space.dtype))).dtype
    return Port(name, tuple(space.shape or ()), torch.float32 if dtype.is_floating_point else dtype)
