"""Training on robots: the settings that ship, going on in the middle of a run, and the script of phase 1."""

import importlib.util
import json
import math
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from twostep import PPOTrainer, make_env, make_policy
from twostep.cli import main
from twostep.collect.collector import RolloutCollector
from twostep.config import shipped_config
from twostep.stats.sinks import read_rows
from twostep.tree import tree_leaves
from twostep.tuning.space import with_params

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "train_phase1.py"
SMALL = {
    "num_envs": 4,
    "memory_size": 16,
    "rollout_steps": 12,
    "bptt_length": 6,
    "minibatch_sequences": 4,
    "update_epochs": 2,
    "agent.encoders": {"scandots": [8]},
    "action_hidden": [8],
    "value_hidden": [8],
}


def a_trainer(**changes):
    config = shipped_config("phase1_monolithic", SMALL | changes)
    kwargs = config.env.kwargs | {"max_seconds": 0.3, "num_levels": 3, "chance": {"bodies": 2}}
    config.curriculum.num_levels = 3
    env = make_env("quadruped", num_envs=config.env.num_envs, seed=3, **kwargs)
    return PPOTrainer.from_config(config, env, make_policy(env, config.agent, seed=3), device="cpu")


def test_memory_is_what_is_written_down_and_grows_with_the_rows(tmp_path):
    """L23: bytes of a row in a rollout of phase 1, and what a run is expected to reach and take, stand in the docs."""
    sizes = {}
    for rows in (2, 4):
        config = shipped_config("phase1_monolithic", {"num_envs": rows})
        env = make_env("quadruped", rows, seed=0, **config.env.kwargs, threads=1, chance={"bodies": 1})
        collector = RolloutCollector(env, make_policy(env, config.agent, seed=0), device="cpu", seed=0)
        collector.bptt_length = config.ppo.bptt_length
        rollout = collector.make_experience(config.ppo.rollout_steps)
        parts = (leaf for field in fields(rollout) for leaf in tree_leaves(getattr(rollout, field.name)))
        sizes[rows] = sum(leaf.nbytes for leaf in parts if isinstance(leaf, torch.Tensor))
        env.close()
    assert sizes[4] == 2 * sizes[2]
    page = (Path(__file__).resolve().parents[3] / "docs" / "quadruped.md").read_text()
    assert f"{sizes[2] // 2:,} bytes in a rollout of\nphase 1 ({config.ppo.rollout_steps} steps)" in page
    assert "a million steps each, 2 to 7 minutes\non one core" in page
    runs = json.loads((Path(__file__).resolve().parents[3] / "docs" / "quadruped" / "walking.json").read_text())
    for run in runs:
        assert f"| {run['seed']} | {100 * run['scores']['progress']:.1f} % |" in page
    assert 2 <= min(run["seconds"] for run in runs) / 60 <= max(run["seconds"] for run in runs) / 60 <= 7


def test_the_settings_of_phase_1_are_those_that_were_written_down():
    """L12, L13, L14, L15, LB3, LB13: every hyperparameter is a setting, read as a number, and reaches the trainer."""
    config = shipped_config("phase1_monolithic")
    ppo = config.ppo
    assert (ppo.lr, ppo.update_epochs, ppo.clip_coef, ppo.ent_coef, ppo.vf_coef) == (3e-4, 10, 0.2, 0.01, 0.5)
    assert (ppo.max_grad_norm, ppo.bptt_length, ppo.gamma, ppo.gae_lambda) == (1.0, 24, 0.99, 0.95)
    assert ppo.minibatch_size == 64 * 24
    assert (ppo.lr_schedule, ppo.lr_min_ratio, ppo.optimizer, ppo.clip_vloss) == ("cosine", 0.1, "adamw", True)
    assert (config.agent.memory, config.agent.memory_size, config.agent.shared) == ("gru", 256, True)
    assert (config.trainer.total_timesteps, config.trainer.checkpoint_every) == (15_000_000_000, 1_000_000)
    trainer = a_trainer()
    assert isinstance(trainer.optimizer, torch.optim.AdamW)


def test_going_on_in_the_middle_of_a_run_is_never_having_stopped(tmp_path):
    """L22, LB9: weights, environments, curriculum and statistics go on bit for bit from a checkpoint."""
    whole = a_trainer()
    whole.train(96)
    whole.save_checkpoint(tmp_path / "middle")
    rest = whole.train(192)
    again = a_trainer()
    again.load_checkpoint(tmp_path / "middle")
    assert again.restart_reason == ""
    resumed = again.train(192)
    untimed = [name for name in rest if "time" not in name and "per_second" not in name]
    np.testing.assert_equal({name: rest[name] for name in untimed}, {name: resumed[name] for name in untimed})
    for one, other in zip(whole.policy.parameters(), again.policy.parameters(), strict=True):
        assert torch.equal(one, other)
    assert math.isfinite(rest["episode/reward_velocity"][-1])
    assert {"curriculum/level/stairs", "episode/success"} <= set(rest)


@pytest.mark.parametrize("rows", [2, 6])
def test_the_learning_rate_ends_at_a_tenth(rows):
    """L14, LB8: whatever the number of rows, the cosine schedule ends with the last step."""
    trainer = a_trainer(num_envs=rows)
    trainer.train(rows * 12 * 3)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(3e-5, rel=0.01)


def test_the_script_trains_goes_on_and_shows_levels(tmp_path, capsys):
    """L19, L20, L21, L26, LB10: config, device and resume; as many checkpoints as thresholds; levels in the picture."""
    spec = importlib.util.spec_from_file_location("train_phase1", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    options = ["--num_envs", "4", "--memory_size", "8", "--bptt_length", "6", "--rollout_steps", "12"]
    options += ["--update_epochs", "1", "--env.kwargs.max_seconds", "0.2", "--no-progress", "--no-tensorboard"]
    options += ["--env.kwargs.chance.bodies", "1", "--env.kwargs.num_levels", "3", "--curriculum.num_levels", "3"]
    config = str(SCRIPT.parent.parent / "configs" / "phase1_monolithic.yaml")
    args = ["--config", config, "--device", "cpu", "--run_dir", str(tmp_path), "--checkpoint_every", "96"]
    assert script.main([*args, *options, "--total_timesteps", "192"]) == 0
    (run,) = tmp_path.iterdir()
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept == ["step_000000000096", "step_000000000192"]
    assert script.main(["--device", "cpu", "--resume", str(run / "checkpoints" / kept[0]), "--no-progress"]) == 0
    rows = read_rows(run / "metrics.jsonl")
    assert [row["timesteps"] for row in rows] == [48, 96, 144, 192]
    assert (run / "learning_curve.png").stat().st_size > 10_000
    assert main(["train", "phase1_monolithic", "--config.nonsense", "1"]) == 2
    assert "twostep:" in capsys.readouterr().err


def test_phase_2_is_in_the_world_of_phase_1():
    """L1, L26: the student walks on what the teacher was taught on, and sees it in the same scale."""
    first, second = shipped_config("phase1_monolithic"), shipped_config("phase2_student")
    assert second.env.kwargs == first.env.kwargs | {"scandots": True, "depth": True}
    assert second.curriculum == first.curriculum
    assert second.ppo.normalize_obs == first.ppo.normalize_obs


def test_rollouts_of_phase_1_are_whole_sequences_of_all_lengths_of_the_grid():
    """L28: else some of the 81 points would be the same."""
    config = shipped_config("phase1_monolithic")
    for length in (16, 24, 32):
        ppo = with_params(config, {"ppo.bptt_length": length}).ppo
        assert ppo.rollout_steps % ppo.bptt_length == 0
        assert ppo.minibatch_size == 64 * length


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--env.kwargs.num_levels 3", r"curriculum.num_levels=10 must be env.kwargs.num_levels=3.*--curriculum"),
        ("--curriculum.num_levels 3", r"curriculum.num_levels=3 must be env.kwargs.num_levels=10.*--env.kwargs"),
        ("--env.kwargs.terrains flat,gaps", r"curriculum.terrains=.* must be env.kwargs.terrains=flat,gaps"),
    ],
)
def test_a_curriculum_leads_over_the_terrains_that_are_there(words, said, tmp_path, capsys):
    """L26: neither to what is missing, in the middle of a run, nor past what is never reached."""
    assert main(["train", "phase1_monolithic", "--run_dir", str(tmp_path / "runs"), *words.split()]) == 2
    assert re.search(said, capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()
