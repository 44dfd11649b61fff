"""What is saved survives kills, damage, failing disks, signals and malice; `make chaos` asks in thousands."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import pytest
import torch
from malice import malicious
from poison import injections
from wreckage import damage, full_disks, kills_while_saving, lock_races, signals, state

from twostep import PolicyStore
from twostep.checkpoint import TrainingCheckpointer, load_state, save_state
from twostep.experience import load_rollouts, save_rollouts

linux = pytest.mark.skipif(sys.platform != "linux", reason="forks")


@linux
def test_killed_while_saving():
    """B8, L29: wherever in a save the process dies, the newest whole checkpoint is there."""
    figures = kills_while_saving(40)
    assert figures["saves"] > 3
    assert figures["caught halfway"] > 0


def test_damaged_files_are_refused_and_the_one_before_is_taken():
    """B9, EB11."""
    assert damage(400)["loaded"] == 0


def test_failing_disks():
    """B10: no room, input or output error, no permission, read only."""
    assert full_disks(12)["checkpoints lost"] == 0


def test_malicious_files():
    """B12, EB11: pickles, bombs, paths, links, shapes, depth."""
    assert malicious()["files"] >= 50


@linux
def test_races_for_a_folder():
    """B14."""
    assert lock_races(8)["two at once"] == 0


@linux
@pytest.mark.slow
def test_signals_at_random_times():
    """B15: the two that people send; `tests/test_cli.py` has the others."""
    assert signals(2)["updates lost"] == 0


def test_numbers_that_are_not_finite():
    """D18: in observations, rewards, losses and gradients; stop, skip and reset."""
    assert injections(24)["found in their update"] == 24


def test_files_reach_the_disk_before_they_get_their_name(tmp_path, monkeypatch):
    """B11: both files and their folder are synced, then renamed, then the folder above is synced."""
    events: list[str] = []
    sync, rename = os.fsync, Path.rename

    def synced(descriptor):
        events.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        sync(descriptor)

    def renamed(path, target):
        events.append(f"rename {path.name} {Path(target).name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    save_state(tmp_path / "new", state(1))
    assert events == [
        "sync tensors.safetensors",
        "sync manifest.json",
        "sync .new.saving",
        "rename .new.saving new",
        f"sync {tmp_path.name}",
    ]


def test_no_load_comes_near_an_unpickler(tmp_path, monkeypatch, small_trainer, collected):
    """B12: with every unpickler poisoned, states, checkpoints, policies and rollouts still load."""
    trainer = small_trainer()
    trainer.train(64)
    trainer.save_checkpoint(tmp_path / "trainer")
    TrainingCheckpointer(tmp_path / "run").save(64, trainer.state_dict(), trainer.manifest())
    record = PolicyStore(tmp_path / "store").save("one", trainer.policy)
    rollouts = save_rollouts(collected()[0], tmp_path / "rollout.safetensors")

    def poisoned(*_: object, **__: object) -> None:
        raise AssertionError("an unpickler was reached")

    for module in (pickle, torch.serialization.pickle):
        for name in ("load", "loads", "Unpickler", "_Unpickler"):
            monkeypatch.setattr(module, name, poisoned)
    monkeypatch.setattr(torch, "load", poisoned)
    load_state(tmp_path / "trainer")
    trainer.load_checkpoint(tmp_path / "trainer")
    trainer.load_state_dict(TrainingCheckpointer(tmp_path / "run").load().state)
    PolicyStore(tmp_path / "store").load_from_uri(record.uri).policy()
    load_rollouts(rollouts)
