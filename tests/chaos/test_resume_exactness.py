"""Going on from a checkpoint is the same as never having stopped; `benchmarks/resume.py` asks twenty times as often."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from resuming import (
    ACTIONS,
    NETS,
    NUM_ENVS,
    STEPS,
    Drift,
    Sealed,
    exactness,
    packed,
    require_same,
    rows_of,
    trainer_of,
)

from twostep import CheckpointError
from twostep.checkpoint import load_state


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("net", NETS)
def test_a_cut_run_is_the_same_bit_for_bit(net, actions, tmp_path):
    """C16, J28, L22, EB11, LB9: weights, optimizer, normalisers, generators, memory, episodes, rows of metrics."""
    figures = exactness(net, actions, 0, 0, cuts=1, folder=tmp_path, updates=4)
    assert figures["numbers in a state"] > 10_000


@pytest.mark.parametrize(("net", "actions", "before", "after"), [("gru", "mixed", 2, 2), ("lstm", "discrete", 0, 3)])
def test_workers_go_on_too_and_their_number_may_change(net, actions, before, after, tmp_path):
    """C16, C17."""
    exactness(net, actions, before, after, cuts=1, folder=tmp_path, updates=4)


PROGRAM = """
    import sys
    sys.path.insert(0, {folder!r})
    import torch
    torch.set_num_threads(1)
    from resuming import rows_of, trainer_of
    trainer = trainer_of("lstm", "mixed", 0, seed=77)
    trainer.load_checkpoint({cut!r})
    rows_of(trainer, 4, 4)
    trainer.save_checkpoint({end!r})
"""


def test_a_new_process_goes_on_bit_for_bit(tmp_path):
    """C16: nothing hides in the memory of the process that was stopped."""
    trainer = trainer_of("lstm", "mixed", 0)
    rows_of(trainer, 4, 4, lambda update: update == 2 and trainer.save_checkpoint(tmp_path / "cut"))
    here, cut, end = str(Path(__file__).parent), str(tmp_path / "cut"), str(tmp_path / "end")
    program = textwrap.dedent(PROGRAM).format(folder=here, cut=cut, end=end)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
    other = trainer_of("lstm", "mixed", 0)
    other.load_state_dict(load_state(end)[0])
    require_same(packed(other), packed(trainer))


def test_the_comparison_can_fail(tmp_path):
    """A weight that is another by one bit is found, and so is a counter."""
    trainer = trainer_of("mlp", "discrete", 0)
    rows_of(trainer, 1, 1)
    tensors, structure = packed(trainer)
    changed = {name: tensor.clone() for name, tensor in tensors.items()}
    name = next(name for name in tensors if name.endswith("weight"))
    changed[name].view(torch.int32).view(-1)[0] ^= 1
    with pytest.raises(AssertionError, match=name):
        require_same((changed, structure), (tensors, structure))
    structure["dict"]["n_updates"] += 1
    with pytest.raises(AssertionError):
        require_same(packed(trainer), (tensors, structure))


def test_sealed_environments_begin_anew_and_the_same_way_each_time(tmp_path, caplog):
    """C16: where a state cannot be kept, resuming says so without a warning, and is still repeatable."""
    trainer = trainer_of("gru", "discrete", 0, env=Sealed)
    rows_of(trainer, 2, 4)
    trainer.save_checkpoint(tmp_path / "cut")
    assert "Sealed.handle is a builtins.object" in trainer.restart_reason
    first_obs = trainer.collect_rollouts(STEPS)["observations"]
    ends = []
    for seed in (5, 6):
        again = trainer_of("gru", "discrete", 0, seed=seed, env=Sealed)
        again.load_checkpoint(tmp_path / "cut")
        assert again.restart_reason == "the checkpoint holds no running episodes"
        rows_of(again, 4, 4)
        ends.append(packed_without_episodes(again))
    require_same(*ends)
    fresh = trainer_of("gru", "discrete", 0, env=Sealed).collect_rollouts(STEPS)["observations"]
    begun = trainer_of("gru", "discrete", 0, env=Sealed)
    begun.load_checkpoint(tmp_path / "cut")
    new = begun.collect_rollouts(STEPS)["observations"]
    assert not torch.equal(new[:NUM_ENVS], fresh[:NUM_ENVS]), "not the first episodes once more"
    assert not torch.equal(new[:NUM_ENVS], first_obs[:NUM_ENVS])
    assert caplog.text == ""


def packed_without_episodes(trainer):
    trainer.env.envs[0].handle = object()
    state = trainer.state_dict()
    assert state["collection"]["running"] is None
    from twostep.checkpoint import pack

    return pack(state)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"adam_eps": 1e-7}, r"adam_eps=1e-07, but the checkpoint is of a run with 1e-08"),
        ({"weight_decay": 0.1}, r"weight_decay=0\.1, but"),
    ],
)
def test_what_cannot_change_is_refused_in_one_line(changes, complaint, tmp_path):
    """C17."""
    trainer_of("mlp", "discrete", 0).save_checkpoint(tmp_path / "cut")
    other = trainer_of("mlp", "discrete", 0, **changes)
    with pytest.raises(CheckpointError, match=complaint) as caught:
        other.load_checkpoint(tmp_path / "cut")
    assert "\n" not in str(caught.value)
    with pytest.raises(CheckpointError, match="of another network") as caught:
        trainer_of("gru", "discrete", 0).load_checkpoint(tmp_path / "cut")
    assert "\n" not in str(caught.value)


def test_what_may_change_does(tmp_path):
    """C17: the learning rate is the new one, other numbers of environments begin anew, and so do others on request."""
    trainer = trainer_of("mlp", "discrete", 0, lr_schedule="constant")
    rows_of(trainer, 1, 2)
    trainer.save_checkpoint(tmp_path / "cut")
    other = trainer_of("mlp", "discrete", 0, lr_schedule="constant", lr=1e-4, clip_coef=0.1, update_epochs=1)
    other.load_checkpoint(tmp_path / "cut")
    assert rows_of(other, 2, 2)[-1]["lr"] == 1e-4
    other.load_checkpoint(tmp_path / "cut", same_episodes=False)
    assert other.restart_reason == "the environments are not the same"
    fewer = trainer_of("mlp", "discrete", 0)
    fewer.env = type(trainer.env)([lambda: Drift("discrete", False)] * 2, seed=1)
    fewer.load_checkpoint(tmp_path / "cut")
    assert fewer.restart_reason == "there were 4 rows, and now are 2"
    assert fewer.collect_rollouts(3)["observations"].shape[0] == 6
