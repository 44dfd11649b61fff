"""Longer lives of runs on the command line: evaluations on the way, going on, matches, self-play."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from twostep.checkpoint import load_manifest, load_state, pack
from twostep.cli import main
from twostep.cli.locking import RunLock
from twostep.config import TrainingConfig
from twostep.every import Every
from twostep.stats.sinks import read_rows
from twostep.worlds.skirmish import load_replay

SMALL = ["--rollout_steps", "64", "--num_envs", "2", "--update_epochs", "1", "--hidden_size", "8", "--no-tensorboard"]
TEAM = [
    "skirmish",
    *SMALL,
    "--env.kwargs.team",
    "[light, heavy]",
    "--env.kwargs.max_seconds",
    "6",
    "--memory_size",
    "8",
]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def the_run() -> Path:
    (folder,) = Path("runs").iterdir()
    return folder


def test_thresholds_are_crossed_once_each():
    """LB10: however many steps lie between two questions, and wherever counting begins."""
    every = Every(100, step=250)
    assert [every.due(step) for step in (250, 299, 300, 301, 750, 799, 800)] == [0, 0, 1, 0, 1, 0, 1]
    assert not Every(0).due(10**9)


def test_evaluations_on_the_way_keep_the_best_agent(capsys):
    words = ["--total_timesteps", "600", "--eval_every", "200", "--eval_episodes", "3"]
    assert main(["train", "CartPole-v1", *SMALL, *words]) == 0
    rows = read_rows(the_run() / "evaluations.jsonl")
    assert [row["step"] for row in rows] == [256, 512, 640]
    assert all(row["episodes"] == 3 for row in rows)
    assert (the_run() / "best" / "manifest.json").exists()
    out = capsys.readouterr().out
    assert f"best {max(row['score'] for row in rows):.1f}" in out


def test_a_run_goes_on_where_it_stopped(capsys):
    """Counters, rows and the best evaluation go on; the settings of the whole run are kept."""
    words = ["--total_timesteps", "512", "--eval_every", "256", "--eval_episodes", "2"]
    assert main(["train", "CartPole-v1", *SMALL, *words]) == 0
    first = read_rows(the_run() / "metrics.jsonl")
    assert main(["resume", "--total_timesteps", "1024", "--no-progress"]) == 0
    rows = read_rows(the_run() / "metrics.jsonl")
    assert rows[: len(first)] == first
    assert [row["step"] for row in rows] == list(range(128, 1025, 128))
    assert [row["updates"] for row in rows] == list(range(1, 9))
    assert [row["step"] for row in read_rows(the_run() / "evaluations.jsonl")] == [256, 512, 768, 1024]
    assert TrainingConfig.from_yaml(the_run() / "config.yaml").trainer.total_timesteps == 1024
    assert "finished after 1,024 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resume", "nowhere"], "there is no folder 'nowhere'"),
        (["resume", "runs", "--memory", "gru"], "agent.memory cannot change in the middle of a run"),
        (["resume", "runs", "--env.id", "Acrobot-v1"], "env.id cannot change in the middle of a run"),
        (["resume", "a", "b"], "one word too many"),
    ],
)
def test_what_cannot_go_on_says_why_in_one_line(words, message, capsys):
    assert main(["train", "CartPole-v1", *SMALL, "--total_timesteps", "128"]) == 0
    capsys.readouterr()
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_a_team_is_trained_evaluated_and_gone_on_with(capsys):
    """E27: the same through the command line; win rates, replays, workers."""
    words = ["--total_timesteps", "500", "--eval_every", "250", "--eval_episodes", "4", "--num_workers", "1"]
    assert main(["train", *TEAM, *words]) == 0
    rows = read_rows(the_run() / "evaluations.jsonl")
    assert all(0 <= row["win_rate_low"] <= row["win_rate"] <= row["win_rate_high"] <= 1 for row in rows)
    replays = sorted((the_run() / "replays").iterdir())
    assert [int(path.stem.removeprefix("step_")) for path in replays] == [row["step"] for row in rows]
    assert len(load_replay(replays[0])["units"]) == 4
    assert main(["eval", "--episodes", "4"]) == 0
    assert main(["resume", "--total_timesteps", "700"]) == 0
    out, err = capsys.readouterr()
    assert "of matches won" in out
    assert err == ""


def test_self_play_keeps_its_league():
    """E34: past selves join as configured, are in the checkpoint, and are there again afterwards."""
    league = ["--snapshot_every", "200", "--league_size", "2", "--eval_every", "400", "--eval_episodes", "2"]
    assert main(["train", *TEAM, "--total_timesteps", "600", *league]) == 0
    newest = max((the_run() / "checkpoints").iterdir())
    manifest = json.loads((newest / "manifest.json").read_text())
    assert "companions" in json.dumps(manifest["structure"])
    assert main(["resume", "--total_timesteps", "900"]) == 0
    rows = read_rows(the_run() / "evaluations.jsonl")
    assert rows[-1]["league_size"] == 2


def times_left_out(rows):
    return [{name: value for name, value in row.items() if "time" not in name and "second" not in name} for row in rows]


def test_a_run_that_was_stopped_and_went_on_is_the_run_that_never_stopped(capsys):
    """C16, F24, L21: the same rows of metrics and evaluations, the same last checkpoint, through the command line."""
    words = ["--checkpoint_every", "200", "--eval_every", "256", "--eval_episodes", "2", "--num_workers", "1"]
    words += ["--lr_schedule", "cosine", "--normalize_obs", "--run_dir"]
    assert main(["train", "CartPole-v1", *SMALL, "--total_timesteps", "768", *words, "whole"]) == 0
    assert main(["train", "CartPole-v1", *SMALL, "--total_timesteps", "768", *words, "cut"]) == 0
    (whole,), (cut,) = Path("whole").iterdir(), Path("cut").iterdir()
    named = ["step_000000000512", "step_000000000640", "step_000000000768"]
    assert sorted(path.name for path in (cut / "checkpoints").iterdir()) == named
    assert main(["resume", str(cut / "checkpoints" / named[0]), "--num_workers", "0", "--no-progress"]) == 0
    for file in ("metrics.jsonl", "evaluations.jsonl"):
        assert times_left_out(read_rows(cut / file)) == times_left_out(read_rows(whole / file))
    one, other = (load_state(run / "checkpoints" / named[-1])[0] for run in (whole, cut))
    for state in (one, other):
        state["collection"]["running"]["envs"].pop("ledger", None)
    packs = pack(one), pack(other)
    assert packs[0][1] == packs[1][1]
    assert all(torch.equal(packs[0][0][name], packs[1][0][name]) for name in packs[0][0])
    left = [f"{name}.left" for name in named[1:]]
    assert {path.name for path in (cut / "checkpoints").iterdir()} == {*named, *left}
    out, err = capsys.readouterr()
    assert "episodes begin anew" not in out
    assert err == ""


def test_checkpoints_rotate_and_milestones_stay():
    """L22, LB10: one per crossing, of which the newest two and the first at every multiple of 512 are kept."""
    words = ["--total_timesteps", "1_408", "--checkpoint_every", "128", "--keep_last", "2", "--keep_every", "512"]
    assert main(["train", "CartPole-v1", *SMALL, *words]) == 0
    kept = sorted(int(path.name.removeprefix("step_")) for path in (the_run() / "checkpoints").iterdir())
    assert kept == [512, 1024, 1280, 1408]
    manifest = load_manifest(the_run() / "checkpoints" / "step_000000001408")
    assert manifest["config"]["env"]["id"] == "CartPole-v1"
    assert manifest["program"]["torch"] == torch.__version__


def test_a_damaged_checkpoint_is_passed_over_loudly(caplog, capsys):
    """B9: the warning names what is wrong and what is used instead; eval does the same."""
    assert main(["train", "CartPole-v1", *SMALL, "--total_timesteps", "512", "--checkpoint_every", "128"]) == 0
    newest = the_run() / "checkpoints" / "step_000000000512" / "tensors.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert main(["eval", "--episodes", "2"]) == 0
    assert "tensors.safetensors" in caplog.text
    assert "it is cut off. Going on from" in caplog.text
    assert main(["resume", "--total_timesteps", "640", "--no-progress"]) == 0
    assert [row["step"] for row in read_rows(the_run() / "metrics.jsonl")] == list(range(128, 641, 128))
    assert (the_run() / "checkpoints" / "step_000000000512.left").is_dir()
    assert "step_000000000512.left is kept under this name" in capsys.readouterr().out


def test_only_one_process_at_a_time_trains_in_a_folder(capsys):
    """B14: the second is refused in one line; a lock that a dead process left is none."""
    assert main(["train", "CartPole-v1", *SMALL, "--total_timesteps", "128"]) == 0
    capsys.readouterr()
    with RunLock(the_run()):
        assert main(["resume", "--total_timesteps", "256"]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert re.search(rf"is in use: process {os.getpid()} on .* trains there since", err)
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    about = {"pid": int(dead.stdout), "started": 1, "host": platform.node()}
    (the_run() / ".lock").write_text(json.dumps(about))
    assert main(["resume", "--total_timesteps", "256", "--no-progress"]) == 0
    assert not (the_run() / ".lock").exists()
    for about in ({"pid": 1, "started": 1, "host": "elsewhere"}, {"pid": os.getppid(), "host": platform.node()}):
        (the_run() / ".lock").write_text(json.dumps(about))
        assert main(["resume", "--total_timesteps", "384"]) == 2
        assert "delete" in capsys.readouterr().err
    (the_run() / ".lock").write_text("half a li")
    assert main(["resume", "--total_timesteps", "384", "--no-progress"]) == 0


def test_other_environments_begin_new_episodes_and_say_so(capsys):
    """C17."""
    assert main(["train", "CartPole-v1", *SMALL, "--total_timesteps", "128"]) == 0
    assert main(["resume", "--total_timesteps", "256", "--env.kwargs.sutton_barto_reward", "true"]) == 0
    assert "episodes begin anew: the environments are not the same" in capsys.readouterr().out
    assert main(["resume", "--total_timesteps", "384", "--num_envs", "3"]) == 0
    assert "episodes begin anew: there were 2 rows, and now are 3" in capsys.readouterr().out


LOCK = """
env: {id: "twostep.worlds.lock:CombinationLock", kwargs: {length: 3}, num_envs: 4}
curriculum:
  kind: success_rate
  score: success
  history: 3
  promote_above: 0.5
  demote_below: 0
  tasks: {short: {length: 1}, middle: {length: 2}, long: {length: 3}}
trainer: {total_timesteps: 1024}
logging: {tensorboard: false}
ppo: {rollout_steps: 32, update_epochs: 2, lr: 1e-2}
seed: 1
"""


def test_a_file_says_the_curriculum(tmp_path):
    """J42, M3: a YAML's tasks are played, written beside the other settings, logged, and gone on with."""
    (tmp_path / "lock.yaml").write_text(LOCK)
    assert main(["train", "lock.yaml"]) == 0
    config = TrainingConfig.from_yaml(the_run() / "config.yaml")
    assert config.curriculum.tasks == {"short": {"length": 1}, "middle": {"length": 2}, "long": {"length": 3}}
    rows = read_rows(the_run() / "metrics.jsonl")
    assert rows[-1]["curriculum/level"] > 0
    played = [sum(row[f"curriculum/attempts/{name}"] for name in config.curriculum.tasks) for row in rows]
    assert played == [row["episodes"] for row in rows]
    assert main(["resume", "--total_timesteps", "1280"]) == 0
    later = read_rows(the_run() / "metrics.jsonl")[-1]
    assert later["curriculum/attempts/short"] >= rows[-1]["curriculum/attempts/short"] > 0
    assert later["curriculum/level"] > 0


def test_sequences_that_no_rollout_holds_are_refused(capsys):
    """L14: they would be cut, and the length that was asked for never be."""
    words = ["--memory=gru", "--rollout_steps=24", "--bptt_length=32"]
    assert main(["train", "CartPole-v1", *words]) == 2
    assert "bptt_length=32 must be at most rollout_steps=24" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--curriculum.kind", "succes_rate"], "Did you mean 'success_rate'?"),
        (["--curriculum", "staged", "--curriculum.tasks.one.length", "1"], "after=(0.3, 0.6) must be 0 rising parts"),
        (["--curriculum.knd", "uniform"], "Did you mean --curriculum.kind?"),
        (["--curriculum", "uniform"], "curriculum.tasks={} must name what kind='uniform' chooses from"),
        (["--curriculum.kind", "terrain_grid", "--curriculum.num_levels", "0"], "num_levels=0 must be 1 or more"),
    ],
)
def test_curricula_that_cannot_work_say_why_in_one_line(words, message, capsys):
    assert main(["train", "twostep.worlds.lock:CombinationLock", *SMALL, *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
