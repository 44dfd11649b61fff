"""The script of the team game: its functions, its folder, going on, self-play."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from twostep import EvalStats, VectorEnv
from twostep.stats import sinks
from twostep.stats.sinks import read_rows
from twostep.worlds.skirmish import EnvConfig, load_replay

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "train_ppo.py"
TINY = ["--num-envs", "2", "--num-workers", "1", "--rollout-steps", "16", "--bptt-length", "8", "--hidden-size", "8"]
TINY += ["--team", "light", "heavy", "--episode-seconds", "6", "--update-epochs", "1", "--eval-episodes", "4"]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("train_ppo", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_times(rows):
    return [{name: value for name, value in row.items() if name not in ("time", "steps_per_second")} for row in rows]


def test_the_script_stays_short():
    """E1, E2, E31: one page of orchestration; what it does stands in the library."""
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 250
    functions = ("parse_args", "build_config", "setup_logging", "save_checkpoint", "main")
    assert all(any(line.startswith(f"def {name}(") for line in lines) for name in functions)


def test_flags_become_settings(script):
    """E27, E28: matches and PPO as the command line says, the rest as it was."""
    words = ["--size", "100", "--updates", "200", "--lr", "1e-4", "--update-epochs", "2", "--control", "continuous"]
    env_cfg, ppo_cfg = script.build_config(script.parse_args([*words, "--team", "scout", "heavy"]))
    assert env_cfg == EnvConfig(size=100, control="continuous", team=("scout", "heavy"))
    assert (ppo_cfg.lr, ppo_cfg.update_epochs, ppo_cfg.lr_schedule) == (1e-4, 2, "linear")
    args = script.parse_args(["--wandb", "--wandb-run-name", "experiment-01"])
    assert (args.wandb, args.wandb_run_name, args.wandb_mode) == (True, "experiment-01", "offline")


def test_a_run_and_going_on_with_it(script, tmp_path, capsys):
    """E28, E29, E31, EB13: the folder's files, no evaluation before the first update, what resuming goes on from."""
    folder = tmp_path / "run"
    base = [*TINY, "--run-dir", str(folder), "--eval-every", "2"]
    script.main([*base, "--updates", "4", "--save-every", "2"])
    assert {"config.json", "metrics.jsonl", "checkpoints", "best", "best.json", "replays"} == {
        path.name for path in folder.iterdir()
    }
    assert json.loads((folder / "config.json").read_text())["updates"] == 4
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["update_00002", "update_00004"]
    rows = read_rows(folder / "metrics.jsonl")
    assert [row["update"] for row in rows if "policy_loss" in row] == [1, 2, 3, 4]
    evaluated = [row for row in rows if "eval/win_rate" in row]
    assert [row["update"] for row in evaluated] == [2, 4]
    best = max(evaluated, key=lambda row: (row["eval/win_rate"], row["eval/mean_hp_margin"]))
    kept = json.loads((folder / "best.json").read_text())
    assert (kept["win_rate"], kept["mean_hp_margin"]) == (best["eval/win_rate"], best["eval/mean_hp_margin"])
    assert load_replay(folder / "replays" / "update_00004.npz")["seed"] == script.EVAL_SEED

    script.main([*base, "--updates", "6", "--eval-every", "0", "--resume", "latest"])
    rows = read_rows(folder / "metrics.jsonl")
    assert [row["update"] for row in rows if "policy_loss" in row] == [1, 2, 3, 4, 5, 6]
    script.main([*base, "--updates", "5", "--resume", str(folder / "checkpoints" / "update_00002")])
    steps = [row["step"] for row in read_rows(folder / "metrics.jsonl") if "policy_loss" in row]
    assert steps == sorted(set(steps))
    assert "update     5" in capsys.readouterr().out


def test_resuming_from_nothing_says_so(script, tmp_path):
    with pytest.raises(SystemExit, match=r"no checkpoint in .*leave --resume out"):
        script.main([*TINY, "--run-dir", str(tmp_path), "--updates", "1", "--resume", "latest"])


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
    folder = tmp_path / "league"
    base = [*TINY, "--run-dir", str(folder), "--eval-every", "0", "--train-mode", "league", "--league-every", "1"]
    script.main([*base, "--updates", "2"])
    args = script.parse_args([*base, "--updates", "2"])
    env_cfg, ppo_cfg = script.build_config(args)
    with VectorEnv(2, env_cfg, num_workers=1, agent_ids="*") as vec_env:
        trainer, _ = script.make_trainer(args, env_cfg, ppo_cfg, vec_env)
        trainer.load_checkpoint(folder / "checkpoints" / "update_00002")
        assert [member.name for member in trainer.companions["league"].members] == ["update_1", "update_2"]
    script.main([*base, "--updates", "3", "--resume", "latest"])


def test_without_wandb_the_run_goes_on(script, tmp_path, monkeypatch, caplog):
    """E27, E28: a service that is not there costs one warning."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    folder = tmp_path / "run"
    script.main([*TINY, "--run-dir", str(folder), "--updates", "2", "--eval-every", "0", "--wandb"])
    assert len(read_rows(folder / "metrics.jsonl")) == 2
    assert [record.message for record in caplog.records if "wandb" in record.message.lower()]


class PretendWandb:
    """As much of wandb as the sink calls."""

    def __init__(self):
        self.begun, self.rows, self.finished = {}, [], 0

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
    args = script.parse_args(["--run-dir", str(tmp_path)])
    logger, wandb = script.setup_logging(args, tmp_path)
    metrics = dict.fromkeys(
        ("mean_reward", "policy_loss", "value_loss", "entropy", "approx_kl", "steps_per_second"), 1.0
    )
    logger.log_update(1, metrics | {"timesteps": 64.0})
    logger.log_eval(1, EvalStats(win_rate=0.5, mean_hp_margin=0.1, mean_episode_length=30.0, episodes=4), 64)
    logger.sinks.close()
    assert wandb is None
    first, second = read_rows(tmp_path / "metrics.jsonl")
    assert (first["step"], second["step"], second["eval/win_rate"]) == (64, 64, 0.5)
    assert "2 of 4 matches won" in capsys.readouterr().out
