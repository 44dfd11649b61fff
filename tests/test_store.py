"""Policies that are kept come back as they were, are found by what was said of them, and cannot be mistaken."""

from __future__ import annotations

import json
import logging
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep import (
    ActorCritic,
    AgentConfig,
    CheckpointError,
    ConfigError,
    PolicyError,
    PolicyRecord,
    PolicyStore,
    PPOTrainer,
    as_policy,
    make_env,
)
from twostep.checkpoint import MANIFEST_FILE, TENSORS_FILE, load_manifest, save_state
from twostep.store import described
from twostep.store.architecture import rebuilt, require_form
from twostep.store.spaces import space_from_plain, space_to_plain
from twostep.tree import tree_leaves, tree_map


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path):
    """The same behaviour is promised of both."""
    return PolicyStore(tmp_path / "policies" if request.param == "disk" else None, seed=0)


def small(seed=0, action_space=None, **agent):
    torch.manual_seed(seed)
    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    return ActorCritic(observation_space, action_space or spaces.Discrete(2), AgentConfig(hidden_size=4, **agent))


def answers(policy, steps=3, rows=2):
    """Return what a policy says of random observations: everything that acting and learning could notice."""
    random = np.random.default_rng(0)
    policy.observation_space.seed(0)
    seen = [[policy.observation_space.sample() for _ in range(rows)] for _ in range(steps)]

    def stacked(*leaves):
        return torch.as_tensor(np.stack([np.asarray(leaf) for leaf in leaves]))

    obs = tree_map(lambda *row: torch.stack(row), *[tree_map(stacked, *step) for step in seen])
    starts = torch.as_tensor(random.random((steps, rows)) < 0.3)
    with torch.no_grad():
        output = policy(obs, policy.initial_state(rows), starts)
    return [output.values, *tree_leaves(output.state), *tree_leaves(output.distribution.mode())]


BOX = spaces.Box(np.array([-1, -np.inf, 0], np.float32), np.array([1, np.inf, 5], np.float32))
SPACES = [
    (BOX, spaces.Discrete(3, start=2)),
    (spaces.Box(0, 255, (12, 12, 3), np.uint8), spaces.MultiBinary(3)),
    (spaces.Dict({"z": spaces.Discrete(4), "a": BOX}), spaces.Box(-2, 2, (2,), np.float32)),
    (spaces.Tuple([BOX, spaces.MultiDiscrete([2, 3])]), spaces.Dict(x=spaces.MultiDiscrete([2, 3]), y=BOX)),
]


@pytest.mark.parametrize(("seen", "done"), SPACES)
@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
def test_a_policy_is_built_from_the_manifest_alone(store, seen, done, memory):
    """M13: the right architecture, every tensor and every answer, normalisers and value scale included."""
    config = AgentConfig(hidden_size=6, memory=memory, memory_size=5, value_hidden=(3,), name="auto")
    policy = ActorCritic(seen, done, config)
    statistics = {path: (np.full(leaf.out_features, 0.5), np.full(leaf.out_features, 2.0))
                  for path, leaf in policy.encoder.vectors().items()}  # fmt: skip
    policy.set_observation_statistics(statistics)
    policy.set_value_scale(7.0)
    torch.manual_seed(1)
    drawn = torch.get_rng_state()
    loaded = store.save("one", policy).policy()
    assert torch.equal(torch.get_rng_state(), drawn), "building it takes no random numbers from the program"
    assert loaded.config == config
    assert (loaded.observation_space, loaded.action_space) == (seen, done)
    assert loaded.fingerprint() == policy.fingerprint()
    assert loaded.version == policy.version
    for before, after in zip(answers(policy), answers(loaded), strict=True):
        assert torch.equal(before, after)


def test_nothing_is_shared_with_what_was_saved(store):
    """M13: training goes on, and what was kept stays; so does what is loaded twice."""
    policy = small()
    record = store.save("kept", policy)
    before = answers(policy)
    with torch.no_grad():
        policy.value_head.bias.add_(1.0)
        record.policy().value_head.bias.add_(1.0)
    assert all(map(torch.equal, before, answers(record.policy())))


def test_loading_is_lazy_and_size_is_known_without_it(store, monkeypatch):
    """M13: a record tells its size and metadata from the manifest."""
    policy = small()
    metadata = {"agent_step": 10, "epoch": 3, "score": 1.5, "eval_scores": {"maze": 2.0}, "train_time": 0.5}
    record = store.save("one", policy, metadata)
    monkeypatch.setattr("twostep.store.record.load_state", None)
    monkeypatch.setattr("twostep.store.record.rebuilt", None)
    assert record.num_params() == sum(parameter.numel() for parameter in policy.parameters())
    assert record.metadata == metadata
    assert record.key_and_version() == ("one", 3)
    assert store.records()[0].metadata == metadata


def test_metadata_do_not_grow_from_saving_again(store):
    """MB4: what is loaded and saved again says the same as before, ten times over."""
    record = store.save("one", small(), {"epoch": 1, "extra": {"note": ["a", 1]}})
    for _ in range(10):
        record = store.save("one", record.policy(), record.metadata)
    assert record.metadata == {"epoch": 1, "extra": {"note": ["a", 1]}}
    assert len(store.records()) == 1


def test_another_network_is_refused_in_words_and_loaded_into_its_like(store):
    """M13: nobody but the user's program can build the user's class."""

    class Net(torch.nn.Module):
        def __init__(self, width=4):
            super().__init__()
            self.body, self.value = torch.nn.Linear(3, width), torch.nn.Linear(3, 1)

        def forward(self, obs):
            return self.body(obs), self.value(obs)

    net = Net()
    for saved in (net, as_policy(net, spaces.Discrete(4))):
        record = store.save("theirs", saved)
        with pytest.raises(PolicyError, match=r"Net, which only your program can build.*into=network"):
            record.policy()
        for target in (Net(), as_policy(Net(), spaces.Discrete(4))):
            loaded = record.policy(into=target)
            assert loaded is target
            inner = target if isinstance(target, Net) else target.module
            assert torch.equal(inner.body.weight, net.body.weight)
    unlike = Net(width=5)
    before = unlike.value.weight.clone()
    with pytest.raises(PolicyError, match=r"theirs does not fit into this Net: body.bias is \[4\] there, \[5\] here"):
        record.policy(into=unlike)
    assert torch.equal(unlike.value.weight, before)


@pytest.mark.parametrize("action_dist", ["gaussian", "squashed", "beta"])
@pytest.mark.parametrize("std", ["learned", "fixed", "state"])
def test_a_policy_is_built_with_every_distribution(store, action_dist, std):
    """L25: what fills a bounded box asks for its sides, which are known before there are tensors."""
    policy = small(action_space=spaces.Box(-1, 3, (2,), np.float32), action_dist=action_dist, std=std, init_std=0.5)
    assert torch.equal(answers(store.save("mine", policy).policy())[1], answers(policy)[1])


def test_compiled_policy_is_kept_as_what_it_is(store):
    class Compiled(torch.nn.Module):
        """Made as by `torch.compile`, which takes seconds to begin."""

        def __init__(self, module):
            super().__init__()
            self._orig_mod = module

    policy = small()
    record = store.save("compiled", Compiled(policy))
    assert type(record.policy()) is ActorCritic
    assert all(map(torch.equal, answers(policy), answers(record.policy())))


def test_selectors(store):
    """M13: latest, best, random, all."""
    policy = small()
    scores = [0.5, 3.0, None, float("nan"), 2.0]
    for epoch, score in enumerate(scores):
        store.save(f"step_{epoch}", policy, {"epoch": epoch, "score": score, "eval_scores": {"maze": -epoch}})
    epochs = [record.metadata["epoch"] for record in store.policies()]
    assert epochs == [0, 1, 2, 3, 4]
    assert store.policy().name == "step_4"
    assert [record.name for record in store.policies(selector="latest", n=2)] == ["step_4", "step_3"]
    assert [record.name for record in store.policies(selector="best", n=9)] == ["step_1", "step_4", "step_0"]
    assert store.policy(selector="best", metric="maze").name == "step_0"
    drawn = [record.name for record in store.policies(selector="random", n=4)]
    assert len(set(drawn)) == 4
    assert len({store.policy(selector="random").name for _ in range(60)}) == 5


def test_random_choice_depends_on_the_seed_alone():
    def drawn(seed):
        store = PolicyStore(seed=seed)
        for number in range(10):
            store.save(f"p{number}", small())
        return [record.name for record in store.policies(selector="random", n=5)]

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize(
    ("wish", "complaint"),
    [
        ({"selector": "top"}, "selector='top' must be one of latest, best, random, all"),
        ({"n": 0}, "n=0 must be 1 or more"),
        ({"selector": "best", "metric": "fame"}, r"metric='fame' is a number .*of no policy in .*There is maze;"),
        ({"uri": "s3://bucket"}, r"begins with s3://, but must with file://, run://, memory:// or wandb://"),
    ],
)
def test_wishes_that_cannot_be_met(store, wish, complaint):
    store.save("one", small(), {"score": None, "eval_scores": {"maze": 1}})
    with pytest.raises(ConfigError, match=complaint):
        store.policies(**wish)


def test_an_empty_store_says_so(store, tmp_path):
    with pytest.raises(CheckpointError, match=r"There is no policy in .*: save one with PolicyStore.save"):
        store.policy()
    with pytest.raises(CheckpointError, match="There is no policy in"):
        store.policy(f"file://{tmp_path}/nowhere")
    with pytest.raises(CheckpointError, match="There is no policy in"):
        store.policy("memory://nobody")
    assert store.records() == []


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "-x"])
def test_names_stay_inside_the_folder(store, name, tmp_path):
    """M13: no name leads out of the store."""
    with pytest.raises(ConfigError, match="name="):
        store.save(name, small())
    assert not any(tmp_path.rglob(MANIFEST_FILE))


def test_metadata_that_json_cannot_say(store):
    with pytest.raises(ConfigError, match=r"metadata of 'one' are more than JSON can say.*float\(x\)"):
        store.save("one", small(), {"score": torch.tensor(1.0)})


# ------------------------------------------------------------------ on disk


def test_uris_of_folders(tmp_path, monkeypatch):
    """M13: file:// names a policy, a folder of them, absolute or from here; a path does too."""
    store = PolicyStore(tmp_path / "all of them")
    first, _ = store.save("first", small(0)), store.save("second", small(1))
    assert first.uri.startswith("file:///")
    assert first.local_path == tmp_path / "all of them" / "first"
    monkeypatch.chdir(tmp_path)
    elsewhere = PolicyStore()
    for uri in (first.uri, "file://all%20of%20them/first", "file://all of them/first", first.local_path):
        assert elsewhere.load_from_uri(uri).name == "first"
        assert elsewhere.policy(uri).uri == first.uri
    assert [record.name for record in elsewhere.policies("all of them")] == ["first", "second"]
    with pytest.raises(CheckpointError, match=r"names 2 policies \(first, second\), but one is asked for"):
        elsewhere.load_from_uri("all of them")
    by_hand = PolicyRecord("mine", first.uri)
    assert all(map(torch.equal, answers(by_hand.policy()), answers(small(0))))


def test_memory_is_not_a_folder():
    store = PolicyStore()
    record = store.save("one", small())
    assert record.uri == "memory://one"
    assert record.local_path is None
    assert store.load_from_uri(record.uri) is record
    with pytest.raises(CheckpointError, match=r"memory://one is in no folder.*load_from_uri"):
        PolicyRecord("one", "memory://one").policy()


def test_a_damaged_policy_is_left_out_loudly(tmp_path, caplog):
    """M13: a store is not closed because one of its policies is damaged, and never gives the damaged one."""
    store = PolicyStore(tmp_path)
    store.save("good", small(0))
    bad = store.save("bad", small(1))
    tensors = bad.local_path / TENSORS_FILE
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"bad/tensors.safetensors is damaged"):
        bad.policy()
    manifest = bad.local_path / MANIFEST_FILE
    manifest.write_text(manifest.read_text().replace('"num_params"', '"num_parans"'))
    with caplog.at_level(logging.WARNING, "twostep.store"):
        assert [record.name for record in store.records()] == ["good"]
    assert "bad is left out" in caplog.text
    assert "damaged or was edited" in caplog.text


def test_a_manifest_cannot_make_us_build_what_does_not_fit(tmp_path):
    """M13: a description from a stranger is held against the tensors before memory is taken for it."""
    description = described(small())
    huge = {**description, "config": {**description["config"], "hidden_size": 16_384, "num_layers": 64}}
    wide = {**description, "observation_space": {**description["observation_space"], "shape": [10**12]}}
    many = {**description, "action_space": {"space": "Discrete", "n": 10**12, "start": 0}}
    code = {**description, "config": {"hidden_size": "__import__('os')"}}
    for number, content in enumerate((huge, wide, many, code)):
        path = save_state(tmp_path / str(number), {"policy_state_dict": small().state_dict()}, {"policy": content})
        with pytest.raises(CheckpointError, match="cannot be built from its description"):
            PolicyRecord("strange", path.as_uri()).policy()


NONSENSE = [
    None,
    -1,
    10**9,
    10**400,
    1e300,
    "inf",
    "x",
    [],
    {},
    [[1]],
    {"space": "Box"},
    True,
    "int8",
    "O",
    [10**6] * 5,
]


def places(node, above=()):
    """List the way to every value inside nested dicts and lists."""
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [above, *(place for key, value in inside for place in places(value, (*above, key)))]


def test_any_nonsense_in_a_description_is_refused_in_words():
    """M13: whatever stands where, the answer is a policy or one of our errors, and soon."""
    policy = ActorCritic(*SPACES[2], AgentConfig(hidden_size=4, memory="gru", encoders={"a": (3,)}))
    plain, random = json.loads(json.dumps(described(policy))), np.random.default_rng(0)
    nested = {"space": "Tuple", "parts": []}
    for _ in range(2000):
        nested = {"space": "Tuple", "parts": [nested]}
    ways, refused = places(plain)[1:], 0
    for number in range(200):
        description = json.loads(json.dumps(plain))
        *above, last = ways[random.integers(len(ways))]
        inside = description
        for key in above:
            inside = inside[key]
        if number % 10 == 0 and isinstance(inside, dict):
            del inside[last]
        else:
            inside[last] = [*NONSENSE, nested][random.integers(len(NONSENSE) + 1)]
        started = time.perf_counter()
        try:
            require_form(description, "it")
            rebuilt(description, policy.state_dict(), "it")
        except (CheckpointError, PolicyError):
            refused += 1
        assert time.perf_counter() - started < 2
    assert refused > 100


def test_saved_states_of_other_kinds_are_told_apart(tmp_path, caplog):
    PolicyStore(tmp_path).save("one", small())
    path = save_state(tmp_path / "other", {"a": 1})
    assert [record.name for record in PolicyStore(tmp_path).records()] == ["one"]
    assert not caplog.records, "it is whole, and no policy"
    with pytest.raises(CheckpointError, match="without the description of a policy"):
        PolicyStore().load_from_uri(path)


def test_replacing_is_one_step(tmp_path, monkeypatch):
    """MB4: a save that fails leaves the older policy."""
    store = PolicyStore(tmp_path)
    record = store.save("one", small(0))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("twostep.checkpoint.files._write_synced", full)
    with pytest.raises(CheckpointError, match="No space left"):
        store.save("one", small(1))
    monkeypatch.undo()
    assert all(map(torch.equal, answers(record.policy()), answers(small(0))))
    assert len(store.records()) == 1


def test_a_training_checkpoint_is_a_policy(tmp_path):
    """M13, MB4: a run's folder names its checkpoint's policy, which is the one that was trained."""
    env = make_env("CartPole-v1", 2)
    trainer = PPOTrainer(small_for(env), env, rollout_steps=16, normalize_obs=True, normalize_returns=True, seed=0)
    trainer.train(32)
    run = tmp_path / "runs" / "CartPole"
    trainer.save_checkpoint(run / "checkpoint")
    trainer.train(64)
    trainer.save_checkpoint(run / "best")
    store = PolicyStore()
    assert [record.name for record in store.policies(run)] == ["checkpoint", "best"]
    assert store.policy(f"run://{run}").name == "best"
    assert store.policy(f"run://{tmp_path}").name == "best"
    assert store.policy(run, "best").metadata == {"agent_step": 64, "epoch": 2, "score": pytest.approx(20, abs=20)}
    loaded = store.policy(run).policy()
    assert all(map(torch.equal, answers(trainer.policy), answers(loaded)))
    assert loaded.fingerprint()[-1] == (True,), "the normaliser's statistics came with it"
    assert float(loaded.value_scale) == float(trainer.policy.value_scale) != 1.0


def small_for(env):
    torch.manual_seed(0)
    return ActorCritic(env.observation_space, env.action_space, AgentConfig(hidden_size=4))


def test_a_checkpoint_of_ones_own_network_is_loaded_into_its_like(tmp_path):
    """M13: the trainer keeps an adapter around the network; the network itself gets its tensors back."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Linear(4, 3)

        def forward(self, obs):
            return self.body(obs)[..., :2], self.body(obs)[..., 2:]

    env, net, fresh = make_env("CartPole-v1", 2), Net(), Net()
    trainer = PPOTrainer(net, env, rollout_steps=16)
    trainer.train(32)
    record = PolicyStore().load_from_uri(trainer.save_checkpoint(tmp_path / "checkpoint"))
    assert record.policy(into=fresh) is fresh
    assert torch.equal(fresh.body.weight, net.body.weight)


# ------------------------------------------------------------------ spaces


@st.composite
def any_space(draw, depth=2):
    kinds = ["box", "discrete", "multi_discrete", "multi_binary"] + (["dict", "tuple"] if depth else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "box":
        dtype = draw(st.sampled_from([np.float32, np.float64, np.uint8, np.int64]))
        shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
        if draw(st.booleans()) and np.issubdtype(dtype, np.floating):
            return spaces.Box(-np.inf, np.inf, shape, dtype)
        low = np.full(shape, draw(st.integers(0, 9)), dtype)
        return spaces.Box(low, low + np.arange(low.size).reshape(shape).astype(dtype), shape, dtype)
    if kind == "discrete":
        return spaces.Discrete(draw(st.integers(1, 9)), start=draw(st.integers(-3, 3)))
    if kind == "multi_discrete":
        return spaces.MultiDiscrete(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    if kind == "multi_binary":
        return spaces.MultiBinary(draw(st.sampled_from([1, 3, [2, 2]])))
    parts = draw(st.lists(any_space(depth - 1), min_size=1, max_size=3))
    if kind == "tuple":
        return spaces.Tuple(parts)
    return spaces.Dict([(f"{'zyx'[at]}", part) for at, part in enumerate(parts)])


@settings(max_examples=100, deadline=None)
@given(any_space())
def test_any_space_survives_json(space):
    """M13: spaces are plain JSON, and come back equal, order of parts included."""
    again = space_from_plain(json.loads(json.dumps(space_to_plain(space), allow_nan=False)))
    assert again == space
    assert str(again) == str(space)
    if isinstance(space, spaces.Dict):
        assert list(again.spaces) == list(space.spaces)


def test_a_space_that_cannot_be_written_down():
    with pytest.raises(PolicyError, match="cannot be written down"):
        space_to_plain(spaces.Text(3))


# ------------------------------------------------------------------ Weights & Biases


class _Artifact:
    def __init__(self, name, type, metadata):
        self.name, self.type, self.metadata, self.files = name, type, metadata, {}

    def add_dir(self, folder):
        self.files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}

    def download(self, root):
        for name, content in self.files.items():
            (Path(root) / name).write_bytes(content)


class _Run:
    def __init__(self):
        self.logged = {}

    def log_artifact(self, artifact):
        self.logged[f"team/{artifact.name}:v3"] = artifact


def test_artifacts(store, monkeypatch):
    """M13: with wandb a policy goes to a run and comes back by its URI."""
    run = _Run()

    class Api:
        def artifact(self, path):
            return run.logged[path]

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(Artifact=_Artifact, Api=Api))
    policy = small()
    artifact = store.add_to_wandb_run(store.save("mine", policy, {"score": 2.0}), run)
    assert (artifact.type, artifact.metadata) == ("policy", {"score": 2.0})
    record = store.policy("wandb://team/mine:v3")
    assert record.key_and_version() == ("mine", 3)
    assert record.metadata == {"score": 2.0}
    assert all(map(torch.equal, answers(policy), answers(record.policy())))
    with pytest.raises(CheckpointError, match=r"wandb://team/other:v1 cannot be fetched: KeyError"):
        store.policy("wandb://team/other:v1")


def test_without_wandb(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"needs the package wandb: pip install wandb"):
        store.policy("wandb://team/mine:v3")


def test_what_is_no_network_is_refused(store):
    with pytest.raises(PolicyError, match=r"object is no torch.nn.Module"):
        store.save("one", object())


def test_manifest_is_checked_when_read_alone(tmp_path):
    path = save_state(tmp_path / "one", {"a": 1}, {"said": 1})
    assert load_manifest(path) == {"said": 1}
    manifest = path / MANIFEST_FILE
    manifest.write_text(manifest.read_text().replace('"said": 1', '"said": 2'))
    with pytest.raises(CheckpointError, match="damaged or was edited"):
        load_manifest(path)
