"""The default policy: encoder -> memory -> action head and value head, one function for acting and learning."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from twostep.errors import ConfigError, PolicyError
from twostep.policies.encoders import Encoder, is_image, seen_leaves, space_tree
from twostep.policies.heads import head_for
from twostep.policies.memory import MEMORIES
from twostep.policies.settings import AgentConfig
from twostep.policies.towers import TowerMlp
from twostep.policies.versions import first_version
from twostep.protocols import PolicyOutput
from twostep.tree import Tree, tree_leaves, tree_map

PRECISIONS: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class ActorCritic(nn.Module):
    """An actor and a critic over any observation and action space, with or without memory.

    Actor and critic have trunks of their own unless `config.shared`: with memory, a shared trunk lets the value
    gradient swamp the features that acting needs. Values leave in raw reward units: the head learns them divided by
    `value_scale`, which moves only between updates.
    """

    value_scale: Tensor

    def __init__(self, observation_space: Any, action_space: Any, config: AgentConfig | None = None) -> None:
        super().__init__()
        config = config or AgentConfig()
        _require_used(config, observation_space, action_space)
        self.observation_space, self.action_space, self.config = observation_space, action_space, config
        self.towers = 1 if is_shared(config, observation_space) else 2
        self.encoder = Encoder(observation_space, self.towers, config)
        width = self.encoder.out_features
        self.memory = None
        if config.memory != "none":
            self.memory = MEMORIES[config.memory](self.towers, width, config.memory_size, config.memory_layers)
            width = config.memory_size
        self.action_trunk = TowerMlp(1, width, config.action_hidden, config.activation)
        self.action_head = head_for(
            action_space,
            self.action_trunk.out_features,
            action_dist=config.action_dist,
            std=config.std,
            init_std=config.init_std,
        )
        self.value_trunk = TowerMlp(1, width, config.value_hidden, config.activation)
        self.value_head = nn.Linear(self.value_trunk.out_features, 1)
        nn.init.orthogonal_(self.value_head.weight, 1.0)
        nn.init.zeros_(self.value_head.bias)
        self.register_buffer("value_scale", torch.ones(()))
        self.autocast_dtype: torch.dtype | None = None
        self.version = first_version()

    def forward(
        self,
        obs: Tree,
        state: Tree,
        episode_starts: Tensor,
        *,
        action_masks: Tree = None,
        context: Tensor | None = None,
    ) -> PolicyOutput:
        """See `protocols.Policy`; `obs` leaves are `[T, B, ...]`, memory enters as `[B, ...]`."""
        shape = episode_starts.shape
        flat = tree_map(lambda leaf: leaf.flatten(0, 1), obs)
        with self._autocast(episode_starts):
            features = self.encoder(flat, None if context is None else context.flatten(0, 1))  # [K, T * B, F]
            if self.memory is not None:
                features, state = self._remember(features, state, episode_starts)
            towers = features.unbind(0)  # a slice's gradient would be filled up with zeros
            actor = self.action_trunk(towers[0][None])[0].view(*shape, -1)
            critic = self.value_trunk(towers[-1][None])[0]
        distribution = self.action_head(actor.float(), action_masks)
        values = self.value_head(critic.float()).view(shape) * self.value_scale
        return PolicyOutput(distribution, values, state)

    def _remember(self, features: Tensor, state: Tree, episode_starts: Tensor) -> tuple[Tensor, Tree]:
        assert self.memory is not None
        keep = (~episode_starts)[:, None, :, None].float()
        with _no_autocast(features):
            split = features.float().view(self.towers, *episode_starts.shape, -1)
            features, state = self.memory(split, state, keep)
        return features.flatten(1, 2), state

    def _autocast(self, like: Tensor) -> AbstractContextManager[Any]:
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(like.device.type, dtype=self.autocast_dtype)

    @property
    def convolutional(self) -> bool:
        """Whether some observations are pictures."""
        seen = seen_leaves(self.observation_space, self.config).values()
        return any(is_image(leaf, self.config.name) for leaf in seen)

    def fingerprint(self) -> tuple[Any, ...]:
        """Return what decides, besides tensors, which operations a call performs."""
        normalized = tuple(vector.normalized for vector in self.encoder.vectors().values())
        return (self.training, self.autocast_dtype, normalized)

    def initial_state(self, batch: int) -> Tree:
        """Return the memory of rows that have seen nothing; `()` without memory."""
        return () if self.memory is None else self.memory.initial_state(batch)

    def init_state(self, batch: int, device: torch.device | str | None = None) -> Tree:
        """Return `initial_state`, on a device of one's choice."""
        return tree_map(lambda leaf: leaf.to(device), self.initial_state(batch))

    def to_env(self, actions: Tree) -> Tree:
        """Turn sampled actions into what the environment takes."""
        return self.action_head.to_env(actions)

    def set_observation_statistics(self, statistics: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
        """Freeze new means and deviations, by leaf path, until the next call."""
        for path, vector in self.encoder.vectors().items():
            if path not in statistics:
                continue
            mean, std = (np.asarray(part).reshape(-1) for part in statistics[path])
            vector.mean.copy_(torch.as_tensor(mean))
            vector.inverse_std.copy_(torch.as_tensor(1.0 / std))
            vector.refresh()

    @torch.no_grad()
    def set_value_scale(self, scale: float) -> None:
        """Change the unit in which the critic learns; what it says in raw units stays the same."""
        factor = self.value_scale / scale
        self.value_head.weight.mul_(factor)
        self.value_head.bias.mul_(factor)
        self.value_scale.fill_(scale)


def _require_used(config: AgentConfig, observation_space: Any, action_space: Any) -> None:
    """Refuse settings that would be without effect in these spaces."""
    boxes = (isinstance(leaf, spaces.Box) for leaf in tree_leaves(space_tree(action_space)))
    if config.action_dist != "auto" and not any(boxes):
        raise ConfigError(
            f"action_dist={config.action_dist!r} is for continuous actions, but there are none in {action_space}. "
            "Leave it at 'auto'."
        )
    pictures = (is_image(leaf, config.name) for leaf in seen_leaves(observation_space, config).values())
    if config.name not in ("auto", "mlp") and not any(pictures):
        raise ConfigError(
            f"name={config.name!r} reads pictures, but there are none in {observation_space}. Leave it at 'auto'."
        )


def _no_autocast(like: Tensor) -> AbstractContextManager[Any]:
    if torch.is_autocast_enabled(like.device.type):
        return torch.autocast(like.device.type, enabled=False)
    return nullcontext()


def is_shared(config: AgentConfig, observation_space: Any) -> bool:
    """Decide whether actor and critic share a trunk: as configured, else only where all input is pictures."""
    if config.shared is not None:
        return config.shared
    return all(is_image(leaf, config.name) for leaf in seen_leaves(observation_space, config).values())


def compilable(policy: Any, device: torch.device) -> bool:
    """Tell whether a policy's operations are known, and small enough for the time between them to matter."""
    return type(policy) is ActorCritic and device.type == "cpu" and not policy.convolutional


def ActorCriticLSTM(obs_dim: int, action_dim: int, hidden_size: int = 128) -> ActorCritic:  # noqa: N802 - made like a class
    """Build the policy for so many observed numbers and actions between -1 and 1, without an environment to ask."""
    observation_space = spaces.Box(-np.inf, np.inf, (obs_dim,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (action_dim,), np.float32)
    config = AgentConfig(memory="lstm", memory_size=hidden_size, hidden_size=hidden_size, action_dist="squashed")
    return ActorCritic(observation_space, action_space, config)


def make_policy(env: Any, agent_config: AgentConfig | None = None, seed: int | None = None) -> ActorCritic:
    """Build the default policy for an environment (anything with `observation_space` and `action_space`).

    Vector environments describe one row by `single_observation_space` and `single_action_space`.
    """
    observation_space = getattr(env, "single_observation_space", None) or getattr(env, "observation_space", None)
    action_space = getattr(env, "single_action_space", None) or getattr(env, "action_space", None)
    if observation_space is None or action_space is None:
        raise PolicyError(
            f"{type(env).__name__} has no observation_space and action_space to build a policy for. "
            "Pass an environment, or build ActorCritic(observation_space, action_space) yourself."
        )
    if seed is None:
        return ActorCritic(observation_space, action_space, agent_config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ActorCritic(observation_space, action_space, agent_config)
