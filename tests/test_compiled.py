"""Compiled code takes over from recordings at a counted call, gives the same numbers, and a saved run goes on alike."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
import torch

from twostep import PPOConfig, PPOOptimizer
from twostep.compiled import Compiled

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own are none of ours


@pytest.fixture(autouse=True)
def soon(monkeypatch, tmp_path):
    """Record at the first call, and keep what is compiled out of everybody's way."""
    monkeypatch.setattr("twostep.recorded.PATIENCE", 1)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))


def weights(learner):
    return torch.cat([parameter.detach().reshape(-1) for parameter in learner.parameters])


def learn(rollout, policy, updates, **settings):
    learner = PPOOptimizer(deepcopy(policy), config=PPOConfig(update_epochs=2, num_minibatches=2, **settings))
    for _ in range(updates):
        metrics = learner.update(rollout)
    return learner, metrics


@pytest.mark.slow
def test_compiled_code_learns_the_same_and_goes_on_the_same(collected):
    """The weights agree up to rounding, and a run that was saved while compiled goes on to the last bit."""
    rollout, policy = collected()
    recorded, _ = learn(rollout, policy, 4, compile_after=0)
    compiled, _ = learn(rollout, policy, 3, compile_after=6)
    resumed = PPOOptimizer(deepcopy(compiled.policy), config=compiled.config)
    resumed.load_state_dict(deepcopy(compiled.state_dict()))
    metrics = compiled.update(rollout)
    assert len(compiled._recorded.state_dict()["compiled"]) == 1
    assert metrics["grad_norm"] > 0
    assert torch.allclose(weights(recorded), weights(compiled), atol=1e-4)
    resumed.update(rollout)
    assert torch.equal(weights(resumed), weights(compiled))


def test_loops_over_time_are_not_compiled(collected):
    """Policies with memory stay with their recordings, whose hundreds of operations would take minutes to compile."""
    rollout, policy = collected(memory="gru")
    learner, _ = learn(rollout, policy, 3, compile_after=6)
    assert learner._recorded.state_dict()["compiled"] == []


def test_short_runs_never_compile(collected, monkeypatch):
    monkeypatch.setattr("twostep.compiled.machine_code", lambda *_: pytest.fail("compiled"))
    rollout, policy = collected()
    learner, _ = learn(rollout, policy, 3)
    assert 0 < learner._recorded.state_dict()["work"] < 50_000
    learner, _ = learn(rollout, policy, 3, compile_after=0)
    assert learner._recorded.after == math.inf


@pytest.mark.parametrize("code", [None, lambda *inputs: [torch.zeros(3)]])
def test_without_a_compiler_or_with_a_wrong_one_the_recording_stays(monkeypatch, code):
    """What does not compile, or gives other numbers, is not used."""
    monkeypatch.setattr("twostep.compiled.machine_code", lambda *_: code)
    module = torch.nn.Linear(3, 1)
    function = Compiled(module, lambda tree: (tree[0] * 2,), after=9)
    for number in range(1, 12):
        (result,) = function((torch.full((3,), float(number)),))
        assert torch.equal(result, torch.full((3,), 2.0 * number))
    assert function.state_dict()["compiled"] == []
