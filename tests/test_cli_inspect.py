"""`twostep inspect`: rollouts, folders of them, checkpoints and runs; and what cannot be looked at."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from twostep import save_rollouts
from twostep.checkpoint import save_state
from twostep.cli import main

SMALL = ["--rollout_steps", "32", "--num_envs", "2", "--update_epochs", "1", "--hidden_size", "8", "--no-tensorboard"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def rollout(collected):
    return collected(num_steps=32)[0]


def test_a_rollout(rollout, capsys):
    """J42: everything about it on the terminal, and a picture beside it."""
    rollout.compute_gae()
    path = save_rollouts(rollout, "data/rollout.safetensors")
    assert main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    returns = [episode.ret for episode in rollout.episodes]
    assert "32 steps x 4 rows = 128 transitions, 100.0% of them valid" in out
    assert f"{len(returns)} complete" in out
    assert f"from {min(returns):.0f} to {max(returns):.0f}" in out
    assert "after 0 updates" in out
    assert "explained variance" in out
    for column in ("obs", "actions", "logprobs", "next_values", "advantages"):
        assert f"\n  {column} " in out
    for choice in (0, 1):
        assert f"{float((rollout.actions == choice).float().mean()):.1%}" in out
    assert "Every reward is 1" in out
    assert "picture: data/rollout.png" in out
    assert Path("data/rollout.png").stat().st_size > 20_000
    assert all(len(line) <= 120 for line in out.splitlines())


def test_where_the_picture_goes(rollout, capsys):
    """J42: elsewhere on request, or nowhere."""
    save_rollouts(rollout, "rollout.safetensors")
    assert main(["inspect", "rollout.safetensors", "--no_plot"]) == 0
    assert not list(Path().glob("*.png"))
    assert main(["inspect", "rollout.safetensors", "--out", "pictures/mine.png"]) == 0
    assert Path("pictures/mine.png").is_file()
    Path("file").write_text("in the way")
    assert main(["inspect", "rollout.safetensors", "--out", "file/mine.png"]) == 2
    assert "no picture can be written to 'file/mine.png'" in capsys.readouterr().err


def test_no_picture_where_nothing_can_be_written(rollout, capsys):
    """J42: what can be said is said."""
    save_rollouts(rollout, "rollout.safetensors")
    Path("rollout.png").mkdir()
    assert main(["inspect", "rollout.safetensors"]) == 0
    out = capsys.readouterr().out
    assert "no picture" in out
    assert "128 transitions" in out


def test_a_run_its_rollouts_and_its_checkpoint(capsys):
    """J12, J42: a run that keeps its experience and learns from it again, looked at from outside to inside."""
    words = ["--total_timesteps", "320", "--replay_ratio", "0.5", "--save_rollouts", "3"]
    assert main(["train", "CartPole-v1", *SMALL, *words]) == 0
    (folder,) = Path("runs").iterdir()
    names = [path.name for path in sorted((folder / "rollouts").iterdir())]
    assert names == [f"step_{steps:012d}.safetensors" for steps in (192, 256, 320)]
    capsys.readouterr()

    assert main(["inspect"]) == 0
    out = capsys.readouterr().out
    for part in ("CartPole-v1", "320 of 320 steps (100%)", "50% of the last update", "3 rollouts", "policy moves"):
        assert part in out
    newest = f"{folder}/checkpoints/step_000000000320"
    assert f"1ofthem:twostepinspect{newest}" in "".join(out.split()), "wrapped, as it is long"

    assert main(["inspect", f"{folder}/rollouts"]) == 0
    out = capsys.readouterr().out
    assert "3 rollouts, the newest is shown" in out
    assert f"{names[-1]}\n" in out
    assert "after 4 updates" in out

    assert main(["inspect", newest]) == 0
    out = capsys.readouterr().out
    for part in ("policy_state_dict", "optimizer_state_dict", "total_timesteps", "320", "All numbers are finite"):
        assert part in out

    assert main(["resume", "--total_timesteps", "384"]) == 0
    names = [path.name for path in sorted((folder / "rollouts").glob("*.safetensors"))]
    assert names == [f"step_{steps:012d}.safetensors" for steps in (256, 320, 384)]


def test_a_spoilt_state_is_called_so(capsys):
    """J42."""
    save_state("spoilt", {"weights": torch.tensor([1.0, float("nan")]), "steps": 3})
    assert main(["inspect", "spoilt"]) == 0
    assert "weights holds 1 numbers that are NaN" in capsys.readouterr().out


def damaged(rollout):
    path = save_rollouts(rollout, "damaged.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut_off(rollout):
    path = save_rollouts(rollout, "cut.safetensors")
    path.write_bytes(path.read_bytes()[:-7])


def pickled(rollout):
    torch.save(rollout.to_dict(), "old.pt")


def damaged_state(_):
    save_state("state", {"weights": torch.ones(3)})
    path = Path("state/tensors.safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"x")


WRONG = {
    "damaged": (damaged, ["damaged.safetensors"], "damaged.safetensors is damaged"),
    "cut off": (cut_off, ["cut.safetensors"], "is not a whole rollout file"),
    "a pickle": (pickled, ["old.pt"], "twostep.save_rollouts(torch.load('old.pt', weights_only=True), 'old.safe"),
    "a damaged state": (damaged_state, ["state"], "is damaged"),
    "not there": (None, ["nowhere.safetensors"], "no rollout file at nowhere.safetensors"),
    "an empty folder": (lambda _: Path("empty").mkdir(), ["empty"], "holds no run"),
    "words": (lambda _: Path("a.safetensors").write_text("words"), ["a.safetensors"], "not a whole rollout file"),
    "an unknown option": (None, ["x", "--plots"], "--plots is no option of inspect. Did you mean --plot"),
    "two words": (None, ["a", "b"], "one word too many"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_looked_at(rollout, capsys, case):
    """J38, J42, JB15: one line on stderr that names it, and exit code 2."""
    make, words, message = WRONG[case]
    if make is not None:
        make(rollout)
    assert main(["inspect", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err


def test_help(capsys):
    assert main(["inspect", "--help"]) == 0
    assert "--no_plot" in capsys.readouterr().out
