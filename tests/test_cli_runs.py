"""Longer lives of runs on the command line: evaluations on the way, going on, matches, self-play."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twostep.cli import main
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
    manifest = json.loads((the_run() / "checkpoint" / "manifest.json").read_text())
    assert "companions" in json.dumps(manifest["structure"])
    assert main(["resume", "--total_timesteps", "900"]) == 0
    rows = read_rows(the_run() / "evaluations.jsonl")
    assert rows[-1]["league_size"] == 2
