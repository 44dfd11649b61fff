"""Seed 001, the summary of the trainer in two phases: its snippets and what it promises besides the guide."""

from __future__ import annotations

import ast
import inspect
import math
import re
from pathlib import Path
from typing import Any

import coverage
import pytest
import torch
from torch import Tensor

from twostep import PPOTrainer, combine_rollouts, create_fake_rollout_data, make_env
from twostep.collect.collector import RolloutCollector

SOURCE = Path(__file__).parents[2] / "src" / "twostep"


def test_modularity(small_trainer: Any) -> None:
    """J1, J2, J3, J6, J7: collect without training, train without collecting, or both."""
    trainer = small_trainer(num_envs=1)

    # Collect data without training
    data = trainer.collect_rollouts(1000)
    existing_data = data

    # Train without collecting
    metrics = trainer.learn(existing_data)

    # Or use the standard interface
    history = trainer.train(total_timesteps=1064)

    assert len(data["observations"]) == 1000
    assert trainer.total_timesteps == 1064
    assert metrics["ratio_error"] < 1e-5
    assert len(history["loss"]) == 2


def test_clean_interfaces() -> None:
    """J1, J2, J3: the signatures."""
    for name, first in (("collect_rollouts", "n_steps"), ("learn", "rollout_data"), ("train", "total_timesteps")):
        parameters = list(inspect.signature(getattr(PPOTrainer, name)).parameters.values())
        assert parameters[1].name == first
        others = parameters[2:]
        assert all(p.default is not p.empty or p.kind is p.VAR_KEYWORD for p in others)


def test_distributed_collection_and_offline_training(small_trainer: Any, tmp_path: Path) -> None:
    """J12, J14, J15, J19: workers collect, a central trainer learns; what was saved is learned from later."""
    central_trainer = small_trainer()
    workers = [small_trainer(seed=n, env=make_env("CartPole-v1", 1)) for n in range(3)]
    for worker in workers:
        worker.policy.load_state_dict(central_trainer.policy.state_dict())

    # Distributed collection
    rollouts = [worker.collect_rollouts(100) for worker in workers]
    combined = combine_rollouts(rollouts)
    metrics = central_trainer.learn(combined)
    assert len(combined["rewards"]) == 300
    assert metrics["approx_kl"] < 0.1

    # Offline training
    torch.save(combined, tmp_path / "experience.pt")
    saved_data = torch.load(tmp_path / "experience.pt")
    metrics = central_trainer.learn(saved_data)
    assert math.isfinite(metrics["loss"])


def test_collection_strategies_are_compared_independently(small_trainer: Any) -> None:
    """J8, J42: A/B testing of two ways to collect, on one policy, and data analysed before any training."""
    trainer = small_trainer()

    class Greedier:
        """Keeps the better half of the rows."""

        def __init__(self, collector: RolloutCollector) -> None:
            self.collector = collector

        def collect(self) -> Any:
            rollout = self.collector.rollout(64)
            best = rollout.rewards.sum(0).argsort(descending=True)[: rollout.num_rows // 2]
            rollout.valid[:] = False
            rollout.valid[:, best] = True
            return rollout

    plain = trainer.collect_rollout()
    selected = Greedier(RolloutCollector(make_env("CartPole-v1", 4), trainer.policy, seed=1)).collect()
    assert plain.rewards.shape == (32, 2)
    assert int(selected.valid.sum()) == 128
    assert math.isfinite(trainer.learn(selected)["loss"])
    data = trainer.collect_rollouts(32)
    assert 0 <= data["actions"].float().mean() <= 1
    assert data["episodes"] == [] or data["episodes"][0]["length"] > 0


def test_empty_rollouts_are_handled_gracefully(small_trainer: Any) -> None:
    """J37: an empty rollout, alone or among others, changes nothing and breaks nothing."""
    trainer = small_trainer()
    data = trainer.collect_rollouts(8)
    empty: dict[str, Any] = {
        name: value[:0] if isinstance(value, Tensor) else value for name, value in data.items()
    } | {"shape": [0, 2], "episodes": []}
    before = [parameter.clone() for parameter in trainer.policy.parameters()]
    metrics = trainer.learn(empty)
    assert math.isnan(metrics["loss"])
    assert trainer.n_updates == 0
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.policy.parameters(), strict=True))
    assert len(combine_rollouts([empty, data])["rewards"]) == 16
    nobody = create_fake_rollout_data(8) | {"valid": torch.zeros(8, dtype=torch.bool)}
    assert math.isnan(trainer.learn(nobody)["loss"])


def test_batch_size_adapts_to_the_noise_of_the_gradient(small_trainer: Any) -> None:
    """J40: within the bounds that were given."""
    trainer = small_trainer(adaptive_minibatch=(8, 40), minibatch_size=32)
    sizes = set()
    for _ in range(6):
        trainer.learn(trainer.collect_rollouts(64))
        sizes.add(trainer.learner.minibatch_size)
    assert len(sizes) > 1
    assert min(sizes) >= 8
    assert max(sizes) <= 40


@pytest.mark.parametrize("settings", [{}, {"norm_adv": "none"}])
def test_advantages_are_normalised_unless_told_otherwise(small_trainer: Any, settings: dict[str, Any]) -> None:
    """J41: without a word about it, advantages a thousand times larger teach the same."""
    data = create_fake_rollout_data(64, seed=1)
    learned: list[list[Tensor]] = []
    for scale in (1.0, 1000.0):
        trainer = small_trainer(max_grad_norm=math.inf, **settings)
        trainer.learn(data | {"advantages": scale * data["advantages"]})
        learned.append(list(trainer.policy.parameters()))
    same = all(torch.allclose(one, other, rtol=1e-3, atol=1e-5) for one, other in zip(*learned, strict=True))
    assert same is not bool(settings)


def test_methods_are_short() -> None:
    """J44: none has 150 lines."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < 150, f"{path}: {node.name}"


def test_every_run_of_the_tests_demands_coverage() -> None:
    """J45: 90 % of all lines of the library, as coverage itself reads its settings, in the run that `make test` is."""
    settings = coverage.Coverage(config_file=str(SOURCE.parents[1] / "pyproject.toml"))
    assert settings.get_option("report:fail_under") >= 90
    assert settings.get_option("run:source") == ["twostep"]
    assert not settings.get_option("run:omit")
    assert not settings.get_option("report:omit")
    makefile = (SOURCE.parents[1] / "Makefile").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^test:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert re.search(r"-m pytest .*--cov\b", recipe)


@pytest.mark.parametrize("name", ["collect_rollouts", "learn", "train"])
def test_the_three_methods_are_short(name: str) -> None:
    """J44."""
    assert len(inspect.getsource(getattr(PPOTrainer, name)).splitlines()) < 60
