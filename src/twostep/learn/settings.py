"""The settings of the learning phase and of the rollouts it learns from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from twostep.errors import ConfigError
from twostep.values import settle


@dataclass(kw_only=True, frozen=True)
class PPOConfig:
    """Everything PPO needs to know. Bare defaults suit small problems with one or a few environments."""

    lr: float = 3e-4
    """Learning rate at the start; `lr_schedule` says how it goes on."""
    gamma: float = 0.99
    """Discount: how much a reward one step later is worth."""
    gae_lambda: float = 0.95
    """0 trusts the value estimate, 1 trusts the measured return."""
    clip_coef: float = 0.2
    """How far the probability ratio may move from 1 before its gradient is cut."""
    ent_coef: float = 0.01
    """Weight of the reward for staying undecided."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Gradients longer than this are scaled down to it; `inf` never scales."""
    update_epochs: int = 4
    """How often each rollout is gone through."""
    rollout_steps: int = 512
    """Steps per row in one rollout."""
    num_minibatches: int = 4
    """Minibatches per epoch, unless `minibatch_size` says it in transitions."""
    minibatch_size: int | None = None
    """Transitions per minibatch; for policies with memory rounded to whole sequences."""
    accumulate: int = 1
    """Pieces in which a minibatch goes through the network; the result is that of the whole one, in less memory."""
    bptt_length: int = 16
    """Steps per sequence for policies with memory; gradients flow inside a sequence, memory enters it as it was."""
    norm_adv: Literal["batch", "minibatch", "none"] = "batch"
    """Over what advantages are brought to mean 0 and deviation 1."""
    value_loss_scale: float = 0.5
    """Factor inside the value loss: 0.5 gives half the squared error, 1 the squared error."""
    clip_vloss: bool = False
    """Whether a value may only move by `vf_clip_coef` from what it was when acting."""
    vf_clip_coef: float | None = None
    """Range of value clipping, in normalised units when returns are normalised; None takes `clip_coef`."""
    target_kl: float | None = None
    """Stop going through a rollout once an epoch has moved the policy further than 1.5 times this."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """Adam adds the decay of weights to the gradient, AdamW decays them apart from it."""
    weight_decay: float = 0.0
    """How strongly weights are drawn towards 0."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    lr_schedule: Literal["constant", "linear", "cosine", "adaptive_kl"] = "constant"
    """How the learning rate goes on; linear falls to 0, cosine to `lr_min_ratio`, both exactly at `total_timesteps`."""
    lr_min_ratio: float = 0.1
    """Where the cosine schedule ends, as a part of `lr`."""
    desired_kl: float = 0.01
    """What the KL-adaptive schedule steers towards."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the network's products, in both phases alike; fp16 scales the loss so that nothing vanishes."""
    normalize_obs: bool = False
    """Whether observations are brought to mean 0 and deviation 1 by running statistics."""
    normalize_returns: bool = False
    """Whether the critic learns returns divided by their running deviation; its values are read in raw units."""
    adaptive_minibatch: tuple[int, int] | None = None
    """Smallest and largest minibatch between which the gradient noise chooses; None keeps the size."""
    recompute_advantages: bool = False
    """Whether the rollout is valued anew before each epoch, with what the critic has learned from it by then."""
    compile_after: int = 100_000
    """Operations of torch, large ones counting more, after which small networks learn in machine code; 0: never."""
    on_nonfinite: Literal["stop", "skip", "reset"] = "stop"
    """What NaN and infinity do: stop the training, be left out (skip), or be left out and end an episode (reset)."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        settle(self, infinite=("max_grad_norm",))
        self._require("lr", self.lr > 0, "positive", "3e-4 is a good start")
        self._require("gamma", 0 <= self.gamma <= 1, "between 0 and 1", "0.99 is a good start")
        self._require("gae_lambda", 0 <= self.gae_lambda <= 1, "between 0 and 1", "0.95 is a good start")
        self._require("clip_coef", self.clip_coef > 0, "positive", "0.2 is a good start")
        self._require("ent_coef", self.ent_coef >= 0, "0 or more", "0.01 is a good start")
        self._require("vf_coef", self.vf_coef >= 0, "0 or more", "0.5 is a good start")
        self._require("max_grad_norm", self.max_grad_norm > 0, "positive", "use inf to switch clipping off")
        for name in ("update_epochs", "rollout_steps", "num_minibatches", "accumulate", "bptt_length"):
            self._require(name, getattr(self, name) >= 1, "1 or more", f"{getattr(PPOConfig, name)} is the default")
        self._require(
            "minibatch_size",
            self.minibatch_size is None or self.minibatch_size >= 1,
            "1 or more",
            "None takes num_minibatches",
        )
        self._require(
            "vf_clip_coef", self.vf_clip_coef is None or self.vf_clip_coef > 0, "positive", "None takes clip_coef"
        )
        self._require("target_kl", self.target_kl is None or self.target_kl > 0, "positive", "None switches it off")
        self._require("weight_decay", self.weight_decay >= 0, "0 or more", "0 switches it off")
        self._require("lr_min_ratio", 0 <= self.lr_min_ratio <= 1, "between 0 and 1", "0.1 is usual")
        self._require("desired_kl", self.desired_kl > 0, "positive", "0.01 is usual")
        self._require("adam_eps", self.adam_eps > 0, "positive", "1e-5 is usual")
        self._require("compile_after", self.compile_after >= 0, "0 or more", "0 switches it off")
        if self.adaptive_minibatch is not None:
            low, high = self.adaptive_minibatch
            self._require("adaptive_minibatch", 1 <= low <= high, "(smallest, largest)", "(32, 512) is a good start")

    def _require(self, name: str, holds: bool, rule: str, way_out: str) -> None:
        if not holds:
            raise ConfigError(f"{name}={getattr(self, name)!r} must be {rule}: {way_out}.")

    def require_same_make(self, before: PPOConfig) -> None:
        """Refuse to change what optimizers, collectors and networks were made with."""
        for name in ("optimizer", "precision", "weight_decay", "adam_eps", "bptt_length"):
            if getattr(self, name) != getattr(before, name):
                raise ConfigError(f"{name} cannot change once the trainer exists. Pass it to PPOTrainer.")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the settings' names in order."""
        return tuple(field.name for field in fields(cls))


@dataclass(kw_only=True)
class ImitationConfig:
    """Learning to act as a teacher does, from observations that may be others, instead of by rewards."""

    teacher: str = ""
    """A run, or a saved policy by its folder or URI, whose actions are imitated; empty learns by rewards."""
    mix_steps: int = 0
    """Steps over which the part of actions that are the teacher's own falls from all to none; 0 begins with none."""
    keep: int = 4
    """Newest rollouts that each update learns from."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        settle(self)
        if self.mix_steps < 0:
            raise ConfigError(f"mix_steps={self.mix_steps} must be 0 or more: a tenth of all steps is a good start.")
        if self.keep < 1:
            raise ConfigError(f"keep={self.keep} must be 1 or more: 4 is usual.")
