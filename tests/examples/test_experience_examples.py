"""The examples of kept experience run as they stand, in small."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
MINE = ("experience_replay", "ab_comparison", "adaptive_batch")


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_experience_is_kept_and_learned_from(tmp_path, capsys):
    """J7, J12, J19: files, epochs over them, and training with replay."""
    example("experience_replay").main(str(tmp_path), files=2, epochs=2, total_timesteps=2048)
    out = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in out[:2]] == ["epoch 0", "epoch 1"]
    assert out[2].startswith("2 files; return ")
    assert "'replay_share': 0.5" in out[2]
    assert len(list(tmp_path.glob("collected/*.safetensors"))) == 2


def test_two_ways_are_compared(tmp_path, capsys):
    """J8, J42: text with intervals, and a picture."""
    out = tmp_path / "ab.png"
    comparison = example("ab_comparison").main(seeds=range(2), total_timesteps=6144, out=str(out))
    assert [arm.name for arm in comparison.arms] == ["32 steps", "256 steps"]
    assert "256 steps minus 32 steps" in capsys.readouterr().out
    assert out.stat().st_size > 20_000


def test_the_minibatch_adapts(capsys):
    """J40: within its bounds, and it moves."""
    sizes = example("adaptive_batch").main(total_timesteps=2048)
    assert len(sizes) == 2
    assert all(32 <= size <= 512 for size in sizes)
    assert set(sizes) != {64}, "where it began"
    assert capsys.readouterr().out.count("minibatches of") == 2


@pytest.mark.parametrize("name", MINE)
def test_examples_fit_a_screen(name):
    assert len((EXAMPLES / f"{name}.py").read_text("utf-8").splitlines()) <= 60
