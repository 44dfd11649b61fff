"""From observations of any space to features: leaves, groups, images.

Every leaf of an observation space becomes numbers (scaled images, one-hot categories, flattened and normalised
vectors), every group may have an encoder of its own, and the groups of each tower are joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from twostep.errors import ConfigError, PolicyError
from twostep.policies.settings import AgentConfig
from twostep.policies.towers import TowerMlp
from twostep.tree import Tree, tree_items

NORMALIZED_RANGE = 10.0
"""Normalised observations are cut to this many deviations."""

NATURE_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
SMALL_LAYERS = ((16, 3, 2), (32, 3, 2))
"""Filters, kernel, stride of each convolution."""


def is_image(space: spaces.Space[Any], name: str = "auto") -> bool:
    """Tell pictures from vectors: a box with channels and two sides, or two sides alone in bytes; an MLP sees none."""
    if name == "mlp" or not isinstance(space, spaces.Box):
        return False
    return len(space.shape) == 3 or (len(space.shape) == 2 and space.dtype == np.uint8)


class Vector(nn.Module):
    """A leaf that is no picture: flattened numbers, normalised by the frozen statistics; categories as one-hot.

    Bytes are scaled to 0..1.
    """

    columns: Tensor
    categories: Tensor
    mean: Tensor
    inverse_std: Tensor

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        choices = _choices(space)
        self.categorical = bool(choices)
        if choices:
            pairs = [(column, option) for column, options in enumerate(choices) for option in options]
            columns, categories = zip(*pairs, strict=True)
            self.register_buffer("columns", torch.tensor(columns), persistent=False)
            self.register_buffer("categories", torch.tensor(categories), persistent=False)
        elif not isinstance(space, (spaces.Box, spaces.MultiBinary)):
            raise ConfigError(f"No encoder for observations of {space}. Flatten them, or pass a policy of your own.")
        self.out_features = spaces.flatdim(space)
        self.normalizable = isinstance(space, spaces.Box) and bool(np.issubdtype(space.dtype, np.floating))
        self.normalized = False
        self.scale = 1.0 / 255.0 if space.dtype == np.uint8 else 1.0
        if self.normalizable:
            self.register_buffer("mean", torch.zeros(self.out_features))
            self.register_buffer("inverse_std", torch.ones(self.out_features))
            self.register_load_state_dict_post_hook(Vector.refresh)

    def forward(self, x: Tensor) -> Tensor:
        """Map `[N, ...]` to `[N, features]`."""
        if self.categorical:
            return (x.reshape(x.shape[0], -1)[:, self.columns] == self.categories).float()
        if x.dim() != 2:
            x = x.reshape(x.shape[0], -1)
        if not x.is_floating_point():
            return x.float() * self.scale
        if self.normalized:
            x = ((x - self.mean) * self.inverse_std).clamp_(-NORMALIZED_RANGE, NORMALIZED_RANGE)
        return x

    def refresh(self, *_: Any) -> None:
        """Notice statistics that were set or loaded: the identity costs nothing."""
        self.normalized = bool(self.mean.any()) or bool((self.inverse_std != 1).any())


def _choices(space: spaces.Space[Any]) -> list[range]:
    """List what each category of a leaf may be; empty for leaves that are numbers."""
    if isinstance(space, spaces.Discrete):
        return [range(int(space.start), int(space.start + space.n))]
    if isinstance(space, spaces.MultiDiscrete):
        starts, counts = space.start.ravel().tolist(), space.nvec.ravel().tolist()
        return [range(start, start + count) for start, count in zip(starts, counts, strict=True)]
    return []


class ConvNet(nn.Module):
    """Convolutions with rectifiers over pictures; bytes are scaled to 0..1, channels may come first or last."""

    def __init__(self, space: spaces.Space[Any], layers: Sequence[tuple[int, int, int]]) -> None:
        super().__init__()
        shape = tuple(space.shape or ())
        if len(shape) == 2:
            shape = (1, *shape)
        self.channels_last = shape[-1] < min(shape[:2])
        channels, *sides = (shape[-1], *shape[:2]) if self.channels_last else shape
        self.scale = 1.0 / 255.0 if space.dtype == np.uint8 else 1.0
        convolutions: list[nn.Module] = []
        for filters, kernel, stride in layers:
            if min(sides) < kernel:
                raise ConfigError(
                    f"Pictures of shape {space.shape} are too small for a {kernel}x{kernel} kernel of this encoder. "
                    "Use larger pictures, smaller kernels (name='simple_cnn'), or a policy of your own."
                )
            convolution = nn.Conv2d(channels, filters, kernel, stride)
            nn.init.orthogonal_(convolution.weight, 2**0.5)
            nn.init.zeros_(convolution.bias) if convolution.bias is not None else None
            convolutions += [convolution, nn.ReLU()]
            channels, sides = filters, [(side - kernel) // stride + 1 for side in sides]
        self.body = nn.Sequential(*convolutions, nn.Flatten())
        self.out_features = channels * sides[0] * sides[1]

    def forward(self, x: Tensor) -> Tensor:
        """Map `[N, C, H, W]`, `[N, H, W, C]` or `[N, H, W]` to `[N, features]`."""
        if x.dim() == 3:
            x = x.unsqueeze(1)
        if self.channels_last:
            x = x.permute(0, 3, 1, 2)
        return self.body(x.float() * self.scale if self.scale != 1.0 else x.float())


class Group(nn.Module):
    """One leaf of the observation with the encoder of each tower: raw, an MLP, or a ConvNet."""

    def __init__(self, path: str, space: spaces.Space[Any], towers: int, config: AgentConfig) -> None:
        super().__init__()
        self.path, self.towers = path, towers
        self.convolutions: nn.ModuleList | None = None
        self.mlp: TowerMlp | None = None
        if is_image(space, config.name):
            layers = conv_layers(space, config.name)
            nets = [ConvNet(space, layers) for _ in range(towers)]
            self.convolutions, self.out_features = nn.ModuleList(nets), nets[0].out_features
            return
        self.vector = Vector(space)
        self.out_features = self.vector.out_features
        if path in config.encoders:
            self.mlp = TowerMlp(towers, self.out_features, config.encoders[path], config.activation)
            self.out_features = self.mlp.out_features

    def forward(self, x: Tensor) -> Tensor:
        """Map `[N, ...]` to `[K, N, features]`."""
        if self.convolutions is not None:
            return torch.stack([net(x) for net in self.convolutions])
        features = self.vector(x).expand(self.towers, -1, -1)
        return features if self.mlp is None else self.mlp(features)


class Encoder(nn.Module):
    """All groups joined, then layers shared by them: observation trees `[N, ...]` to `[K, N, features]`.

    A group that only the critic may see reaches the actor's tower as zeros, whose weights never receive a gradient.
    """

    def __init__(self, space: spaces.Space[Any], towers: int, config: AgentConfig) -> None:
        super().__init__()
        _check_names(config, dict(tree_items(space_tree(space))), towers)
        leaves = seen_leaves(space, config)
        groups = [Group(path, leaf, towers, config) for path, leaf in leaves.items()]
        self.groups = nn.ModuleList(groups)
        self.critic_only = tuple(path in config.critic_only for path in leaves)
        self.context_size = config.context_size
        width = sum(group.out_features for group in groups) + config.context_size
        picture = all(is_image(leaf, config.name) for leaf in leaves.values())
        hidden, activation = trunk_shape(config, picture)
        self.trunk = TowerMlp(towers, width, hidden, activation)
        self.out_features = self.trunk.out_features

    def forward(self, obs: Tree, context: Tensor | None = None) -> Tensor:
        """Map flat observations, and the context if the policy is conditioned on one, to features."""
        parts: list[Tensor] = []
        leaves = dict(tree_items(obs))
        for group, hidden in zip(cast("Iterable[Group]", self.groups), self.critic_only, strict=True):
            features = group(leaves[group.path])
            parts.append(torch.cat((torch.zeros_like(features[:1]), features[1:])) if hidden else features)
        given = 0 if context is None else context.shape[-1]
        if given != self.context_size:
            raise PolicyError(
                f"The context has {given} numbers per row, but the policy was built for context_size="
                f"{self.context_size}. Pass that many, or build it with AgentConfig(context_size={given})."
            )
        if context is not None:
            parts.append(context.expand(parts[0].shape[0], -1, -1))
        return self.trunk(torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0])

    def vectors(self) -> dict[str, Vector]:
        """Return the leaves whose statistics can be normalised, by path."""
        groups = [group for group in self.groups if isinstance(group, Group) and group.convolutions is None]
        return {group.path: group.vector for group in groups if group.vector.normalizable}


def conv_layers(space: spaces.Space[Any], name: str) -> Sequence[tuple[int, int, int]]:
    """Choose the convolutions: the large stack where pictures are large enough and nothing else is asked for."""
    large = min(sorted(space.shape or (0,))[-2:]) >= 36
    return NATURE_LAYERS if name == "nature_cnn" or (name == "auto" and large) else SMALL_LAYERS


def trunk_shape(config: AgentConfig, picture: bool) -> tuple[tuple[int, ...], str]:
    """Return the joint layers: one wide rectified layer behind pictures, the configured ones otherwise."""
    if picture and config.name in ("auto", "nature_cnn"):
        return (512,), "relu"
    if picture:
        return (config.hidden_size,), "relu"
    return (config.hidden_size,) * config.num_layers, config.activation


def seen_leaves(space: spaces.Space[Any], config: AgentConfig) -> dict[str, spaces.Space[Any]]:
    """Return the leaves of an observation space that a network is to see, by path."""
    leaves = dict(tree_items(space_tree(space)))
    return {path: leaf for path, leaf in leaves.items() if not config.observations or path in config.observations}


def space_tree(space: spaces.Space[Any]) -> Tree:
    """Turn Dict and Tuple spaces into a tree of leaf spaces."""
    if isinstance(space, spaces.Dict):
        return {key: space_tree(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(space_tree(part) for part in space.spaces)
    return space


def _check_names(config: AgentConfig, leaves: dict[str, Any], towers: int) -> None:
    named = {"encoders": config.encoders, "critic_only": config.critic_only, "observations": config.observations}
    for setting, names in named.items():
        for name in names:
            if name not in leaves:
                groups = sorted(leaves) if "" not in leaves else "no named groups"
                raise ConfigError(f"{setting} names {name!r}, but the observation has {groups}.")
            if config.observations and name not in config.observations:
                raise ConfigError(f"{setting} names {name!r}, but observations leaves it out: name it there, too.")
    for name in config.encoders:
        if is_image(leaves[name], config.name):
            raise ConfigError(f"encoders gives layers to {name!r}, but pictures have convolutions. Leave it out.")
    if config.critic_only and towers == 1:
        raise ConfigError("critic_only needs an actor and a critic of their own: set shared=False.")
