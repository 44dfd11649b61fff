"""The command: RELIABILITY 21 and 22, LB13, M10, JB10, and training from one end to the other."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import yaml

from twostep.cli import main
from twostep.cli.options import parse_eval, parse_train
from twostep.cli.stopping import SIGNALS
from twostep.cli.training import load_config
from twostep.config import VOCABULARY, TrainingConfig
from twostep.errors import CheckpointError

GOOD = b"env: {id: CartPole-v1}\n"

MALFORMED_YAML = {
    "empty": (b"", "empty"),
    "only a comment": (b"# nothing\n", "empty"),
    "a list": (b"- env\n- ppo\n", "'env'"),
    "a number": (b"42\n", "42"),
    "words": (b"train please\n", "train please"),
    "no environment": (b"ppo: {lr: 1e-3}\n", "names no environment"),
    "unknown key": (GOOD + b"ppo:\n  learning_rat: 1e-3\n", "learning_rat"),
    "unknown key at the top": (GOOD + b"optimiser: adam\n", "'optimizer'"),
    "unknown section": (GOOD + b"trainr: {total_timesteps: 10}\n", "'trainer'"),
    "unknown everything": (GOOD + b"qqqq: 1\n", "qqqq"),
    "duplicate key": (GOOD + b"ppo:\n  lr: 1\n  lr: 2\n", "already on line 3"),
    "duplicate section": (GOOD + b"ppo: {lr: 1}\nppo: {gamma: 0.9}\n", "'ppo'"),
    "two names for one": (GOOD + b"ppo: {lr: 1, learning_rate: 2}\n", "'ppo.learning_rate'"),
    "tab": (GOOD + b"ppo:\n\tlr: 1\n", "tab"),
    "object tag": (GOOD + b"ppo: !!python/object/apply:os.system [ls]\n", "os.system"),
    "own tag": (GOOD + b"ppo: !secret\n", "!secret"),
    "unclosed bracket": (GOOD + b"ppo: {lr: 1\n", "not YAML"),
    "unclosed quote": (GOOD + b"device: 'cpu\n", "not YAML"),
    "colons": (GOOD + b"ppo: lr: 1\n", "mapping values"),
    "two documents": (GOOD + b"---\nppo: {}\n", "another document"),
    "undefined reference": (GOOD + b"ppo: *defaults\n", "defaults"),
    "circle": (b"env: &env {id: A, kwargs: {self: *env}}\n", "circle"),
    "deep": (b"[" * 5000, "deep"),
    "not UTF-8": (b"device: \xff\xfe\n", "UTF-8"),
    "binary": (b"\x7fELF\x00\x01", "not YAML"),
    "date": (GOOD + b"seed: 2024-01-99\n", "day"),
    "key is a number": (GOOD + b"ppo: {3: 4}\n", "key 3"),
    "key is a list": (GOOD + b"? [a]\n: 1\n", "unhashable"),
    "section is a number": (GOOD + b"ppo: 3\n", "ppo=3"),
    "section is a list": (GOOD + b"trainer: [1]\n", "[1]"),
    "number is a word": (GOOD + b"ppo: {lr: fast}\n", "'fast'"),
    "number is a list": (GOOD + b"ppo: {lr: [1, 2]}\n", "[1, 2]"),
    "number is a mapping": (GOOD + b"ppo: {lr: {start: 1}}\n", "'start'"),
    "number is nothing": (GOOD + b"ppo: {gamma: }\n", "None"),
    "int is a fraction": (GOOD + b"ppo: {update_epochs: 4.5}\n", "4.5"),
    "int is a bool": (GOOD + b"ppo: {update_epochs: yes}\n", "True"),
    "float is a bool": (GOOD + b"ppo: {lr: true}\n", "True"),
    "bool is a number": (GOOD + b"ppo: {recompute_advantages: 3}\n", "3"),
    "bool is a word": (GOOD + b"ppo: {recompute_advantages: maybe}\n", "'maybe'"),
    "text is a number": (GOOD + b"experiment_name: 7\n", "quotes"),
    "text is a date": (GOOD + b"experiment_name: 2024-01-01\n", "quotes"),
    "no such choice": (GOOD + b"ppo: {optimizer: adm}\n", "'adam'"),
    "choice is a bool": (GOOD + b"ppo: {lr_schedule: off}\n", "False"),
    "list is a word": (GOOD + b"agent: {action_hidden: wide}\n", "'wide'"),
    "list has a word": (GOOD + b"agent: {action_hidden: [64, wide]}\n", "'wide'"),
    "pair has three": (GOOD + b"ppo: {adaptive_minibatch: [1, 2, 3]}\n", "[1, 2, 3]"),
    "pair is the wrong way round": (GOOD + b"ppo: {adaptive_minibatch: [512, 32]}\n", "(512, 32)"),
    "kwargs are a list": (b"env: {id: A, kwargs: [1]}\n", "[1]"),
    "kwargs take the seed": (b"env: {id: A, kwargs: {seed: 1}}\n", "kwargs.seed=1"),
    "negative": (GOOD + b"ppo: {lr: -3e-4}\n", "-0.0003"),
    "negative steps": (GOOD + b"trainer: {total_timesteps: -5}\n", "-5"),
    "zero envs": (b"env: {id: A, num_envs: 0}\n", "num_envs=0"),
    "a billion envs": (b"env: {id: A, num_envs: 1000000000}\n", "1000000000"),
    "zero minibatches": (GOOD + b"ppo: {num_minibatches: 0}\n", "num_minibatches=0"),
    "gamma of 1.5": (GOOD + b"ppo: {gamma: 1.5}\n", "gamma=1.5"),
    "not a number": (GOOD + b"ppo: {lr: .nan}\n", "nan"),
    "infinite": (GOOD + b"ppo: {lr: .inf}\n", "inf"),
    "infinite by exponent": (GOOD + b"ppo: {lr: 1e999}\n", "inf"),
    "infinite steps": (GOOD + b"trainer: {total_timesteps: 1e999}\n", "inf"),
    "endless digits": (GOOD + b"seed: " + b"9" * 5000, "5000 digits"),
    "negative seed": (GOOD + b"seed: -1\n", "-1"),
    "no such device": (GOOD + b"device: gpu\n", "'gpu'"),
    "sequences of nothing": (GOOD + b"minibatch_sequences: 0\n", "minibatch_sequences=0"),
    "sequences are words": (GOOD + b"minibatch_sequences: many\n", "'many'"),
    "run_dir is nothing": (GOOD + b"logging: {run_dir: ''}\n", "run_dir=''"),
    "hidden layers of zero": (GOOD + b"agent: {value_hidden: [0]}\n", "(0,)"),
    "encoder of words": (GOOD + b"agent: {encoders: {camera: wide}}\n", "'wide'"),
    "no such environment": (b"env: {id: CartPol-v1}\n", "CartPole-v1"),
    "no such module": (b"env: {id: 'nowhere_to_be_found:make'}\n", "nowhere_to_be_found"),
}

WRONG_WORDS = {
    "nothing": ([], "say what to do"),
    "no such command": (["trian"], "'train'"),
    "no environment": (["train"], "environment"),
    "empty environment": (["train", ""], "environment"),
    "two environments": (["train", "A-v0", "B-v0"], "'B-v0'"),
    "unknown option": (["train", "CartPole-v1", "--lrr", "1"], "--lr"),
    "unknown option in a section": (["train", "CartPole-v1", "--ppo.gama", "1"], "--ppo.gamma"),
    "unknown section": (["train", "CartPole-v1", "--foo.bar", "1"], "foo.bar"),
    "too short a name": (["train", "CartPole-v1", "--name", "x"], "--agent.name"),
    "missing value": (["train", "CartPole-v1", "--lr"], "--lr"),
    "option for a value": (["train", "CartPole-v1", "--lr", "--gamma", "1"], "--lr"),
    "single hyphen": (["train", "CartPole-v1", "-lr", "1"], "'-lr'"),
    "bare hyphens": (["train", "CartPole-v1", "--", "1"], "'--'"),
    "only a value": (["train", "CartPole-v1", "--=1"], "'--=1'"),
    "given twice": (["train", "CartPole-v1", "--lr", "1", "--learning-rate", "2"], "given twice"),
    "a group": (["train", "CartPole-v1", "--ppo", "1"], "--ppo.NAME"),
    "kwargs as a group": (["train", "CartPole-v1", "--env.kwargs", "1"], "--env.kwargs.NAME"),
    "no- of a number": (["train", "CartPole-v1", "--no-lr"], "takes a value"),
    "number is a word": (["train", "CartPole-v1", "--lr", "abc"], "'abc'"),
    "number is negative": (["train", "CartPole-v1", "--clip_range", "-0.2"], "-0.2"),
    "number is nothing": (["train", "CartPole-v1", "--lr="], "''"),
    "int is a fraction": (["train", "CartPole-v1", "--update_epochs", "1.5"], "'1.5'"),
    "flag is a word": (["train", "CartPole-v1", "--recompute_advantages=maybe"], "'maybe'"),
    "flag before a word": (["train", "CartPole-v1", "--recompute_advantages", "maybe"], "'maybe'"),
    "no such choice": (["train", "CartPole-v1", "--memory", "gur"], "'gru'"),
    "no such file": (["train", "missing.yaml"], "missing.yaml"),
    "a folder": (["train", "."], "folder"),
    "a folder named like a file": (["train", "folder.yaml"], "folder"),
    "a device file": (["train", "/dev/null/x.yaml"], "/dev/null/x.yaml"),
    "a name with a zero byte": (["train", "a\0b.yaml"], "x00"),
    "an endless name": (["train", "x" * 5000 + ".yaml"], "xxx"),
    "a huge file": (["train", "huge.yaml"], "2,000,000,000"),
    "no such environment": (["train", "CartPole-v9"], "'CartPole-v9'"),
    "no such argument": (["train", "CartPole-v1", "--env.kwargs.wind", "1"], "wind"),
    "no GPU there": (["train", "CartPole-v1", "--device", "cuda:99"], "cuda:99"),
    "a network that does not fit": (["train", "CartPole-v1", "--agent.critic_only", "camera"], "camera"),
    "runs in a file": (["train", "CartPole-v1", "--run_dir", "file"], "'file'"),
    "no such run": (["eval", "nowhere"], "'nowhere'"),
    "no run inside": (["eval", "."], "holds no run"),
    "two runs": (["eval", "a", "b"], "'b'"),
    "unknown option of eval": (["eval", "--epsodes", "3"], "--episodes"),
    "no episodes": (["eval", "--episodes", "0"], "0"),
    "episodes are words": (["eval", "--episodes", "many"], "'many'"),
    "episodes twice": (["eval", "--episodes", "1", "--episodes", "2"], "twice"),
    "single hyphen for eval": (["eval", "-n"], "'-n'"),
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Every command here runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complaint(capsys, words):
    started = time.process_time()
    code = main(words)
    seconds = time.process_time() - started
    out, err = capsys.readouterr()
    assert code == 2, (code, out, err)
    assert out == ""
    assert err.startswith("twostep: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert len(err) < 600
    assert "Traceback" not in err
    return err, seconds


@pytest.mark.parametrize("case", MALFORMED_YAML)
def test_malformed_yaml(capsys, elsewhere, case):
    """RELIABILITY 21: exit code 2, one line, with the offending value or key, at once."""
    content, expected = MALFORMED_YAML[case]
    Path("config.yaml").write_bytes(content)
    err, seconds = complaint(capsys, ["train", "config.yaml"])
    assert expected in err
    assert "config.yaml" in err or "environment" in err or "module" in err
    assert seconds < 1.0
    assert sorted(os.listdir()) == ["config.yaml"], "nothing was begun"


@pytest.mark.parametrize("case", WRONG_WORDS)
def test_wrong_words(capsys, elsewhere, case):
    words, expected = WRONG_WORDS[case]
    Path("file").touch()
    Path("folder.yaml").mkdir()
    with open("huge.yaml", "wb") as file:
        file.truncate(2_000_000_000)
    err, _ = complaint(capsys, words)
    assert expected in err
    assert sorted(os.listdir()) == ["file", "folder.yaml", "huge.yaml"], "nothing was begun"


def test_complaints_name_the_line(capsys):
    Path("config.yaml").write_text("env: {id: CartPole-v1}\n\nppo:\n  gamma: 0.9\n  # fast\n  lr: -1\n")
    assert "config.yaml:6: ppo.lr=-1.0 must be positive" in complaint(capsys, ["train", "config.yaml"])[0]


@pytest.mark.parametrize(
    "words", [["--help"], ["train", "--help"], ["train", "bad.yaml"], ["train", "A", "--lrr", "1"]]
)
def test_no_torch_before_the_input_is_right(words):
    """RELIABILITY 21: within a second, in a fresh process that never imports torch."""
    Path("bad.yaml").write_text("ppo: {lrr: 1}\n")
    code = (
        f"import sys; from twostep.cli import main; main({words!r}); sys.exit(any('torch' in m for m in sys.modules))"
    )
    started = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - started
    assert used < 1.0, "a fifth of a second on an idle machine"


def test_help_lists_every_setting(capsys):
    """RELIABILITY 22: with default and meaning."""
    assert main(["train", "--help"]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    for setting in VOCABULARY.fields.values():
        assert f"--{setting.path[-1]}" in listed or f"--{setting.name}" in listed
        assert setting.doc in listed
    assert "--lr X [0.0003]" in listed
    assert "cartpole (CartPole-v1)" in listed
    assert main(["--help"]) == main(["eval", "-h"]) == main(["--version"]) == 0


def test_output_that_nobody_reads_is_no_error():
    code = "import sys; from twostep.cli import main; sys.exit(main(['train', '--help']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["--lr", "1e-3"], {"ppo.lr": "1e-3"}),
        (["--ppo.lr=1e-3"], {"ppo.lr": "1e-3"}),
        (["--learning-rate", "1e-3"], {"ppo.lr": "1e-3"}),
        (["--trainer.learning_rate", "1e-3"], {"ppo.lr": "1e-3"}),
        (["--solved_at", "-200"], {"trainer.solved_at": "-200"}),
        (["--total-timesteps", "50_000"], {"trainer.total_timesteps": "50_000"}),
        (["--normalize_obs"], {"ppo.normalize_obs": "true"}),
        (["--normalize_obs", "false"], {"ppo.normalize_obs": "false"}),
        (["--no-tensorboard"], {"logging.tensorboard": False}),
        (["--shared"], {"agent.shared": "true"}),
        (["--agent.memory", "gru", "--seed=7"], {"agent.memory": "gru", "seed": "7"}),
        (["--env.kwargs.render_mode", "x"], {"env.kwargs.render_mode": "x"}),
        (["--env-kwargs.g=9.8"], {"env.kwargs.g": 9.8}),
        (["--env.kwargs.my-key=true"], {"env.kwargs.my-key": True}),
        (["--encoders.camera", "64,64"], {"agent.encoders.camera": "64,64"}),
    ],
)
def test_options(words, changes):
    """JB10: every name, in every way of writing."""
    assert parse_train(["CartPole-v1", *words]) == ("CartPole-v1", changes)
    assert parse_train([*words, "--num_envs", "4", "CartPole-v1"]) == ("CartPole-v1", changes | {"env.num_envs": "4"})
    load_config("CartPole-v1", changes)


def test_eval_options():
    request = parse_eval(["--sample", "runs/a", "--episodes=5", "--seed", "3"])
    assert (request.run, request.episodes, request.sample, request.seed, request.device) == ("runs/a", 5, True, 3, None)
    assert parse_eval([]).run == "runs"


def test_settings_come_from_the_shipped_file_of_the_environment():
    assert load_config("CartPole-v1", {}).ppo.rollout_steps == load_config("cartpole", {}).ppo.rollout_steps == 32
    assert load_config("CartPole-v1", {"ppo.rollout_steps": "64"}).ppo.rollout_steps == 64
    assert load_config("Other-v0", {}) == TrainingConfig.from_dict({"env": "Other-v0"})


SMALL = ["--rollout_steps", "64", "--num_envs", "2", "--update_epochs", "1", "--hidden_size", "8", "--total_timesteps"]


def run_folder():
    (folder,) = Path("runs").iterdir()
    return folder


def test_train_then_eval(capsys):
    """M10, RELIABILITY 22: the run's folder holds all that is needed, in the effective settings too."""
    Path("mine.yaml").write_text("env: {id: CartPole-v1}\nppo: {learning_rate: 1e-3}\nlogging: {csv: true}\n")
    assert main(["train", "mine.yaml", *SMALL, "1000", "--checkpoint_every", "300", "--no-tensorboard"]) == 0
    out, err = capsys.readouterr()
    folder = run_folder()
    assert "CartPole-v1: finished after 1,024 steps" in out
    assert f"Next: twostep eval {folder}" in out
    assert err == ""
    assert sorted(os.listdir(folder)) == [
        "checkpoints",
        "config.yaml",
        "learning_curve.png",
        "metrics.csv",
        "metrics.jsonl",
    ]
    config = TrainingConfig.from_yaml(folder / "config.yaml")
    assert (config.ppo.lr, config.agent.hidden_size, config.trainer.total_timesteps) == (1e-3, 8, 1000)
    assert set(yaml.safe_load((folder / "config.yaml").read_text())) == {*TrainingConfig().to_dict()}
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(128, 1025, 128))

    for words in (["eval", str(folder)], ["eval"], ["eval", "runs", "--sample"]):
        assert main([*words, "--episodes", "3"]) == 0
        out, err = capsys.readouterr()
        assert f"{folder}: 3 episodes of CartPole-v1" in out
        assert "return" in out
        assert "length" in out
        assert err == ""


def test_the_same_seed_gives_the_same_run(capsys):
    for _ in range(2):
        assert main(["train", "CartPole-v1", *SMALL, "512", "--seed", "5", "--no-progress", "--no-tensorboard"]) == 0
        assert main(["eval", "--episodes", "2"]) == 0
    returns = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  return")]
    assert returns[0] == returns[1]
    first, second = (
        [{k: v for k, v in json.loads(line).items() if "time" not in k and k != "steps_per_second"} for line in lines]
        for lines in ((folder / "metrics.jsonl").read_text().splitlines() for folder in Path("runs").iterdir())
    )
    assert first == second


def test_training_stops_when_it_is_solved(capsys):
    assert main(["train", "CartPole-v1", *SMALL, "1_000_000", "--solved_at", "5", "--no-tensorboard"]) == 0
    out = capsys.readouterr().out
    assert "solved (5) after" in out
    assert "over the last 100 episodes" in out


class Lights(gym.Env):
    """Breaks at a step of one's choice."""

    signalled = False

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, breaks_at=1_000_000, how="nan"):
        self.breaks_at, self.how, self.steps = breaks_at, how, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        broken = self.steps == self.breaks_at
        if broken and self.how == "interrupt":
            raise KeyboardInterrupt
        if broken and self.how in SIGNALS and not Lights.signalled:
            Lights.signalled = True  # of two environments the first
            signal.raise_signal(getattr(signal, self.how))
        if broken and self.how == "twice":
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
        obs = np.full(2, np.nan if broken and self.how == "nan" else 0.5, np.float32)
        return obs, float(action), self.steps % 10 == 0, False, {}


@pytest.fixture
def lights(monkeypatch):
    monkeypatch.setattr(Lights, "signalled", False)
    gym.register("Lights-v0", entry_point=Lights)
    yield "Lights-v0"
    del gym.registry["Lights-v0"]


@pytest.mark.parametrize(("how", "code"), [("interrupt", 130), *zip(SIGNALS, (130, 143, 138, 129), strict=True)])
def test_a_stopped_run_keeps_what_was_learned(capsys, lights, how, code):
    """RELIABILITY 15: the signal's own exit code, after the update and its checkpoint."""
    before = signal.getsignal(signal.SIGTERM)
    stop = ["--env.kwargs.breaks_at", "200", "--env.kwargs.how", how]
    assert main(["train", lights, *SMALL, "100_000", *stop, "--no-tensorboard"]) == code
    assert "stopped after" in capsys.readouterr().out
    assert {"checkpoints", "metrics.jsonl", "learning_curve.png"} <= set(os.listdir(run_folder()))
    assert signal.getsignal(signal.SIGTERM) is before
    assert main(["eval", "--episodes", "2"]) == 0


def test_a_second_signal_stops_at_once(lights):
    """RELIABILITY 15: nothing more is saved, and what the handlers were comes back."""
    before = signal.getsignal(signal.SIGINT)
    stop = ["--env.kwargs.breaks_at", "200", "--env.kwargs.how", "twice", "--checkpoint_every", "100"]
    with pytest.raises(SystemExit) as ended:
        main(["train", lights, *SMALL, "100_000", *stop, "--no-tensorboard"])
    assert ended.value.code == 143
    newest = max(os.listdir(run_folder() / "checkpoints"))
    assert newest == "step_000000000384", "of the last update before step 200 of two environments"
    assert ".lock" not in os.listdir(run_folder())
    assert signal.getsignal(signal.SIGINT) is before


def test_failed_training_says_why_in_one_line(capsys, lights):
    assert main(["train", lights, *SMALL, "10_000", "--env.kwargs.breaks_at", "203", "--no-tensorboard"]) == 1
    out, err = capsys.readouterr()
    assert "failed after" in out
    assert err.startswith("twostep: training failed: ")
    assert err.count("\n") == 1
    assert main(["eval"]) == 2
    assert "no checkpoint" in capsys.readouterr().err


def test_a_checkpoint_that_cannot_be_written_on_the_way_stops_nothing(capsys, caplog, monkeypatch):
    """RELIABILITY 10: training goes on, the warning comes once; at the end it counts as failed."""
    saved = []

    def fail(checkpointer, step, *_, **__):
        saved.append(step)
        raise CheckpointError("no room")

    monkeypatch.setattr("twostep.checkpoint.TrainingCheckpointer.save", fail)
    assert main(["train", "CartPole-v1", *SMALL, "640", "--checkpoint_every", "200", "--no-tensorboard"]) == 1
    assert saved == [256, 512, 640, 640], "at every crossing of 200 steps, and at the end"
    assert caplog.text.count("Training goes on without this checkpoint: no room") == 1
    assert "no room" in capsys.readouterr().err


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "twostep", "train"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["os:path"], "is of type module; it must be a function"),
        (["math:pi"], "is of type float; it must be a function"),
        (["json:dumps"], "cannot make an environment from the arguments []: missing a required argument: 'obj'"),
        (["CartPole-v1", "--rollout_steps", "1000000000000"], "needs"),
        (["CartPole-v1", "--context_size", "3"], "The context has 0 numbers per row"),
        (["CartPole-v1", "--action_dist", "beta"], "is for continuous actions"),
        (["CartPole-v1", "--agent.name", "nature_cnn"], "reads pictures"),
        (["CartPole-v1", "--snapshot_every", "10"], "needs an environment of several agents, but CartPole-v1 has one"),
    ],
)
def test_what_cannot_be_trained_leaves_no_folder(tmp_path, capsys, words, complaint):
    """C34: one line, and exit 2, before anything is made."""
    assert main(["train", *words, "--run_dir", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_environments_that_moved_elsewhere_are_named(monkeypatch, capsys):
    """C34: Gymnasium tells by an ImportError where old versions went."""

    def moved(*_, **__):
        raise ImportError("It moved to another project.")

    monkeypatch.setattr("gymnasium.make", moved)
    assert main(["train", "CartPole-v1"]) == 2
    assert "'CartPole-v1' cannot be made: It moved to another project." in capsys.readouterr().err
