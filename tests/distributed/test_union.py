"""Processes that learn together learn what one process learns from all their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import loops
import pytest
import torch
import union_batch
from starting import end_all, start

from twostep.checkpoint import load_state, pack
from twostep.group import ALONE


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two processes learned, each from its share of the rows."""
    folder = tmp_path_factory.mktemp("union")
    ends = end_all(start(folder, union_batch.main, folder))
    assert [end.code for end in ends] == [0, 0], ends
    return load_state(folder / "together")[0]


@pytest.mark.parametrize("case", union_batch.CASES)
def test_two_processes_learn_what_one_does_from_all_rows(together: dict[str, Any], case: str) -> None:
    """L27, L10: weights, running statistics and metrics to 1e-6, although one has two rows and the other five.

    Feed-forward and GRU, advantages over the batch and over minibatches, steps that do not count, a process that has
    nothing to learn from, an early stop by KL, a rate that follows KL, minibatches that grow, a loss of the user's own,
    a policy inside DistributedDataParallel.
    """
    one, two = union_batch.learned(case, ALONE), together[case]
    tensors, others = pack({**one, "metrics": None})[0], pack({**two, "metrics": None})[0]
    assert list(tensors) == list(others)
    for name, tensor in tensors.items():
        torch.testing.assert_close(others[name], tensor, rtol=1e-6, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")
    assert two["minibatch_size"] == one["minibatch_size"]
    for update, other in zip(one["metrics"], two["metrics"], strict=True):
        assert other == pytest.approx(update, rel=1e-5, abs=1e-6, nan_ok=True)


def test_the_cases_do_what_they_are_for(together: dict[str, Any]) -> None:
    """L27: the early stop stops early but not at once, the loss of the user's own is measured, the rate moves."""
    assert 1 < together["early-stop"]["metrics"][0]["epochs"] < 8
    assert "largest_push" in together["custom"]["metrics"][0]
    assert together["gru-batch"]["metrics"][-1]["lr"] != union_batch.BASE["lr"]


def test_both_loops_learn_the_same_together(tmp_path: Path) -> None:
    """L27, L22: bit for bit, also where one is stopped by one process and goes on from its checkpoint."""
    ends = end_all(start(tmp_path / "said", loops.main, tmp_path))
    assert [end.code for end in ends] == [0, 0], ends
    results = load_state(tmp_path / "loops")[0]
    trainer, functional = results["trainer"], results["functional"]
    assert len(set(trainer["digests"] + functional["digests"])) == 1, "in both processes and by both loops"
    assert trainer["counters"]["total_timesteps"] == loops.STEPS
    assert len(results["returns"]) == loops.STEPS // (5 * loops.SETTINGS["rollout_steps"])
    assert len(list((tmp_path / "checkpoints").iterdir())) == loops.STEPS // 40
