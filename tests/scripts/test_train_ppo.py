"""The script of the team game: its functions, its folder, going on, self-play."""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import grimp
import pytest

import twostep
from twostep import EvalStats, VectorEnv
from twostep.cli import main as command
from twostep.evaluation.matches import FIRST_OWN_SEED
from twostep.stats import sinks
from twostep.stats.sinks import read_rows
from twostep.worlds.skirmish import EnvConfig, load_replay

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "train_ppo.py"
TINY = ["--num-envs", "2", "--num-workers", "1", "--rollout-steps", "16", "--bptt-length", "8", "--hidden-size", "8"]
TINY += ["--team", "light", "heavy", "--episode-seconds", "6", "--update-epochs", "1", "--eval-episodes", "4"]
TINY += ["--start-method", "forkserver"]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("train_ppo", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_times(rows):
    return [{name: value for name, value in row.items() if name not in ("time", "steps_per_second")} for row in rows]


HOMES = {
    "twostep.vector": ["VectorEnv"],
    "twostep.rollout": ["RolloutBuffer"],
    "twostep.learn": ["PPOConfig", "PPOOptimizer"],
    "twostep.normalization": ["RunningMeanStd", "ReturnNormalizer"],
    "twostep.evaluation": ["EvalStats", "evaluate_vs_heuristic"],
}
"""What such a package is made of, and where."""
MAY_USE = {"twostep.learn": {"twostep.rollout", "twostep.normalization"}, "twostep.evaluation": {"twostep.vector"}}


def test_every_part_has_a_module_of_its_own():
    """E1, E2: none of them needs another to be read or tested, but those that work on what the other makes."""
    graph = grimp.build_graph("twostep", exclude_type_checking_imports=True)
    for home, names in HOMES.items():
        assert all(getattr(twostep, name).__module__.startswith(home) for name in names)
        needed = graph.find_upstream_modules(home, as_package=True)
        used = {other for other in HOMES if any(module == other or module.startswith(f"{other}.") for module in needed)}
        assert used - {home} <= MAY_USE.get(home, set()), home


def test_the_script_stays_short():
    """E1, E28, E31: one page of orchestration, which takes every part from the library."""
    text = SCRIPT.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    tree = ast.parse(text)
    assert [node.name for node in tree.body if isinstance(node, ast.ClassDef)] == ["Logger"]
    taken = {name.name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert {"VectorEnv", "PPOTrainer", "PPOConfig", "evaluate_vs_heuristic"} <= taken
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {"parse_args", "build_config", "setup_logging", "save_checkpoint", "main"} <= functions


OLD_FLAGS = (
    *("--seed", "3", "--device", "cpu", "--num-envs", "1", "--packs-per-team", "1", "--size", "50", "--dt-sim", "0.1"),
    *("--decision-repeat", "5", "--episode-seconds", "4", "--rollout-steps", "16", "--updates", "2", "--lr", "1e-3"),
    *("--gamma", "0.98", "--gae-lambda", "0.9", "--clip-coef", "0.1", "--ent-coef", "0.02", "--vf-coef", "0.4"),
    *("--max-grad-norm", "0.7", "--update-epochs", "1", "--eval-every", "2", "--eval-episodes", "2"),
    *("--eval-seeds", "5,6", "--save-eval-replay", "--save-every", "1", "--train-mode", "heuristic"),
    *("--wandb", "--wandb-mode", "offline", "--wandb-project", "arena", "--wandb-entity", "team"),
    *("--wandb-run-name", "experiment-01", "--wandb-group", "nightly", "--wandb-tags", "a", "b"),
    *("--wandb-id", "x1", "--wandb-resume", "allow"),
)


def test_the_flags_that_such_a_script_always_had_parse_and_run(script, tmp_path, monkeypatch):
    """E27, E33: what users have in their shell history still trains, evaluates, saves and reports."""
    pretend = PretendWandb()
    monkeypatch.setattr(sinks, "_wandb", lambda: pretend)
    words = [*OLD_FLAGS, "--run-dir", str(tmp_path / "run"), "--num-workers", "1", "--start-method", "forkserver"]
    env_cfg, ppo_cfg = script.build_config(script.parse_args(words))
    assert env_cfg == EnvConfig(size=50, tick_seconds=0.1, ticks_per_step=5, max_seconds=4)
    expected = {"lr": 1e-3, "gamma": 0.98, "gae_lambda": 0.9, "clip_coef": 0.1, "ent_coef": 0.02, "vf_coef": 0.4}
    assert {name: getattr(ppo_cfg, name) for name in expected} == expected
    assert (ppo_cfg.max_grad_norm, ppo_cfg.update_epochs, ppo_cfg.lr_schedule) == (0.7, 1, "linear")
    assert script.main(words) == 0
    assert load_replay(tmp_path / "run" / "replays" / "update_00002.npz")["seed"] == 5
    names = ("mode", "project", "entity", "name", "group", "tags", "id", "resume")
    assert [pretend.begun[name] for name in names] == [
        *("offline", "arena", "team", "experiment-01", "nightly", ["a", "b"], "x1", "allow"),
    ]
    assert (tmp_path / "run" / "wandb_run_id.txt").read_text() == "run-7\n"


def test_every_setting_of_ppo_can_be_given(script, tmp_path, capsys):
    """E27: read as everywhere, and refused as everywhere."""
    base = ["--run-dir", str(tmp_path)]
    words = ["--target-kl", "0.02", "--norm-adv", "minibatch", "--clip-vloss", "--lr-schedule", "cosine"]
    words += ["--normalize-obs", "--normalize-returns", "false", "--minibatch-size", "64", "--max-grad-norm", "inf"]
    _, ppo_cfg = script.build_config(script.parse_args([*base, *words, "--adaptive-minibatch", "32,512"]))
    assert ppo_cfg == replace(
        script.TEAM_PPO, target_kl=0.02, norm_adv="minibatch", clip_vloss=True, lr_schedule="cosine",
        normalize_obs=True, normalize_returns=False, minibatch_size=64, max_grad_norm=math.inf,
        adaptive_minibatch=(32, 512),
    )  # fmt: skip
    assert script.build_config(script.parse_args(base))[1] == script.TEAM_PPO
    with pytest.raises(SystemExit, match="2"):
        script.parse_args([*base, "--norm-adv", "some"])
    assert "norm_adv='some' must be one of batch, minibatch, none" in capsys.readouterr().err


def test_a_run_and_going_on_with_it(script, tmp_path, capsys):
    """E28, E29, E31, EB13: the folder's files, no evaluation before the first update, what resuming goes on from."""
    folder = tmp_path / "run"
    place = ["--run-dir", str(folder)]
    assert script.main([*TINY, *place, "--eval-every", "2", "--updates", "4", "--save-every", "2"]) == 0
    assert {path.name for path in folder.iterdir()} == {
        *("config.json", "config.yaml", "metrics.jsonl", "checkpoints", "best", "best.json", "replays"),
    }
    told = (folder / "config.json").read_text()
    assert json.loads(told)["updates"] == 4
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "step_000000000128",
        "step_000000000256",
    ]
    rows = read_rows(folder / "metrics.jsonl")
    assert [row["type"] for row in rows] == ["start", "update", "update", "eval", "update", "update", "eval"]
    assert [row["update"] for row in rows if row["type"] == "update"] == [1, 2, 3, 4]
    evaluated = [row for row in rows if row["type"] == "eval"]
    assert [row["update"] for row in evaluated] == [2, 4]
    best = max(evaluated, key=lambda row: (row["eval/win_rate"], row["eval/mean_hp_margin"]))
    kept = json.loads((folder / "best.json").read_text())
    assert (kept["win_rate"], kept["mean_hp_margin"]) == (best["eval/win_rate"], best["eval/mean_hp_margin"])
    assert load_replay(folder / "replays" / "update_00004.npz")["seed"] >= FIRST_OWN_SEED, "no match of training"

    assert script.main([*place, "--updates", "6", "--eval-every", "0", "--resume", "latest"]) == 0
    updates = [row for row in read_rows(folder / "metrics.jsonl") if row["type"] == "update"]
    assert [row["update"] for row in updates] == [1, 2, 3, 4, 5, 6]
    assert (folder / "config.json").read_text() == told, "what the run began with"
    for named in (folder / "checkpoints" / "step_000000000128", folder / "best"):
        assert script.main(["--resume", str(named)]) == 0
        again = [row for row in read_rows(folder / "metrics.jsonl") if row["type"] == "update"]
        assert without_times(again) == without_times(updates[:4]), "with the settings of the run"
    assert "update     4" in capsys.readouterr().out


def test_a_run_that_ended_early_is_the_one_that_goes_on(script, tmp_path):
    """EB11: a signal ends it after its update, with everything saved."""
    folder = tmp_path / "run"
    words = [*TINY, "--run-dir", str(folder), "--eval-every", "0"]
    end = mock.Mock(side_effect=lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with mock.patch.object(script.Logger, "log_update", end):
        assert script.main([*words, "--updates", "9"]) == 128 + signal.SIGTERM
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step_000000000064"]


def test_runs_are_not_mixed(script, tmp_path, capsys):
    """E29: one line and code 2 for a folder that holds a run, for a run that is none, for what cannot change."""
    folder, words = tmp_path / "run", [*TINY, "--updates", "1", "--eval-every", "0"]
    assert script.main([*words, "--run-dir", str(folder)]) == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for wrong, line in (
        ([*words, "--run-dir", str(folder)], "run holds a run: go on with --resume latest, or give another --run-dir"),
        (["--resume", "latest", "--run-dir", str(tmp_path)], "is in no run's folder. Leave --resume out"),
        (["--resume", str(folder / "checkpoints" / "step_9")], "step_9.* cannot be read"),
        (["--resume", str(folder), "--hidden-size", "16"], "--hidden-size=16, but this run has 8, which cannot change"),
        (["--resume", str(folder), "--team", "scout"], r"--team=\['scout'\], but this run has \['light', 'heavy'\]"),
        (["--resume", str(folder), "--size", "70"], "--size=70.* but this run has 60"),
        ([*words, "--run-dir", str(tmp_path / "new"), "--size", "3"], "size=3.* must be between 30 and 1000"),
    ):
        capsys.readouterr()
        assert script.main(wrong) == 2
        said = capsys.readouterr().err
        assert re.search(line, said)
        assert said.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("mode", ["heuristic", "arena"])
def test_the_command_takes_the_folder_of_the_script(script, tmp_path, capsys, mode):
    """E29: twostep eval and twostep play, with the agent that was trained."""
    folder = tmp_path / "run"
    words = [*TINY, "--run-dir", str(folder), "--updates", "2", "--train-mode", mode, "--arena-every", "1"]
    assert script.main([*words, "--eval-every", "2"]) == 0
    capsys.readouterr()
    assert command(["eval", str(folder), "--episodes", "2"]) == 0
    assert "2 matches of skirmish" in capsys.readouterr().out
    assert command(["play", str(folder), "--no_animation"]) == 0
    assert (folder / "update_00002.html").is_file()
    assert command(["play", str(folder), "--no_animation", "--seed", "4"]) == 0
    assert (folder / "match_seed_4.html").is_file()


def test_the_same_seed_gives_the_same_run_for_any_number_of_workers(script, tmp_path):
    """EB11: nothing is drawn from unseeded randomness."""
    rows = []
    for workers in ("1", "2"):
        folder = tmp_path / workers
        script.main([*TINY, "--run-dir", str(folder), "--updates", "3", "--eval-every", "3", "--num-workers", workers])
        rows.append(without_times(read_rows(folder / "metrics.jsonl")))
    assert rows[0] == rows[1]


def test_self_play_adds_past_selves_and_keeps_them(script, tmp_path):
    """E34, EB12: copies join the league, checkpoints hold them, and matches are played against them."""
    folder = tmp_path / "arena"
    base = [*TINY, "--run-dir", str(folder), "--eval-every", "0", "--train-mode", "arena", "--arena-every", "1"]
    script.main([*base, "--updates", "2"])
    args = script.parse_args(["--resume", str(folder)])
    _, ppo_cfg = script.build_config(args)
    with VectorEnv(2, script.build_config(args)[0], num_workers=1, agent_ids="*", start_method="forkserver") as vec_env:
        trainer, _ = script.make_trainer(args, ppo_cfg, vec_env)
        trainer.load_checkpoint(folder / "checkpoints" / "step_000000000128")
        assert [member.name for member in trainer.companions["league"].members] == ["update_1", "update_2"]
    assert script.main(["--resume", str(folder), "--updates", "3"]) == 0


def test_without_wandb_the_run_goes_on(script, tmp_path, monkeypatch, caplog):
    """E27, E28: a service that is not there costs one warning."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    folder = tmp_path / "run"
    script.main([*TINY, "--run-dir", str(folder), "--updates", "2", "--eval-every", "0", "--wandb"])
    assert [row["type"] for row in read_rows(folder / "metrics.jsonl")] == ["start", "update", "update"]
    assert [record.message for record in caplog.records if "wandb" in record.message.lower()]


class PretendWandb:
    """As much of wandb as the sink calls."""

    def __init__(self):
        self.begun, self.rows, self.finished, self.id = {}, [], 0, "run-7"

    def init(self, **settings):
        self.begun = settings
        return self

    def log(self, row, step):
        self.rows.append((step, row))

    def finish(self):
        self.finished += 1


def test_wandb_gets_every_row(script, tmp_path, monkeypatch):
    """E27, E28: named runs, offline unless asked otherwise, finished at the end."""
    pretend = PretendWandb()
    monkeypatch.setattr(sinks, "_wandb", lambda: pretend)
    words = ["--updates", "2", "--eval-every", "2", "--wandb", "--wandb-run-name", "experiment-01"]
    script.main([*TINY, "--run-dir", str(tmp_path), *words])
    assert (pretend.begun["mode"], pretend.begun["name"]) == ("offline", "experiment-01")
    assert pretend.begun["config"]["team"] == ["light", "heavy"]
    names = {name for _, row in pretend.rows for name in row}
    assert {"train/policy_loss", "eval/win_rate"} <= names
    assert pretend.finished == 1


def test_the_logger_writes_what_it_is_given(script, tmp_path, capsys):
    """E29: log_update and log_eval, each a row."""
    logger, wandb = script.setup_logging(script.parse_args(["--run-dir", str(tmp_path)]), tmp_path)
    metrics = dict.fromkeys(
        ("mean_reward", "policy_loss", "value_loss", "entropy", "approx_kl", "steps_per_second"), 1.0
    )
    logger.log_update(1, metrics | {"timesteps": 64.0})
    logger.log_eval(1, EvalStats(win_rate=0.5, mean_hp_margin=0.1, mean_episode_length=30.0, episodes=4), 64)
    logger.close()
    assert wandb is None
    _, first, second = read_rows(tmp_path / "metrics.jsonl")
    assert (first["step"], second["step"], second["eval/win_rate"]) == (64, 64, 0.5)
    assert "2 of 4 matches won" in capsys.readouterr().out
