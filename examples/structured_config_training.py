"""Settings as typed dataclasses: from a preset, from a nested dict, from YAML, and back.

python examples/structured_config_training.py --steps 10000
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from twostep import (
    ConfigError,
    TrainingConfig,
    TrainingState,
    functional_training_loop,
    make_env,
    make_policy,
    small_fast_config,
)


def configured(steps: int) -> TrainingConfig:
    """Start from a preset and change what matters; then show that every other way says the same."""
    preset = small_fast_config()
    config = replace(preset, experiment_name="example", trainer=replace(preset.trainer, total_timesteps=steps))

    # The same from a dict: missing parts keep their defaults, other programs' names are understood.
    same = TrainingConfig.from_dict(config.to_dict() | {"experiment_name": "example"})
    assert same == config

    # A slip is named, with what was probably meant.
    try:
        TrainingConfig.from_dict({"ppo": {"learning_rat": 1e-3}})
    except ConfigError as error:
        print(error)

    # The same from YAML, as the command line writes it into every run's folder.
    with tempfile.TemporaryDirectory() as folder:
        config.save_yaml(Path(folder) / "config.yaml", heading="An example")
        return TrainingConfig.from_yaml(Path(folder) / "config.yaml")


def train(steps: int) -> TrainingState:
    """Train as the settings say: environment, network, seed and all."""
    config = configured(steps)
    with_one_env = make_env(config.env.id)
    policy = make_policy(with_one_env, config.agent, seed=config.seed)
    return functional_training_loop(config, policy=policy)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    state = train(parser.parse_args().steps)
    print(f"{state.agent_steps:,} steps, mean return {state.metrics()['mean_reward']:.1f}")
