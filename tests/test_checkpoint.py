"""Saved states come back bit for bit, or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import random
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

import twostep.checkpoint.files as checkpoint_module
from twostep.checkpoint import (
    MANIFEST_FILE,
    TENSORS_FILE,
    generator_state,
    load_state,
    pack,
    restore_generator,
    save_state,
    unpack,
)
from twostep.errors import CheckpointError

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


def same(one, other):
    """Whether two states are equal in type, structure, order of keys and every bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        bits = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
        return torch.equal(*bits)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return one == other and str(one) == str(other)


@st.composite
def tensors(draw):
    shape = draw(st.sampled_from([(), (0,), (3,), (2, 3), (1, 2, 2)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    numbers = torch.randn(shape, generator=generator) * 100
    special = draw(st.sampled_from([1.0, math.nan, math.inf, -0.0]))
    dtype = draw(st.sampled_from(DTYPES))
    return (numbers * special if dtype.is_floating_point else numbers).to(dtype)


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
keys = st.text(max_size=4) | st.integers(-3, 3) | st.sampled_from(["a/b", "tensor", "dict", "__metadata__", ""])
states = st.recursive(
    plain | tensors(),
    lambda children: (
        st.dictionaries(keys, children, max_size=4)
        | st.lists(children, max_size=3)
        | st.lists(children, max_size=3).map(tuple)
    ),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(states)
def test_any_state_survives_packing(state):
    packed, structure = pack(state)
    assert same(unpack(packed, json.loads(json.dumps(structure, allow_nan=False))), state)


@settings(max_examples=25, deadline=None)
@given(state=states)
def test_any_state_survives_the_disk(tmp_path_factory, state):
    path = tmp_path_factory.mktemp("states") / "state"
    save_state(path, state, {"any": "thing"})
    loaded, manifest = load_state(path)
    assert same(loaded, state)
    assert manifest == {"any": "thing"}


def trained(optimizer_class):
    torch.manual_seed(0)
    policy = torch.nn.Linear(4, 2)
    optimizer = optimizer_class(policy.parameters(), lr=1e-3, betas=(0.9, 0.99))
    for _ in range(3):
        policy(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()
    return policy, optimizer


@pytest.mark.parametrize("optimizer_class", [torch.optim.Adam, torch.optim.AdamW])
def test_a_training_state_comes_back_bit_for_bit(tmp_path, optimizer_class):
    """J28, R7, L22: with the keys of old, the optimizer's nested state and its None, bools and tuples."""
    policy, optimizer = trained(optimizer_class)
    state = {
        "policy_state_dict": dict(policy.state_dict()),
        "optimizer_state_dict": optimizer.state_dict(),
        "total_timesteps": 10_000,
        "n_updates": 5,
        "scheduler_state_dict": {"lr": 1e-4 / 3},
    }
    path = save_state(tmp_path / "run" / "checkpoint_5", state, {"experiment": "demo"})
    loaded, manifest = load_state(path)
    assert same(loaded, state)
    assert manifest == {"experiment": "demo"}
    resumed_policy = torch.nn.Linear(4, 2)
    resumed_policy.load_state_dict(loaded["policy_state_dict"])
    resumed_optimizer = optimizer_class(resumed_policy.parameters())
    resumed_optimizer.load_state_dict(loaded["optimizer_state_dict"])
    assert same(resumed_optimizer.state_dict(), optimizer.state_dict())


def test_tensors_that_share_memory_or_are_views_are_stored_by_value(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    state = {"base": base, "transposed": base.T, "row": base[1], "expanded": base[0].expand(2, 4)}
    loaded, _ = load_state(save_state(tmp_path / "state", state))
    assert all(torch.equal(loaded[name], state[name]) for name in state)


def test_the_files_can_be_read_without_torch(tmp_path):
    """Any tool that knows JSON and safetensors can look inside."""
    path = save_state(tmp_path / "state", {"weights": {"bias": torch.ones(3)}, 1: None}, {"steps": 7})
    content = json.loads((path / MANIFEST_FILE).read_text())
    assert content["format_version"] == 1
    assert content["manifest"] == {"steps": 7}
    assert content["tensors"]["sha256"] == hashlib.sha256((path / TENSORS_FILE).read_bytes()).hexdigest()
    assert load_file(path / TENSORS_FILE)["weights/bias"].tolist() == [1.0, 1.0, 1.0]


def test_saving_again_replaces_and_leaves_nothing_behind(tmp_path):
    for number in (1, 2, 3):
        save_state(tmp_path / "state", {"number": number})
    assert load_state(tmp_path / "state")[0] == {"number": 3}
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]
    assert sorted(entry.name for entry in (tmp_path / "state").iterdir()) == [MANIFEST_FILE, TENSORS_FILE]


@pytest.fixture
def saved(tmp_path):
    state = {"weights": torch.arange(64.0), "names": ("a", "b"), "rate": 3e-4}
    return save_state(tmp_path / "state", state, {"total_timesteps": 100})


@pytest.mark.parametrize("name", [MANIFEST_FILE, TENSORS_FILE])
def test_truncation_is_always_refused(saved, name):
    """Cut at every percent, and by a single byte."""
    whole = (saved / name).read_bytes()
    for size in {len(whole) * percent // 100 for percent in range(100)} | {len(whole) - 1}:
        (saved / name).write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=re.escape(str(saved / name))):
            load_state(saved)
    (saved / name).write_bytes(whole)
    load_state(saved)


@pytest.mark.parametrize("name", [MANIFEST_FILE, TENSORS_FILE])
def test_every_flipped_bit_is_refused(saved, name):
    """300 of them, chosen at random; no damaged state is ever loaded."""
    whole = (saved / name).read_bytes()
    for bit in random.Random(0).sample(range(8 * len(whole)), 300):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (saved / name).write_bytes(bytes(damaged))
        with pytest.raises(CheckpointError, match=re.escape(str(saved / name))):
            load_state(saved)


def test_missing_files_are_named(saved, tmp_path):
    with pytest.raises(CheckpointError, match=r"nowhere.*manifest\.json cannot be read: No such file"):
        load_state(tmp_path / "nowhere")
    (saved / TENSORS_FILE).unlink()
    with pytest.raises(CheckpointError, match=r"tensors\.safetensors cannot be read: No such file"):
        load_state(saved)


def rewrite_manifest(path, change):
    """Edit a manifest the way a forger would: with a digest that fits."""
    content = json.loads((path / MANIFEST_FILE).read_text())
    content["manifest_sha256"] = "0" * 64
    change(content)
    text = json.dumps(content, indent=1)
    (path / MANIFEST_FILE).write_text(text.replace("0" * 64, hashlib.sha256(text.encode()).hexdigest(), 1))


def test_a_newer_format_is_refused_with_the_way_out(saved):
    rewrite_manifest(saved, lambda content: content.update(format_version=2))
    with pytest.raises(CheckpointError, match=r"format_version 2, and this twostep reads up to 1\. Update twostep"):
        load_state(saved)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda content: content["structure"]["dict"]["weights"].update(tensor="other"), "'other' is missing"),
        (lambda content: content["structure"]["dict"]["weights"].update(shape=[8, 8]), r"instead of \(\[8, 8\]"),
        (lambda content: content.update(structure={"dict": 5}), "cannot be read"),
        (lambda content: content.update(structure={}), "cannot be read"),
        (lambda content: content.update(structure={"code": "os.system"}), "'code' is no kind of node"),
        (lambda content: content.pop("tensors"), "lacks tensors"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(saved, change, complaint):
    rewrite_manifest(saved, change)
    with pytest.raises(CheckpointError, match=complaint):
        load_state(saved)


@pytest.mark.parametrize("text", ["[]", "null", "{}", "[" * 100_000, '{"format_version": "1"}'])
def test_any_other_json_is_refused(saved, text):
    (saved / MANIFEST_FILE).write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        load_state(saved)


def test_a_huge_manifest_is_not_even_read(saved):
    with (saved / MANIFEST_FILE).open("wb") as file:
        file.truncate(10 * 2**30)  # sparse: takes no disk
    with pytest.raises(CheckpointError, match="10737418240 bytes"):
        load_state(saved)


class Payload:
    """Runs a command when unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_pickles_are_refused_and_never_run(saved, tmp_path):
    """A checkpoint from a stranger must not be able to run code."""
    marker = tmp_path / "executed"
    payload = pickle.dumps(Payload(marker))
    for name in (MANIFEST_FILE, TENSORS_FILE):
        whole = (saved / name).read_bytes()
        (saved / name).write_bytes(payload)
        with pytest.raises(CheckpointError):
            load_state(saved)
        (saved / name).write_bytes(whole)
    (saved / TENSORS_FILE).write_bytes(payload)
    digest = hashlib.sha256(payload).hexdigest()
    rewrite_manifest(saved, lambda content: content["tensors"].update(bytes=len(payload), sha256=digest))
    with pytest.raises(CheckpointError, match="does not begin as safetensors do"):
        load_state(saved)
    assert not marker.exists()
    pickle.loads(payload)  # the payload itself is live
    assert marker.exists()


class Killed(BaseException):
    """Passes every handler of an error, as the end of a process does."""


def kill_at(moment, patch):
    """Let every step of saving that touches the disk count, and the one at `moment` never happen."""
    steps = iter(range(1000))

    def mortal(function):
        def call(*args):
            if next(steps) == moment:
                raise Killed
            return function(*args)

        return call

    for name in ("_write_synced", "_sync_folder", "_remove"):
        patch.setattr(checkpoint_module, name, mortal(getattr(checkpoint_module, name)))
    patch.setattr(checkpoint_module.Path, "rename", mortal(checkpoint_module.Path.rename))


def test_killed_at_any_moment_an_old_or_the_new_state_is_there(tmp_path, monkeypatch):
    """Killed before each step of saving: whatever is left loads, and the next save cleans up."""
    numbers = []
    for moment in range(8):
        path = save_state(tmp_path / str(moment) / "state", {"number": 1})
        with monkeypatch.context() as patch:
            kill_at(moment, patch)
            with pytest.raises(Killed):
                save_state(path, {"number": 2})
        numbers.append(load_state(path)[0]["number"])
        save_state(path, {"number": 3})
        assert load_state(path)[0] == {"number": 3}
        assert [entry.name for entry in path.parent.iterdir()] == ["state"]
    assert numbers == [1, 1, 1, 1, 1, 1, 1, 2]


def test_half_a_save_left_behind_changes_nothing(saved):
    """A folder that a killed process left beside the state is neither read nor in the way."""
    leftover = saved.with_name(".state.saving")
    leftover.mkdir()
    (leftover / TENSORS_FILE).write_bytes(b"half")
    assert load_state(saved)[1] == {"total_timesteps": 100}
    save_state(saved, {"number": 2})
    assert load_state(saved)[0] == {"number": 2}
    assert not leftover.exists()


@pytest.mark.parametrize("failing", ["_write_synced", "rename"])
def test_a_full_disk_leaves_the_old_state(tmp_path, monkeypatch, failing):
    path = save_state(tmp_path / "state", {"number": 1})
    renames = []

    def full(*args):
        renames.append(args)
        if failing == "_write_synced" or len(renames) == 2:
            raise OSError(28, "No space left on device")
        return os.rename(*args)

    owner = checkpoint_module if failing == "_write_synced" else checkpoint_module.Path
    with monkeypatch.context() as patch:
        patch.setattr(owner, failing, full)
        with pytest.raises(CheckpointError, match=r"state could not be written: .*No space left"):
            save_state(path, {"number": 2})
    assert load_state(path)[0] == {"number": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


def test_only_saved_states_are_replaced(tmp_path):
    """What is replaced gets deleted, so a folder with anything else in it is left alone."""
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match=r"results is no saved state but holds 'thesis\.tex'"):
        save_state(tmp_path / "results", {"number": 1})
    (tmp_path / "file").write_text("also work")
    with pytest.raises(CheckpointError, match="not overwritten"):
        save_state(tmp_path / "file", {"number": 1})
    (tmp_path / "empty").mkdir()
    save_state(tmp_path / "empty", {"number": 1})


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        ({"a": {"b": object()}}, "a/b is a object"),
        ({"a": np.complex64(1)}, "a is a complex64"),
        ({"a": {1.5: 2}}, r"a has the key 1\.5"),
        ({True: 2}, "The state has the key True"),
        ([np.array(["text"])], "0 is a ndarray of <U4"),
    ],
)
def test_what_cannot_be_stored_is_named(tmp_path, state, complaint):
    with pytest.raises(CheckpointError, match=complaint):
        save_state(tmp_path / "state", state)
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_beyond_json_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="more than JSON can say"):
        save_state(tmp_path / "state", {}, {"policy": torch.nn.Linear(1, 1)})


@pytest.mark.parametrize("kind", ["PCG64", "MT19937", "Philox", "SFC64"])
def test_numpy_generators_go_on_from_where_they_were(tmp_path, kind):
    """R7, R10: through the disk, for every bit generator of numpy."""
    generator = np.random.Generator(getattr(np.random, kind)(1))
    generator.normal(size=5)
    generator.integers(0, 9, dtype=np.int32)  # leaves half a draw in the generator's memory
    loaded, _ = load_state(save_state(tmp_path / "state", {"envs": generator_state(generator)}))
    resumed = np.random.Generator(getattr(np.random, kind)(2))
    restore_generator(resumed, loaded["envs"])
    assert resumed.integers(0, 9, 7, dtype=np.int32).tolist() == generator.integers(0, 9, 7, dtype=np.int32).tolist()
    assert resumed.normal(size=5).tolist() == generator.normal(size=5).tolist()


def test_torch_generators_go_on_from_where_they_were(tmp_path):
    """R7, R10."""
    generator, resumed = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    torch.randn(3, generator=generator)
    loaded, _ = load_state(save_state(tmp_path / "state", generator_state(generator)))
    restore_generator(resumed, loaded)
    assert torch.equal(torch.randn(5, generator=resumed), torch.randn(5, generator=generator))


def test_the_state_of_another_device_begins_a_repeatable_stream():
    """A GPU's generator is described by 16 bytes, which a CPU's cannot take over."""
    of_a_gpu = torch.arange(16, dtype=torch.uint8)
    drawn = []
    for seed, state in ((1, of_a_gpu), (2, of_a_gpu), (1, of_a_gpu + 1)):
        generator = torch.Generator().manual_seed(seed)
        restore_generator(generator, state)
        drawn.append(torch.randn(5, generator=generator))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
