"""The settings of the network that acts and judges."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from twostep.errors import ConfigError
from twostep.values import settle, show

WIDEST, DEEPEST = 16_384, 64
"""Layers beyond this are slips of the finger, and would fill the memory before anybody notices."""


@dataclass(kw_only=True)
class AgentConfig:
    """What network is built for an environment's observations and actions."""

    name: Literal["auto", "mlp", "simple_cnn", "nature_cnn"] = "auto"
    """How observations are read; auto takes `nature_cnn` for images of 36 pixels or more a side, else what fits."""
    hidden_size: int = 64
    """Units per layer."""
    num_layers: int = 2
    """Layers between observation and memory or heads."""
    activation: Literal["tanh", "relu", "elu", "silu", "gelu"] = "tanh"
    """What stands between layers."""
    memory: Literal["none", "gru", "lstm"] = "none"
    """What the agent remembers with, where one observation does not tell enough."""
    memory_size: int = 64
    """Units of the memory."""
    memory_layers: int = 1
    """Layers of the memory."""
    encoders: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Layers of its own for a named group of a dict observation, before the groups are joined; images always have."""
    context_size: int = 0
    """Numbers per row that the policy is conditioned on besides the observation (a task embedding, say)."""
    shared: bool | None = None
    """Whether actor and critic read observations, and remember, through the same layers; None: only for images."""
    action_hidden: tuple[int, ...] = ()
    """Units of each layer between memory and actions."""
    value_hidden: tuple[int, ...] = ()
    """Units of each layer between memory and value."""
    action_dist: Literal["auto", "gaussian", "squashed", "beta"] = "auto"
    """Distribution of continuous actions; squashed and beta stay inside the bounds by themselves."""
    std: Literal["learned", "fixed", "state"] = "learned"
    """Where the deviation of continuous actions comes from: a parameter, `init_std` for ever, or the network."""
    init_std: float = 1.0
    """Deviation of continuous actions at the start."""
    critic_only: tuple[str, ...] = ()
    """Names of observation groups that only the critic sees."""
    observations: tuple[str, ...] = ()
    """Names of observation groups that the network sees at all; none: all there are."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("critic_only", "observations"):
            if isinstance(given := getattr(self, name), str):
                self._require(name, False, "a tuple of names", f"write ({given!r},)")
        settle(self)
        for name, most in (("hidden_size", WIDEST), ("memory_size", WIDEST), ("memory_layers", DEEPEST)):
            holds = 1 <= getattr(self, name) <= most
            self._require(name, holds, f"from 1 to {most}", "64 units and 1 layer are good starts")
        self._require("context_size", 0 <= self.context_size <= WIDEST, f"from 0 to {WIDEST}", "0 for none")
        self._require("num_layers", 0 <= self.num_layers <= DEEPEST, f"from 0 to {DEEPEST}", "2 is a good start")
        for name in ("action_hidden", "value_hidden"):
            self._require_sizes(name, getattr(self, name))
        for group, sizes in self.encoders.items():
            self._require_sizes(f"encoders.{group}", sizes)
        self._require("init_std", self.init_std > 0, "positive", "1.0 is a good start")

    def _require_sizes(self, name: str, sizes: tuple[int, ...]) -> None:
        if len(sizes) > DEEPEST or not all(1 <= size <= WIDEST for size in sizes):
            raise ConfigError(f"{name}={show(sizes)} must be at most {DEEPEST} sizes from 1 to {WIDEST}: (64,)?")

    def _require(self, name: str, holds: bool, rule: str, way_out: str) -> None:
        if not holds:
            raise ConfigError(f"{name}={getattr(self, name)!r} must be {rule}: {way_out}.")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the settings' names in order."""
        return tuple(field.name for field in fields(cls))
