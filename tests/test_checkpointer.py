"""TrainingCheckpointer: what is kept, what is found, what belongs together."""

from __future__ import annotations

import json
import logging
import re
import subprocess

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep import CheckpointError, ConfigError, PolicyStore, TrainingCheckpointer, make_env
from twostep.checkpoint import MANIFEST_FILE, TENSORS_FILE, NewerFormatError, load_manifest
from twostep.checkpoint.provenance import git_state


def number(step):
    return {"number": step}


def test_checkpoints_are_named_by_step_and_found_again(tmp_path):
    """M13, L21, L22: the newest, or any by its step; also under a prefix of one's own."""
    checkpoints = TrainingCheckpointer(tmp_path, keep_last=9, config={"lr": 1e-3})
    for step in (5, 1_000_000, 30):
        path = checkpoints.save(step, number(step), {"epoch": 1})
    assert path == tmp_path / "step_000000000030"
    assert checkpoints.steps() == [5, 30, 1_000_000]
    assert checkpoints.load().state == number(1_000_000)
    found = checkpoints.load(5)
    assert (found.path.name, found.state, found.manifest["config"]) == ("step_000000000005", number(5), {"lr": 1e-3})
    assert found.manifest["epoch"] == 1
    (tmp_path / "logs" / "phase1_step_5000000").parent.mkdir()
    named = TrainingCheckpointer(tmp_path / "logs", prefix="phase1_step_")
    named.save(5_000_000, number(5)).rename(tmp_path / "logs" / "phase1_step_5000000")
    assert named.load().path == tmp_path / "logs" / "phase1_step_5000000"
    assert checkpoints.steps() == [5, 30, 1_000_000], "others are none of its own"


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.integers(1, 40), min_size=1, max_size=14),
    keep_last=st.integers(1, 4),
    keep_every=st.sampled_from([0, 10, 25]),
    scores=st.lists(st.none() | st.integers(0, 5), min_size=14, max_size=14),
)
def test_what_is_kept(tmp_path_factory, gaps, keep_last, keep_every, scores):
    """The newest, the best, the first at or after every multiple; and nothing else."""
    checkpoints = TrainingCheckpointer(tmp_path_factory.mktemp("run"), keep_last=keep_last, keep_every=keep_every)
    steps, kept, known = [], set(), {}
    step = 0
    for gap, score in zip(gaps, scores, strict=False):
        step += gap
        steps.append(step)
        known[step] = score
        checkpoints.save(step, number(step), score=score)
        candidates = sorted(kept | {step})
        kept = set(candidates[-keep_last:])
        milestones = {}
        for one in candidates:
            milestones.setdefault(one // keep_every if keep_every else 0, one)
        kept |= {one for multiple, one in milestones.items() if multiple}
        best = [one for one in candidates if known[one] is not None]
        kept |= {max(best, key=lambda one: (known[one], one))} if best else set()
        assert checkpoints.steps() == sorted(kept)
    again = TrainingCheckpointer(checkpoints.folder, keep_last=keep_last, keep_every=keep_every)
    again.save(step, number(step), score=known[step])
    assert again.steps() == sorted(kept), "a new process knows the scores of old ones"


def spoil(path):
    (path / TENSORS_FILE).write_bytes(b"")


def test_it_falls_back_loudly(tmp_path, caplog):
    """B9: what is wrong, and which one is taken; where none is whole, that is an error."""
    checkpoints = TrainingCheckpointer(tmp_path)
    for step in (1, 2, 3):
        checkpoints.save(step, number(step))
    spoil(checkpoints.path(3))
    (checkpoints.path(2) / MANIFEST_FILE).unlink()
    assert checkpoints.load().state == number(1)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert str(checkpoints.path(3) / TENSORS_FILE) in told[0]
    assert str(checkpoints.path(2) / MANIFEST_FILE) in told[1]
    assert all(f"Going on from {checkpoints.path(1)}." in one for one in told)
    with pytest.raises(CheckpointError, match="cut off"):
        checkpoints.load(3)
    spoil(checkpoints.path(1))
    with pytest.raises(CheckpointError, match=r"None of the 3 checkpoints .* is whole"):
        checkpoints.load()
    with pytest.raises(CheckpointError, match="There is no checkpoint in"):
        TrainingCheckpointer(tmp_path / "nowhere").load()


def test_a_newer_format_is_no_reason_to_go_back(tmp_path, caplog):
    """B13: updating twostep loses nothing; going on from an older checkpoint would."""
    checkpoints = TrainingCheckpointer(tmp_path)
    checkpoints.save(1, number(1))
    path = checkpoints.save(2, number(2)) / MANIFEST_FILE
    newer = re.sub('"manifest_sha256": "[0-9a-f]{64}", ', "", path.read_text())
    path.write_text(newer.replace('"format_version": 1', '"format_version": 7'))
    with pytest.raises(NewerFormatError, match="format_version 7"):
        checkpoints.load()
    assert caplog.text == ""


def test_what_a_killed_process_left_is_swept_up(tmp_path):
    checkpoints = TrainingCheckpointer(tmp_path)
    for leftover in (".step_000000000009.saving", ".step_000000000003.removed", ".other.saving"):
        (tmp_path / leftover).mkdir()
    checkpoints.save(4, number(4)).rename(tmp_path / ".step_000000000004.replaced")
    assert checkpoints.steps() == [4]
    assert checkpoints.load().state == number(4)
    checkpoints.save(5, number(5))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {".other.saving", ".step_000000000004.replaced", "step_000000000005"}


def test_later_checkpoints_are_left_behind_under_another_name(tmp_path):
    checkpoints = TrainingCheckpointer(tmp_path)
    for _ in range(2):
        for step in (1, 2, 3):
            checkpoints.save(step, number(step))
        left = checkpoints.leave_later(1)
    assert [path.name for path in left] == ["step_000000000002.left2", "step_000000000003.left2"]
    assert checkpoints.steps() == [1]


def test_the_manifest_names_the_program(tmp_path):
    """Version of everything, and where git stood."""
    program = load_manifest(TrainingCheckpointer(tmp_path / "run").save(1, number(1)))["program"]
    assert program["torch"] == torch.__version__
    assert git_state(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    (tmp_path / "file").write_text("one")
    subprocess.run([*git, "add", "file"], check=True)
    found = git_state(tmp_path)
    assert len(found["commit"]) == 40
    assert found["dirty"] is True
    subprocess.run([*git, "commit", "-q", "-m", "second"], check=True)
    assert git_state(tmp_path)["dirty"] is False


def test_failing_to_save_is_told_once_until_it_works_again(tmp_path, caplog, monkeypatch):
    """B10."""
    checkpoints = TrainingCheckpointer(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("twostep.checkpoint.files.os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space")))
        assert checkpoints.try_save(1, number(1)) is None
        assert checkpoints.try_save(2, number(2)) is None
    assert len(caplog.records) == 1
    assert caplog.records[0].levelno == logging.WARNING
    assert checkpoints.try_save(3, number(3)) == checkpoints.path(3)


def test_wrong_settings():
    with pytest.raises(ConfigError, match="keep_last=0 must be 1 or more"):
        TrainingCheckpointer("run", keep_last=0)


# ------------------------------------------------------------------ the parts of a loop of one's own


def test_the_policy_that_was_saved_is_the_one_that_is_loaded(tmp_path, small_policy):
    """M13, MB4: its place is in the trainer state; nothing else ever stands in for it."""
    env = make_env("CartPole-v1", 2)
    policy = small_policy(env)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    run_dir = tmp_path / "run"
    store = PolicyStore(run_dir / "policies")
    checkpointer = TrainingCheckpointer(run_dir / "checkpoints", store)
    for epoch in (1, 2):
        with torch.no_grad():
            next(iter(policy.parameters())).add_(1.0)
        record = checkpointer.save_policy(policy, epoch, {"score": epoch / 2})
        checkpointer.save_trainer_state(100 * epoch, epoch, optimizer.state_dict(), run_dir, note="mine")
    assert record.metadata["epoch"] == 2
    expected = {name: tensor.clone() for name, tensor in policy.state_dict().items()}

    again = TrainingCheckpointer(run_dir / "checkpoints", PolicyStore(run_dir / "policies"))
    checkpoint = again.load_trainer_state(run_dir)
    assert (checkpoint.agent_step, checkpoint.epoch, checkpoint.policy_uri) == (200, 2, record.uri)
    torch.optim.Adam(policy.parameters()).load_state_dict(checkpoint.optimizer_state_dict)
    loaded = again.load_policy(checkpoint, env).policy()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.state_dict().items())
    spoil(again.path(200))
    earlier = again.load_trainer_state(run_dir)
    assert again.load_policy(earlier).uri != record.uri, "the policy of an older state is the older policy"
    with pytest.raises(CheckpointError, match="made for observation_space"):
        again.load_policy(checkpoint, make_env("Pendulum-v1", 2))


def test_what_is_handed_on_does_not_nest(tmp_path):
    """MB4: a hundred rounds of loading and saving change nothing."""
    checkpointer = TrainingCheckpointer(tmp_path)
    checkpointer.save_trainer_state(0, 0, {}, note="mine", depth={"a": 1})
    for epoch in range(1, 100):
        checkpoint = checkpointer.load_trainer_state()
        checkpointer.save_trainer_state(epoch, epoch, checkpoint.optimizer_state_dict, **checkpoint.extra)
    assert checkpointer.load_trainer_state().extra == {"note": "mine", "depth": {"a": 1}}


def test_what_is_missing_is_told(tmp_path):
    """MB4: no policy of epoch 0 and no new one takes the place of a policy that was not saved."""
    checkpointer = TrainingCheckpointer(tmp_path)
    assert checkpointer.load_trainer_state() is None
    checkpointer.save_trainer_state(10, 1, {})
    with pytest.raises(CheckpointError, match="No policy was saved before the trainer state of step 10"):
        checkpointer.load_policy(checkpointer.load_trainer_state())
    with pytest.raises(ConfigError, match="policy_store=PolicyStore"):
        checkpointer.save_policy(torch.nn.Linear(1, 1), 1, {})


def test_policies_reach_weights_and_biases(tmp_path, small_policy):
    """M13: where a run is given, each saved policy is sent to it."""
    sent = []

    class Store(PolicyStore):
        def add_to_wandb_run(self, record, run):
            sent.append((record.name, run))

    checkpointer = TrainingCheckpointer(tmp_path, Store(tmp_path / "policies"), wandb_run="a run")
    checkpointer.save_policy(small_policy(make_env("CartPole-v1", 1)), 3, {})
    assert sent == [("epoch_000003", "a run")]


def test_names_of_another_prefix_with_odd_letters(tmp_path):
    odd = TrainingCheckpointer(tmp_path, prefix="a.b(")
    odd.save(1, json.loads("{}"))
    assert odd.steps() == [1]
