"""Seed 003's snippet of `TrainingCheckpointer`, with only the import root changed."""

from __future__ import annotations

from typing import Any

import torch

from twostep import PolicyStore, TrainingCheckpointer, make_env


def test_the_snippet(tmp_path: Any, small_policy: Any) -> None:
    """M13."""
    env = make_env("CartPole-v1", 2)
    policy = small_policy(env)
    optimizer = torch.optim.Adam(policy.parameters())
    run_dir, checkpoint_dir = tmp_path, tmp_path / "checkpoints"
    policy_store, wandb_run, epoch, agent_step, metadata = PolicyStore(tmp_path / "policies"), None, 3, 300, {}

    checkpointer = TrainingCheckpointer(checkpoint_dir, policy_store, wandb_run)

    # Save
    policy_record = checkpointer.save_policy(policy, epoch, metadata)
    checkpointer.save_trainer_state(agent_step, epoch, optimizer.state_dict(), run_dir)

    # Load
    checkpoint = checkpointer.load_trainer_state(run_dir)
    policy_record = checkpointer.load_policy(checkpoint, env)

    assert checkpoint.epoch == epoch
    assert policy_record.policy().action_space == env.action_space
