"""Policies as files for other programs: they agree with PyTorch, or they are not written."""

import importlib.util
import json
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from twostep import ActorCritic, AgentConfig, ExportError, PolicyStore, TaskActorCritic, export_policy
from twostep.cli import main
from twostep.export import Deployed, files
from twostep.export.parity import compare
from twostep.policies.playing import Player
from twostep.protocols import Step

onnx = pytest.importorskip("onnx")
SCENARIOS = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "exports.py"))
MASKED = "choices with masks"
RECURRENT = "gru, groups, tanh"


class Direct:
    """Runs a deployed policy in PyTorch where a file would be run; `spoil` changes what it says."""

    def __init__(self, deployed, spoil=lambda outputs: outputs, hide=()):
        self.deployed, self.spoil, self.hide = deployed, spoil, hide

    def run(self, _, inputs):
        given = {name: torch.from_numpy(leaf) for name, leaf in inputs.items()}
        given |= {name: torch.zeros_like(given[name]) for name in self.hide}
        with torch.inference_mode():
            outputs = self.deployed(*(given[port.name] for port in self.deployed.inputs))
        return [leaf.numpy() for leaf in self.spoil(list(outputs))]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A recurrent policy of a robot, saved by a store and exported by the command."""
    folder = tmp_path_factory.mktemp("policies")
    policy = SCENARIOS["make"](RECURRENT)
    record = PolicyStore(folder).save("robot", policy, {"agent_step": 1_000})
    assert main(["export", record.uri, "--out", str(folder / "robot.onnx")]) == 0
    return policy, folder / "robot.onnx"


def test_a_file_plays_as_the_policy_does(exported):
    """L1, L4: raw named groups in, actions of the robot out; memory is carried by whoever runs it."""
    policy, file = exported
    session = files.open_file(file)
    assert [port.name for port in session.get_inputs()] == [
        *("contact", "mode", "proprioception"),
        *("hidden_in", "episode_starts"),
    ], "the critic's own groups are not asked for"
    rows, random = 4, np.random.default_rng(1)
    hidden = np.zeros((rows, 1, 64), np.float32)
    with Player(policy, policy.action_space, rows, None) as player:
        for _ in range(12):
            obs = {name: np.stack([space.sample() for _ in range(rows)]) for name, space in groups(random)}
            starts = random.random(rows) < 0.2
            wanted = player.act(Step(obs, starts))
            seen = {name: leaf for name, leaf in obs.items() if name != "privileged"}
            actions, hidden = session.run(None, {**seen, "hidden_in": hidden, "episode_starts": starts})
            np.testing.assert_allclose(actions, wanted, rtol=1e-4, atol=1e-4)
            assert all(policy.action_space.contains(action) for action in actions)


def groups(random):
    space = SCENARIOS["GROUPS"]
    space.seed(int(random.integers(2**31)))
    return space.spaces.items()


def test_a_file_says_what_it_is(exported):
    """L29: spaces, names, memory, statistics of observations and where they come from, in the file itself."""
    policy, file = exported
    about = {entry.key: entry.value for entry in onnx.load(str(file)).metadata_props}
    facts = {name: json.loads(text) for name, text in about.items() if name != "twostep_version"}
    assert about["twostep_version"]
    assert facts["inputs"]["hidden_in"] == ["batch", 1, 64, "float32"]
    assert facts["outputs"] == {"actions": ["batch", 3, "float32"], "hidden_out": ["batch", 1, 64, "float32"]}
    assert facts["action_space"]["high"] == policy.action_space.high.tolist()
    assert facts["observations_normalized"]["proprioception"]["mean"] == [-1.0, 0.0, 1.0, 2.0, 3.0]
    assert facts["about"]["agent_step"] == 1_000
    assert facts["about"]["policy_version"] == policy.version


def test_choices_and_their_masks(tmp_path):
    exported = export_policy(SCENARIOS["make"](MASKED), tmp_path / "choices.onnx", masks=True, inputs=100)
    assert exported.parity.holds
    session = files.open_file(exported.path)
    only = {"action_masks/gears": [[False, True, False, False, True]], "action_masks/horn": [[False, True]]}
    only["action_masks/way"] = [[False, False, False, True, False]]
    outputs = session.run(None, {"obs": np.zeros((1, 5), np.float32), **{n: np.array(m) for n, m in only.items()}})
    actions = dict(zip([port.name for port in exported.outputs], outputs, strict=True))
    assert actions["actions/way"].tolist() == [4], "the options begin at 1"
    assert actions["actions/gears"].tolist() == [[1, 3]]
    assert not actions["actions/horn"][0, 0]


@pytest.mark.parametrize("name", SCENARIOS["POLICIES"])
def test_what_is_deployed_is_the_policy(name):
    """Every kind of policy: only the actor, one step at a time, gives what whole sequences give."""
    policy = SCENARIOS["make"](name).eval()
    deployed = Deployed(policy, masks=name == MASKED)
    parity = compare(policy, deployed, Direct(deployed), inputs=200)
    assert parity.holds, parity


def test_what_differs_is_noticed():
    """A file that keeps memory over an episode's end, that is a little off, or says nonsense, never passes."""
    policy = SCENARIOS["make"](RECURRENT).eval()
    deployed = Deployed(policy)
    spoiled = {
        "forgets nothing": Direct(deployed, hide=("episode_starts",)),
        "has no memory": Direct(deployed, hide=("hidden_in",)),
        "a little off": Direct(deployed, lambda outputs: [outputs[0] + 1e-3, outputs[1]]),
        "not a number": Direct(deployed, lambda outputs: [outputs[0] * torch.nan, outputs[1]]),
    }
    for what, session in spoiled.items():
        assert not compare(policy, deployed, session, inputs=100).holds, what


def test_only_a_worse_choice_differs():
    """Between options that are equally likely rounding decides, and may decide otherwise in the file."""
    policy = SCENARIOS["make"](MASKED).eval()
    deployed = Deployed(policy)

    def another_way(outputs):
        return [*outputs[:3], 1 + (outputs[3] % 5)]

    assert not compare(policy, deployed, Direct(deployed, another_way), inputs=100).holds
    head = policy.action_head.parts[policy.action_head.names.index("way")]
    torch.nn.init.zeros_(head.linear.weight)
    torch.nn.init.zeros_(head.linear.bias)
    assert compare(policy, deployed, Direct(deployed, another_way), inputs=100).holds


def test_a_file_that_fails_is_not_left(exported, tmp_path, monkeypatch):
    """What was there before stays, and nothing is left beside it."""
    _, file = exported
    target = tmp_path / "policy.onnx"
    target.write_bytes(b"the one before")
    monkeypatch.setattr(files, "_write", lambda deployed, path, metadata: shutil.copy(file, path))
    other = SCENARIOS["make"](RECURRENT, seed=1)
    with pytest.raises(ExportError, match=r"not written: its \w+ differ from the policy's by up to"):
        export_policy(other, target)
    assert [path.name for path in tmp_path.iterdir()] == ["policy.onnx"]
    assert target.read_bytes() == b"the one before"


def test_what_cannot_be_exported_is_said(tmp_path, monkeypatch, capsys):
    box = spaces.Box(-1.0, 1.0, (2,))
    policy = ActorCritic(box, box)
    with pytest.raises(ExportError, match=r"no choices to mask"):
        export_policy(policy, tmp_path / "x.onnx", masks=True)
    with pytest.raises(ExportError, match=r"must end in \.onnx"):
        export_policy(policy, tmp_path / "x.pt")
    with pytest.raises(ExportError, match=r"TaskActorCritic cannot be exported"):
        export_policy(TaskActorCritic(box, box), tmp_path / "x.onnx")
    taken = spaces.Dict({"hidden_in": box})
    with pytest.raises(ExportError, match=r"'hidden_in' would name two inputs"):
        Deployed(ActorCritic(taken, box, AgentConfig(memory="gru")))
    record = PolicyStore(tmp_path).save("mine", policy)
    assert main(["export", record.uri]) == 2
    assert "say where the file goes" in capsys.readouterr().err
    found = importlib.util.find_spec
    monkeypatch.setattr(files, "find_spec", lambda name: None if name == "onnxscript" else found(name))
    assert main(["export", record.uri]) == 2
    assert "pip install 'twostep[export]'" in capsys.readouterr().err
