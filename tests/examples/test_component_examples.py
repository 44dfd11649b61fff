"""The examples run, and show what they say: M14, J10, J11, J43."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 2048


@pytest.fixture
def example(monkeypatch):
    """A function: an example as a module."""

    def load(name):
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_a_page(path):
    """J43, M14: short enough to be read, and it says how it is called."""
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    assert f"python examples/{path.name}" in text.split('"""')[1]


def test_the_examples_of_seed_003_have_its_names():
    """M14."""
    names = ("direct_training_with_components", "functional_training_example", "structured_config_training")
    assert all((EXAMPLES / f"{name}.py").is_file() for name in names)


def test_direct_components(example, capsys):
    """M14."""
    assert example("direct_training_with_components").train(STEPS) > 9
    assert "2,048 steps  return" in capsys.readouterr().out


def test_functional_loop(example, capsys):
    """M14, M16: its step reports, its store holds the way."""
    state, store = example("functional_training_example").train(STEPS)
    assert (state.agent_steps, state.epoch) == (2048, 2)
    assert [record.name for record in store.records()] == ["step_000000001024", "step_000000002048"]


def test_structured_settings(example, capsys):
    """M14."""
    assert example("structured_config_training").train(STEPS).agent_steps == 2048
    assert "Did you mean 'ppo.learning_rate'?" in capsys.readouterr().out


def test_custom_losses(example):
    """M14: both losses are measured, and the jump is the loss by its weight."""
    history = example("custom_losses").train(STEPS)
    assert all(value >= 0 for name in ("calm_loss", "upright_loss") for value in history[name])
    assert history["calm_loss"] == pytest.approx([0.1 * jump for jump in history["jump"]], rel=1e-4)


def test_overlapped_collection(example, capsys):
    """J11, J43: a lag of one update, which KL tells."""
    assert example("overlapped_collection").train(2 * 1536) > 9
    first, second = capsys.readouterr().out.splitlines()
    assert "0 update behind" in first
    assert "1 update behind" in second


def test_collection_in_programs_of_their_own(example, tmp_path, capsys):
    """J10, J43: two workers collect, one program learns from both, and every ratio is exact. Here they are threads."""
    module = example("distributed_collection")
    workers = [threading.Thread(target=module.work, args=(tmp_path, number), daemon=True) for number in range(2)]
    for worker in workers:
        worker.start()
    module.learn(tmp_path, 2000)
    for worker in workers:
        worker.join(20)
        assert not worker.is_alive()
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2
    assert all("ratio error 0e+00" in line for line in said)
