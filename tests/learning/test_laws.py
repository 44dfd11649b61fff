"""Laws of nature found again from the shipped settings, by the commands that a user types."""

from __future__ import annotations

import json

import pytest

from twostep.cli import main


@pytest.mark.slow
def test_keplers_third_law_is_found_and_printed(tmp_path, capsys):
    """J32, J42: training ends once the policy itself writes the law; both commands print it."""
    words = ["train", "symbolic", "--env.kwargs.law", "kepler", "--run_dir", str(tmp_path), "--device", "cpu"]
    assert main([*words, "--no-progress", "--no-tensorboard"]) == 0
    said = capsys.readouterr().out
    assert "solved (1.9)" in said
    found = [line for line in said.splitlines() if line.startswith("  kepler")]
    assert len(found) == 1
    assert "found" in found[0]
    assert "(the law: T = a^1.5)" in found[0]
    assert main(["eval", str(tmp_path), "--episodes", "3"]) == 0
    said = capsys.readouterr().out
    written = said.split("what it writes:")[1].split("the best of its training:")
    assert all(" found " in part and "T = " in part for part in written)
    (kept,) = json.loads(next(tmp_path.glob("*/discoveries.json")).read_text())
    assert (kept["law"], kept["found"]) == ("kepler", True)
    assert kept["error"] < 1e-6
    assert main(["resume", str(tmp_path), "--total_timesteps", "10", "--no-progress"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("  kepler")] == found
