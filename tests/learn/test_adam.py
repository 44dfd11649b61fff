"""One call for all parameters takes the step that torch's optimizers take."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy

import pytest
import torch

from twostep.learn import adam


@pytest.fixture
def compiled(monkeypatch):
    """Count the steps that were taken in one call."""
    calls, code = [], adam._code()
    assert code is not None
    monkeypatch.setattr(adam, "_code", lambda: lambda *given: (calls.append(given), code(*given)))
    return calls


def parameters():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in ((5, 7), (7,), (1,), (3, 1, 2))]


def go(optimizers, sets, steps, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for group in zip(*sets, strict=True):
            gradient = torch.randn(group[0].shape, generator=generator)
            for parameter in group:
                parameter.grad = gradient.clone()
        for optimizer in optimizers:
            getattr(optimizer, "advance", optimizer.step)()


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_the_steps_are_those_of_torch(name, decay, compiled):
    ours, theirs = parameters(), parameters()
    settings = {"lr": 1e-2, "weight_decay": decay, "eps": 1e-5, "fused": True}
    one, other = getattr(adam, name)(ours, **settings), getattr(torch.optim, name)(theirs, **settings)
    go([one, other], [ours, theirs], 40)
    assert len(compiled) == 40
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-6)
        assert one.state[a]["step"] == other.state[b]["step"] == 40
        torch.testing.assert_close(one.state[a]["exp_avg_sq"], other.state[b]["exp_avg_sq"], rtol=1e-5, atol=1e-7)


def test_a_state_that_was_saved_goes_on_to_the_last_bit(compiled):
    """The state is torch's own."""
    for cut in (2, 3, 7):
        whole, first = parameters(), parameters()
        long, short = adam.Adam(whole, lr=1e-2, fused=True), adam.Adam(first, lr=1e-2, fused=True)
        go([long, short], [whole, first], cut)
        second = [torch.nn.Parameter(parameter.detach().clone()) for parameter in first]
        resumed = adam.Adam(second, lr=1e-2, fused=True)
        resumed.load_state_dict(deepcopy(short.state_dict()))
        go([long, resumed], [whole, second], 5, seed=2)
        assert all(map(torch.equal, whole, second))
    assert compiled


def test_weights_that_moved_in_memory_are_found(compiled):
    """Memory that was exchanged between two steps is written where it is now."""
    ours, theirs = parameters(), parameters()
    one, other = adam.Adam(ours, lr=1e-2), torch.optim.Adam(theirs, lr=1e-2)
    go([one, other], [ours, theirs], 10)
    before = [parameter.data for parameter in ours]
    for parameter in ours:
        parameter.data = parameter.data.clone()
    untouched = [tensor.clone() for tensor in before]
    go([one, other], [ours, theirs], 5, seed=3)
    assert all(map(torch.equal, before, untouched))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-6)
    assert len(compiled) == 15


@pytest.mark.parametrize("settings", [{"amsgrad": True}, {"maximize": True}])
def test_what_is_not_written_is_left_to_torch(settings, compiled):
    ours, theirs = parameters(), parameters()
    go([adam.Adam(ours, **settings), torch.optim.Adam(theirs, **settings)], [ours, theirs], 8)
    assert all(map(torch.equal, ours, theirs))
    assert not compiled


def test_parameters_without_gradient_stay(compiled):
    ours = parameters()
    optimizer = adam.Adam(ours, lr=1e-2)
    go([optimizer], [ours], 5)
    kept = ours[1].detach().clone()
    go([optimizer], [ours[:1]], 0)
    for parameter in ours:
        parameter.grad = torch.ones_like(parameter)
    ours[1].grad = None
    optimizer.advance()
    assert torch.equal(ours[1], kept)
    assert len(compiled) == 6


def test_starting_does_not_import_the_compiler_of_torch():
    """It takes a second, as long as torch itself."""
    program = """
import sys
from twostep import PPOConfig, PPOTrainer, make_env, make_policy
env = make_env("CartPole-v1", num_envs=2, seed=0)
trainer = PPOTrainer(make_policy(env, seed=0), env, PPOConfig(rollout_steps=8), device="cpu", seed=0)
trainer.train(16)
assert trainer.n_updates == 1
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
