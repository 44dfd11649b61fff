"""The settings of the network that acts and judges."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from twostep.errors import ConfigError


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

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("hidden_size", "memory_size", "memory_layers"):
            self._require(name, getattr(self, name) >= 1, "1 or more", "64 units and 1 layer are good starts")
        self._require("context_size", self.context_size >= 0, "0 or more", "0 for none")
        self._require("num_layers", self.num_layers >= 0, "0 or more", "2 is a good start")
        for name in ("action_hidden", "value_hidden"):
            self._require(name, all(size >= 1 for size in getattr(self, name)), "sizes of 1 or more", "(64,)?")
        self._require("init_std", self.init_std > 0, "positive", "1.0 is a good start")
        if isinstance(self.critic_only, str):
            self._require("critic_only", False, "a tuple of names", f"write ({self.critic_only!r},)")

    def _require(self, name: str, holds: bool, rule: str, way_out: str) -> None:
        if not holds:
            raise ConfigError(f"{name}={getattr(self, name)!r} must be {rule}: {way_out}.")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the settings' names in order."""
        return tuple(field.name for field in fields(cls))
