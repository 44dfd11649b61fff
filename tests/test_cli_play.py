"""`twostep play`: replays, runs of skirmish and of environments that draw themselves, and wrong input."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from twostep.cli import main
from twostep.cli.options import PlayRequest, parse_play
from twostep.worlds.skirmish import EnvConfig, HeuristicPolicy, SkirmishEnv, save_replay

DRAWING = """
import gymnasium as gym
import numpy as np

class Drawing(gym.Env):
    '''Draws the number of the step in the episode as a shade of grey, ten to a step.'''

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode=None, length=12):
        self.render_mode, self.length, self.steps = render_mode, length, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps >= self.length, False, {}

    def render(self):
        return np.full((30, 40, 3), 10 * (self.steps % 25), np.uint8)

class Blind(Drawing):
    metadata = {"render_modes": []}

class Speaking(Drawing):
    metadata = {"render_modes": ["ansi", "human"]}

class Flat(Drawing):
    def render(self):
        return np.zeros((30, 40), np.uint8)

class Broken(Drawing):
    def render(self):
        raise RuntimeError("no screen\\nat all")

class Endless(Drawing):
    def __init__(self, render_mode=None):
        super().__init__(render_mode, 100_000)
"""

WRONG_WORDS = {
    "no such run": (["nowhere"], "'nowhere'"),
    "no such replay": (["nowhere.npz"], "nowhere.npz"),
    "a folder without runs": (["."], "holds no run"),
    "a text": (["notes.txt"], "no replay"),
    "a replay of nothing": (["empty.npz"], "no replay"),
    "half a replay": (["half.npz"], "half.npz"),
    "other arrays": (["arrays.npz"], "arrays.npz"),
    "a folder named like a replay": (["folder.npz"], "folder.npz"),
    "a name with a zero byte": (["a\0b.npz"], "npz"),
    "an endless name": (["x" * 5000 + ".npz"], "xxx"),
    "two of them": (["a", "b"], "'b'"),
    "a seed for a replay": (["match.npz", "--seed", "3"], "--seed"),
    "episodes of a replay": (["match.npz", "--episodes", "3"], "--episodes"),
    "no such option": (["match.npz", "--animaton"], "--animation"),
    "a value for the opposite": (["match.npz", "--no-animation=3"], "no_animation"),
    "twice": (["match.npz", "--no-animation", "--animation"], "twice"),
    "no episodes": (["runs", "--episodes", "0"], "0"),
    "a negative seed": (["runs", "--seed", "-1"], "-1"),
    "nowhere to write": (["match.npz", "--out", "notes.txt"], "notes.txt"),
    "an option for a folder": (["match.npz", "--out", "--seed"], "--out"),
    "a single hyphen": (["-n"], "'-n'"),
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Every command here runs in an empty folder, beside a module of environments that draw themselves."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "drawing_envs.py").write_text(DRAWING)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    yield folder
    sys.modules.pop("drawing_envs", None)


@pytest.fixture(scope="module")
def match():
    """A short match of one against one."""
    env = SkirmishEnv(EnvConfig(team=("light",), max_seconds=6.0, record_replay=True))
    heuristic = HeuristicPolicy()
    env.reset(seed=3)
    while env.agents:
        env.step({agent: heuristic.act(env, agent) for agent in env.agents})
    return env.get_replay()


def train(env_id, steps=64, **env):
    """Train a little and return the run's folder."""
    config = {
        "env": {"id": env_id, "num_envs": 2, **env},
        "agent": {"hidden_size": 8},
        "ppo": {"rollout_steps": 16, "minibatch_size": 32, "update_epochs": 1},
        "trainer": {"total_timesteps": steps},
        "logging": {"progress": False, "tensorboard": False},
        "device": "cpu",
    }
    Path("config.yaml").write_text(yaml.safe_dump(config))
    assert main(["train", "config.yaml"]) == 0
    return max(Path("runs").iterdir(), key=lambda folder: folder.stat().st_mtime_ns)


def train_skirmish():
    return train("skirmish", kwargs={"team": ["light"], "max_seconds": 6.0})


def played(capsys, *words):
    """What the command said, and the files it names."""
    capsys.readouterr()
    assert main(["play", *map(str, words)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out, [Path(word.rstrip(":")) for word in out.split() if word.rstrip(":").endswith((".html", ".gif"))]


def complaint(capsys, *words):
    capsys.readouterr()
    assert main(["play", *map(str, words)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("twostep: ")
    assert err.count("\n") == 1
    assert len(err) < 6000
    return err


def greys(path):
    """The shade of every picture of a film."""
    with Image.open(path) as film:
        shades = []
        for number in range(film.n_frames):
            film.seek(number)
            shades.append(film.convert("RGB").getpixel((3, 3))[0])
    return shades


def test_a_replay_becomes_a_page_and_an_animation(capsys, match):
    """E25: the replay of an evaluation, as one can watch it."""
    save_replay(match, "some.match.npz")
    out, (page, film) = played(capsys, "some.match.npz")
    assert (page, film) == (Path("some.match.html"), Path("some.match.gif"))
    assert out.startswith(f"Seed {match['seed']}: ")
    assert f"<title>Seed {match['seed']}: " in page.read_text(encoding="utf-8")
    with Image.open(film) as pictures:
        assert pictures.n_frames > 10
    _, (page,) = played(capsys, "some.match.npz", "--no-animation", "--out", "new/folder")
    assert page == Path("new/folder/some.match.html")
    assert sorted(os.listdir("new/folder")) == ["some.match.html"]


def test_of_a_run_the_newest_replay_is_shown(capsys, match):
    run = train_skirmish()
    for age, name in ((30, "step_3"), (10, "step_1"), (20, "step_2")):
        path = save_replay(match, run / "replays" / f"{name}.npz")
        os.utime(path, (time.time() - age, time.time() - age))
    _, (page,) = played(capsys, "runs", "--no-animation")
    assert page == run / "step_1.html"
    (run / "replays" / "step_1.npz").write_bytes(b"torn")
    assert "step_1.npz" in complaint(capsys, run)


def test_a_run_without_replays_plays_a_new_match(capsys):
    run = train_skirmish()
    out, files = played(capsys, run, "--seed", 5)
    assert files == [run / "match_seed_5.html", run / "match_seed_5.gif"]
    assert out.startswith("Seed 5: ")
    first = files[0].read_bytes()
    _, files = played(capsys, run, "--seed", 5, "--no_animation")
    assert files[0].read_bytes() == first, "the same seed is the same match"
    out, files = played(capsys, "--episodes", 2, "--out", "here", "--no_animation")
    assert "of 2 matches won" in out
    assert files == [Path("here/match_seed_1.html")]
    assert files[0].read_bytes() != first
    played(capsys, run, "--no_animation")


def test_other_environments_are_filmed(capsys):
    run = train("drawing_envs:Drawing")
    out, (film,) = played(capsys, run)
    assert film == run / "episode_seed_1.gif"
    assert "mean return 12.0 of an episode, 12 steps" in out
    assert np.abs(np.subtract(greys(film), [0, 20, 40, 60, 80, 100])).max() <= 2
    out, (film,) = played(capsys, run, "--episodes", 2, "--seed", 7, "--out", "films")
    assert film == Path("films/episode_seed_7.gif")
    assert "mean return 12.0 of 2 episodes, 24 steps" in out
    assert np.abs(np.subtract(greys(film), [0, 20, 40, 60, 80, 100] * 2)).max() <= 2


def test_a_film_ends_before_an_endless_episode(capsys):
    out, (film,) = played(capsys, train("drawing_envs:Endless"))
    assert "return 800.0 in the first 800 steps, with which the film ends" in out
    assert len(greys(film)) <= 400


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("Blind", "draws nothing"),
        ("Speaking", "ansi, human"),
        ("Flat", "[H, W, 3]"),
        ("Broken", "RuntimeError: no screen"),
    ],
)
def test_what_cannot_be_filmed_is_told_in_a_line(capsys, env, words):
    run = train(f"drawing_envs:{env}")
    before = sorted(os.listdir(run))
    assert words in complaint(capsys, run)
    assert sorted(os.listdir(run)) == before


def test_runs_that_cannot_be_shown(capsys):
    run = train("drawing_envs:Drawing")
    assert "--no_animation" in complaint(capsys, run, "--no-animation")
    assert "cuda:99" in complaint(capsys, run, "--device", "cuda:99")
    (run / "checkpoints").rename(run / "elsewhere")
    assert "no checkpoint" in complaint(capsys, run)


@pytest.mark.parametrize("case", WRONG_WORDS)
def test_wrong_words_to_play(capsys, match, case):
    save_replay(match, "match.npz")
    content = Path("match.npz").read_bytes()
    Path("half.npz").write_bytes(content[: len(content) // 2])
    Path("empty.npz").touch()
    Path("notes.txt").write_text("seed 3 was fun")
    Path("folder.npz").mkdir()
    np.savez("arrays.npz", weights=np.ones(3), names=np.array([{"a": 1}], dtype=object))
    before = sorted(os.listdir())
    words, expected = WRONG_WORDS[case]
    assert expected in complaint(capsys, *words)
    assert sorted(os.listdir()) == before


def test_play_options():
    assert parse_play([]) == PlayRequest()
    assert parse_play(["a.npz", "--no-animation"]) == PlayRequest("a.npz", animation=False)
    assert parse_play(["--animation", "runs/x"]) == PlayRequest("runs/x", animation=True)
    assert parse_play(["--animation=off", "--out=b"]) == PlayRequest(out="b", animation=False)
    given = parse_play(["r", "--episodes", "3", "--seed=4", "--device", "cpu", "--out", "c"])
    assert given == PlayRequest("r", out="c", episodes=3, seed=4, device="cpu")


def test_help_of_play(capsys):
    assert main(["play", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"--{option}" in text for option in ("out", "episodes", "seed", "no_animation", "device"))
    assert main(["--help"]) == 0
    assert "twostep play" in capsys.readouterr().out


def test_a_replay_is_shown_without_torch(match):
    save_replay(match, "match.npz")
    code = "import sys; from twostep.cli import main; sys.exit(main(['play', 'match.npz']) or 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
