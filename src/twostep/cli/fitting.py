"""Settings that are each fine, but do not fit together: refused before a run begins."""

from __future__ import annotations

from twostep.cli.terrains import QUADRUPED
from twostep.config import PPOConfig, TrainingConfig
from twostep.errors import ConfigError


def require_fitting(config: TrainingConfig) -> None:
    """Refuse what would fail in the middle of a run, or silently be something else.

    Raises:
        ConfigError: A curriculum of terrains does not fit the robot's world, or sequences do not fit into rollouts.
    """
    _require_reachable(config)
    _require_whole_sequences(config)


def _require_reachable(config: TrainingConfig) -> None:
    """Refuse a curriculum that asks for terrains that are not there, or never leads to some that are."""
    if config.env.id != QUADRUPED or config.curriculum.kind != "terrain_grid":
        return
    from twostep.worlds.quadruped import QuadrupedConfig

    world, taught = QuadrupedConfig.from_dict(config.env.kwargs), config.curriculum
    if taught.num_levels != world.num_levels:
        raise ConfigError(
            f"curriculum.num_levels={taught.num_levels} must be env.kwargs.num_levels={world.num_levels}, the levels "
            f"that the world has: give both, --curriculum.num_levels {world.num_levels} --env.kwargs.num_levels "
            f"{world.num_levels}."
        )
    if set(taught.terrains) != set(world.terrains):
        names = ",".join(world.terrains)
        raise ConfigError(
            f"curriculum.terrains={','.join(taught.terrains)} must be env.kwargs.terrains={names}, the types that the "
            f"world has: give both, --curriculum.terrains {names} --env.kwargs.terrains {names}."
        )


def _require_whole_sequences(config: TrainingConfig) -> None:
    """Refuse sequences, unless they are of the usual length, that no rollout is long enough for: they would be cut."""
    length, steps = config.ppo.bptt_length, config.ppo.rollout_steps
    if config.agent.memory != "none" and steps < length != PPOConfig().bptt_length:
        raise ConfigError(
            f"bptt_length={length} must be at most rollout_steps={steps}, since sequences end with their rollout: take "
            f"--bptt_length {steps}, or --rollout_steps {length} or more."
        )
