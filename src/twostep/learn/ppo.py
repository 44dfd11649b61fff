"""Phase two: a rollout makes a better policy. Proximal Policy Optimization, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from twostep.advantages import explained_variance
from twostep.checkpoint import generator_state, restore_generator
from twostep.compiled import Compiled
from twostep.experience import combine_rollouts
from twostep.group import Group, present_group
from twostep.learn.batch_size import adapted_minibatch_size
from twostep.learn.beginnings import (
    learnable,
    make_optimizer,
    only_finite,
    require_alike,
    require_fit,
    require_ratio,
    require_support,
)
from twostep.learn.custom import CustomLoss, custom_losses_of, may_be_compiled
from twostep.learn.gradients import clipped, flat_gradient, summed
from twostep.learn.guard import Guard, means_of_steps
from twostep.learn.losses import Metrics, clipped_surrogate, normalized, ppo_loss, squared_value_error
from twostep.learn.metrics import LOSS_METRICS, OWN_METRICS, joined, of_all
from twostep.learn.rates import LearningRates
from twostep.learn.revaluing import judged, ratio_error, revalued
from twostep.learn.scaling import LossScale
from twostep.learn.settings import PPOConfig
from twostep.normalization import ObservationNormalizer, ReturnNormalizer
from twostep.policies.actor_critic import PRECISIONS, ActorCritic, compilable
from twostep.policies.adapters import as_policy
from twostep.rollout import RolloutBuffer
from twostep.runtime import fast_products, suitable_threads
from twostep.sequences import Minibatch, Sequences
from twostep.tree import Tree, tree_map

if TYPE_CHECKING:
    from twostep.learn.replay import Replayed


class PPOOptimizer:
    """Learns from rollouts: epochs over shuffled minibatches of whole sequences, one optimizer step for each."""

    def __init__(
        self,
        policy: Any,
        optimizer: torch.optim.Optimizer | None = None,
        device: torch.device | str | None = None,
        config: PPOConfig | None = None,
        *,
        seed: int = 0,
        group: Group | None = None,
    ) -> None:
        """Without an optimizer, make the one that `config` describes. `seed` orders the minibatches.

        `group` are the processes that learn together, each calling everything here equally often: without it those
        that `torch.distributed` has joined. They begin with the weights and the order of the one that leads.
        """
        self._config = config or PPOConfig()
        self.group = group or present_group()
        self.policy = as_policy(policy)
        self.device = torch.device(device) if device is not None else _device_of(self.policy)
        self.policy.to(self.device)
        require_alike(self.group, self.policy, self.config)
        self.group.share([*self.policy.parameters(), *self.policy.buffers()])
        self._find_learnable()
        self.optimizer = optimizer or make_optimizer(list(self.policy.parameters()), self.config)
        self.generator = torch.Generator().manual_seed(self.group.tell(seed)[0])
        self.minibatch_size = self.config.minibatch_size
        self.rates = LearningRates(self.optimizer, self.config)
        self.return_normalizer = ReturnNormalizer(group=self.group)
        self.observation_normalizer = ObservationNormalizer(group=self.group)
        require_support(self.policy, self.config)
        if isinstance(self.policy, ActorCritic):
            self.policy.autocast_dtype = PRECISIONS[self.config.precision]
        self._guard = Guard(self.policy, self.optimizer, self.device)
        self.loss_scale = LossScale() if self.config.precision == "fp16" else None
        self._custom_losses: tuple[CustomLoss, ...] = ()
        self._compiled = self._compilable() if compilable(self.policy, self.device) else None

    def _find_learnable(self) -> None:
        """Look which parameters are learned: some may be frozen, or set free again, between two updates."""
        self.parameters, self._frozen = learnable(self.policy)
        self._sizes = [parameter.numel() for parameter in self.parameters]
        self._making = (*self.policy.fingerprint(), *self._frozen) if compilable(self.policy, self.device) else ()

    def set_progress(self, progress: float) -> None:
        """Set the learning rate for the part of all training that is done, 0 to 1."""
        self.rates.set_progress(progress, self.config)

    def update(
        self,
        experience: RolloutBuffer,
        custom_loss_fns: Sequence[CustomLoss] = (),
        replayed: Replayed | None = None,
    ) -> dict[str, float]:
        """Go through `experience` for `update_epochs` and return the means of what was measured.

        Advantages that the rollout already has are used as they are. `replayed` is past experience to learn from
        beside it; normalisers, `explained_variance` and the check of the ratio know the fresh one only.
        """
        self._find_learnable()
        if self._compiled is not None:
            self._compiled.notice_changes()
        rollout = experience.to(self.device)
        if rollout.policy_version != self.policy.version:
            require_fit(self.policy, rollout)
        returns = self._complete(rollout)
        sound = only_finite(rollout, stop=self.config.on_nonfinite == "stop")
        if sound is not rollout:
            return self.update(sound, custom_loss_fns, replayed)
        if not self.group.any(bool(rollout.valid.any())):
            return dict.fromkeys(OWN_METRICS, math.nan)
        variance = explained_variance(rollout.values, returns, rollout.valid, self.group)
        self._scale_values(returns, rollout.valid)
        together, beside = rollout, {} if replayed is None else replayed.metrics
        if replayed is not None and replayed.rollout is not None:
            beside = beside | self._check_fresh(rollout)
            together = combine_rollouts([rollout, replayed.rollout])
        sequences = self._sequences(together)
        self._adapt_minibatch_size(sequences)
        samples = len(sequences) * sequences.length // self._number(sequences) // self.group.size
        with suitable_threads(self.policy, self.device), fast_products(samples, self.device):
            measured, epochs = self._epochs(sequences, together, custom_loss_fns)
        self.normalize_observations(rollout)
        beside = beside | ({} if self.loss_scale is None else {"loss_scale": self.loss_scale.scale})
        measures = means_of_steps(measured, stop=self.config.on_nonfinite == "stop")
        measures, beside = of_all(self.group, measures, beside)
        metrics = measures | {"explained_variance": float(variance), "epochs": float(epochs)} | beside
        if self.config.lr_schedule == "adaptive_kl":
            self.rates.set(self.rates.adaptive.update(metrics["approx_kl"]))
        return metrics | {"lr": float(self.optimizer.param_groups[0]["lr"])}

    @property
    def config(self) -> PPOConfig:
        """The settings; assigning others is `reconfigure`."""
        return self._config

    @config.setter
    def config(self, config: PPOConfig) -> None:
        self.reconfigure(config)

    def reconfigure(self, config: PPOConfig) -> None:
        """Go on with other settings; the optimizer and its state stay."""
        if config == self._config:
            return
        config.require_same_make(self.config)
        require_support(self.policy, config)
        before, self._config = self._config, config
        if config.minibatch_size != before.minibatch_size:
            self.minibatch_size = config.minibatch_size
        if (config.lr, config.desired_kl) != (before.lr, before.desired_kl):
            self.restart_schedule()
        if self._compiled is not None:
            self._compiled = self._compilable()  # the old one goes by the old settings

    def restart_schedule(self) -> None:
        """Begin with the learning rate that the settings name; a schedule of progress goes on from where it is."""
        self.rates.restart(self.config)

    def revalued(self, rollout: RolloutBuffer) -> RolloutBuffer:
        """Return the rollout as the present critic values it, for experience collected long ago."""
        rollout = rollout.to(self.device)
        return revalued(rollout, judged(self.policy, rollout).values)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer, the normalisers and everything else that moves while learning."""
        return {
            "optimizer_state_dict": self.optimizer.state_dict(),
            "scheduler_state_dict": self.rates.adaptive.state_dict(),
            "normalizers": {
                "returns": self.return_normalizer.state_dict(),
                "observations": self.observation_normalizer.state_dict(),
            },
            "minibatches": {"size": self.minibatch_size, "order": generator_state(self.generator)},
            "compiled": None if self._compiled is None else self._compiled.state_dict(),
            "loss_scale": None if self.loss_scale is None else self.loss_scale.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly from `state_dict`."""
        self.optimizer.load_state_dict(state["optimizer_state_dict"])
        self.rates.adaptive.load_state_dict(state["scheduler_state_dict"])
        self.return_normalizer.load_state_dict(state["normalizers"]["returns"])
        self.observation_normalizer.load_state_dict(state["normalizers"]["observations"])
        self.minibatch_size = state["minibatches"]["size"]
        restore_generator(self.generator, state["minibatches"]["order"])
        if self._compiled is not None and state["compiled"] is not None:
            self._compiled.load_state_dict(state["compiled"])
        if self.loss_scale is not None and state["loss_scale"] is not None:
            self.loss_scale.load_state_dict(state["loss_scale"])

    def _complete(self, rollout: RolloutBuffer) -> Tensor:
        """Compute the rollout's advantages where it has none, and return its returns."""
        if rollout.advantages is None or rollout.returns is None:
            rollout.compute_gae(gamma=self.config.gamma, gae_lambda=self.config.gae_lambda)
        assert rollout.returns is not None
        return rollout.returns

    def _sequences(self, rollout: RolloutBuffer) -> Sequences:
        """Complete the rollout's advantages, normalise them over all of it, and cut it."""
        returns, advantages = self._complete(rollout), rollout.advantages
        assert advantages is not None
        if self.config.norm_adv == "batch":
            advantages = normalized(advantages, None if bool(rollout.valid.all()) else rollout.valid, self.group)
        return Sequences(rollout, advantages, returns, self.group)

    def _epochs(
        self, sequences: Sequences, rollout: RolloutBuffer, custom_losses: Sequence[CustomLoss]
    ) -> tuple[list[Metrics], int]:
        number = self._number(sequences)
        measured: list[Metrics] = []
        for epoch in range(self.config.update_epochs):
            if epoch and self.config.recompute_advantages:
                sequences = self._sequences(self.revalued(rollout))
            already = len(measured)
            for minibatch in sequences.epoch(number, self.generator):
                if not minibatch.whole:
                    continue
                if self.config.norm_adv == "minibatch":
                    minibatch.advantages = normalized(minibatch.advantages, minibatch.valid, self.group)
                metrics = self.gradient(minibatch, custom_losses)
                if not measured:
                    self._check_ratio(metrics, rollout.policy_version)
                    self.policy.version += 1  # from the first step on, even one that is interrupted or fails
                self._guard.step(metrics, len(measured), stop=self.config.on_nonfinite == "stop")
                measured.append(metrics)
            if self.config.target_kl is not None:
                moved = torch.stack([metrics["approx_kl"] for metrics in measured[already:]]).mean()
                if float(moved) > 1.5 * self.config.target_kl:
                    return measured, epoch + 1
        return measured, self.config.update_epochs

    def gradient(self, minibatch: Minibatch, custom_losses: Sequence[CustomLoss] = ()) -> Metrics:
        """Fill the parameters' gradients with the clipped gradient of a minibatch, and return what was measured."""
        if self.loss_scale is None:
            flat, total = self._whole(minibatch, custom_losses)
        else:
            flat, total = self.loss_scale.finite(lambda: self._whole(minibatch, custom_losses))
        for parameter, part in zip(self.parameters, flat.split(self._sizes), strict=True):
            parameter.grad = part.view_as(parameter)
        return total

    def _whole(self, minibatch: Minibatch, custom_losses: Sequence[CustomLoss]) -> tuple[Tensor, Metrics]:
        if self._at_once:
            return self._gradient(minibatch, minibatch.whole, custom_losses)
        total: Metrics = {}
        flat: Tensor | None = None
        for piece in minibatch.pieces(self.config.accumulate):
            gradient, metrics = self._gradient(piece, minibatch.whole, custom_losses)
            flat = gradient if flat is None else flat.add_(gradient)
            total = joined(total, metrics)
        assert flat is not None
        flat, total = summed(self.group, flat, total)
        flat, norm = clipped(flat, self.config.max_grad_norm)
        return flat, total | {"grad_norm": norm}

    def _gradient(self, piece: Minibatch, count: int, custom_losses: Sequence[CustomLoss]) -> tuple[Tensor, Metrics]:
        """Return the gradient of a piece, all parameters in one row, and what was measured; clipped if it is whole."""
        scale = None if self.loss_scale is None else self.loss_scale.scale
        if self._compiled is None or not may_be_compiled(custom_losses, piece):
            return self._flat(*self._whole_loss(piece, count, custom_losses), scale)
        if custom_losses and tuple(custom_losses) != self._custom_losses:  # what is compiled is of others
            self._custom_losses = tuple(custom_losses)
            self._compiled.forget()
        self._piece, self._among = piece, custom_losses
        tree = (piece.tensors(), torch.full((), float(count)), None if scale is None else torch.full((), scale))
        flat, measured = self._compiled(tree, (self._making, bool(custom_losses)))
        return flat, {name: measured[name] for name in (*LOSS_METRICS, *measured)}

    def _whole_loss(
        self, piece: Minibatch, count: Tensor | float, custom_losses: Sequence[CustomLoss]
    ) -> tuple[Tensor, Metrics]:
        loss, metrics, values = self._loss(piece, count)
        if not custom_losses:
            return loss, metrics
        extra, measured = custom_losses_of(custom_losses, self.policy, piece, values, count)
        return loss + extra, metrics | measured | {"loss": metrics["loss"] + extra.detach()}

    @property
    def _at_once(self) -> bool:
        """Whether a gradient is whole as it comes, with nothing to be added before it is clipped."""
        return self.config.accumulate == 1 and self.group.size == 1

    def _flat(self, loss: Tensor, metrics: Metrics, scale: Tensor | float | None) -> tuple[Tensor, Metrics]:
        flat = flat_gradient(loss, self.policy, scale)
        if not self._at_once:
            return flat, metrics
        flat, norm = clipped(flat, self.config.max_grad_norm)
        return flat, metrics | {"grad_norm": norm}

    def _compilable(self) -> Compiled:
        return Compiled(self.policy, self._as_tensors, after=self.config.compile_after or math.inf)

    def _as_tensors(self, tree: Tree) -> tuple[Tensor, Metrics]:
        """Do what `_gradient` does, as a function of nothing but tensors."""
        tensors, count, scale = tree
        return self._flat(*self._whole_loss(self._piece.with_tensors(tensors), count, self._among), scale)

    def _loss(self, piece: Minibatch, count: Tensor | float) -> tuple[Tensor, Metrics, Tensor]:
        output = self.policy(piece.obs, piece.states, piece.episode_starts, **piece.conditions)
        new_logprobs = output.distribution.log_prob(piece.actions)
        loss, metrics = ppo_loss(
            new_logprobs,
            output.values,
            output.distribution.entropy(),
            old_logprobs=piece.logprobs,
            old_values=piece.values,
            advantages=piece.advantages,
            returns=piece.returns,
            config=self.config,
            valid=piece.valid,
            count=count,
            value_scale=self.policy.value_scale if self.config.normalize_returns else None,
        )
        with torch.no_grad():
            errors = (new_logprobs - piece.logprobs).expm1().abs()
            metrics["ratio_error"] = (errors if piece.valid is None else torch.where(piece.valid, errors, 0.0)).max()
        return loss, metrics, output.values

    def compute_ppo_loss(
        self, obs: Tree, actions: Tree, old_logprobs: Tensor, advantages: Tensor, returns: Tensor, values: Tensor
    ) -> Metrics:
        """Return the parts of the loss on transitions `[N, ...]`, with gradients; `values` are those when acting."""

        def one_step(leaf: Tensor) -> Tensor:
            return leaf.to(self.device).unsqueeze(0)

        count = old_logprobs.shape[0]
        starts = torch.ones(1, count, dtype=torch.bool, device=self.device)
        output = self.policy(tree_map(one_step, obs), self.policy.initial_state(count), starts)
        new_logprobs = output.distribution.log_prob(tree_map(one_step, actions))
        entropies = output.distribution.entropy()
        old_logprobs, advantages, returns, values = map(one_step, (old_logprobs, advantages, returns, values))
        config, scale = self.config, self.policy.value_scale if self.config.normalize_returns else None
        loss, metrics = ppo_loss(
            new_logprobs,
            output.values,
            entropies,
            old_logprobs=old_logprobs,
            old_values=values,
            advantages=advantages,
            returns=returns,
            config=config,
            value_scale=scale,
        )
        ratio = (new_logprobs - old_logprobs).exp()
        clip = (config.vf_clip_coef or config.clip_coef) if config.clip_vloss else None
        errors = squared_value_error(output.values, values, returns, clip, scale)
        return {
            **metrics,
            "policy_loss": clipped_surrogate(ratio, advantages, config.clip_coef).mean(),
            "value_loss": config.value_loss_scale * errors.mean(),
            "entropy_loss": -entropies.mean(),
            "total_loss": loss,
        }

    def _check_ratio(self, metrics: Metrics, version: int | None) -> None:
        """Before the first step: the policy that learns must be the one that acted."""
        if version is not None and version == self.policy.version:
            require_ratio(float(metrics["ratio_error"]), self.config.precision)

    def _check_fresh(self, rollout: RolloutBuffer) -> dict[str, float]:
        """Check the ratio of fresh experience before past experience, with other ratios, is mixed with it."""
        error = ratio_error(rollout, judged(self.policy, rollout).logprobs)
        self._check_ratio({"ratio_error": error}, rollout.policy_version)
        return {"ratio_error": float(error)}

    def _scale_values(self, returns: Tensor, valid: Tensor) -> None:
        if self.config.normalize_returns:
            self.return_normalizer.update(returns[valid])
            self.policy.set_value_scale(self.return_normalizer.scale)

    def normalize_observations(self, rollout: RolloutBuffer) -> None:
        """Move the statistics after learning, so that they stand still from one collection to the end of its update."""
        if self.config.normalize_obs:
            self.observation_normalizer.update(rollout.obs, rollout.valid)
            self.policy.set_observation_statistics(self.observation_normalizer.frozen())

    def _adapt_minibatch_size(self, sequences: Sequences) -> None:
        if self.config.adaptive_minibatch is not None:
            size = self.minibatch_size or max(1, int(sequences.valid_counts.sum()) // self.config.num_minibatches)
            self.minibatch_size = adapted_minibatch_size(self, sequences, size, self.config.adaptive_minibatch)

    def _number(self, sequences: Sequences) -> int:
        """Return how many minibatches an epoch has."""
        return sequences.minibatch_count(self.minibatch_size, self.config.num_minibatches)


def _device_of(policy: nn.Module) -> torch.device:
    parameter = next(policy.parameters(), None)
    return parameter.device if parameter is not None else torch.device("cpu")
