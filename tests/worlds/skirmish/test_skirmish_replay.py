"""Matches written down, saved, read again and played again; and files that are no replays."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from twostep.errors import EnvError
from twostep.worlds.skirmish import EnvConfig, HeuristicPolicy, SkirmishEnv, load_replay, save_replay
from twostep.worlds.skirmish.replay import FORMAT

CONFIG = EnvConfig(record_replay=True, size=40.0, zone_radius=6.0)


def played(seed: int | None = 2, env: SkirmishEnv | None = None) -> dict:
    env, policy = env or SkirmishEnv(CONFIG), HeuristicPolicy()
    env.reset(seed=seed)
    while env.agents:
        env.step({agent: policy.act(env, agent) for agent in env.agents})
    return env.get_replay()


@pytest.fixture(scope="module")
def replay() -> dict:
    return played()


def assert_same(one: dict, other: dict) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if name == "frames":
            assert_same(value, other[name])
        elif isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, other[name])
            assert value.dtype == other[name].dtype
        else:
            assert value == other[name]


def test_a_saved_replay_is_read_back_whole(replay: dict, tmp_path: Path) -> None:
    path = save_replay(replay, tmp_path / "deep" / "match.npz")
    assert_same(load_replay(path), replay)
    assert save_replay(replay, tmp_path / "match").name == "match.replay.npz"
    assert save_replay(replay, path) == path
    assert sorted(os.listdir(path.parent)) == ["match.npz"]


def test_a_replay_is_the_match_that_its_seed_plays(replay: dict, tmp_path: Path) -> None:
    """Full replay: played again from the seed in the file it is the same in every digit."""
    stored = load_replay(save_replay(replay, tmp_path / "match.npz"))
    assert_same(played(stored["seed"]), stored)
    drawn = SkirmishEnv(CONFIG)
    played(5, drawn)
    second = played(None, drawn)
    assert second["seed"] != 5
    assert_same(played(second["seed"]), second)


def test_a_replay_tells_what_happened(replay: dict) -> None:
    """Frame by frame what the environment said: places, hit points, shots, rewards, who held the zone."""
    env, policy = SkirmishEnv(CONFIG), HeuristicPolicy()
    env.reset(seed=2)
    frames, shots, at = replay["frames"], replay["shots"], 0
    assert replay["outcome"]["frames"] == len(frames["alive"]) - 1
    while env.agents:
        before = env.simulation.hp.copy()
        _, rewards, *_ = env.step({agent: policy.act(env, agent) for agent in env.agents})
        at, sim = at + 1, env.simulation
        for name in ("x", "y", "heading", "hp", "heat", "cooldown", "alive"):
            np.testing.assert_array_equal(frames[name][at], getattr(sim, name).ravel())
        for agent, reward in rewards.items():
            assert replay["rewards"][at, env.possible_agents.index(agent)] == np.float32(reward)
        taken = np.zeros(10)
        for _, shooter, target, hit, damage in shots[shots[:, 0] == at]:
            assert (shooter < 5) != (target < 5)
            assert hit == (damage > 0)
            taken[int(target)] += damage
        np.testing.assert_allclose(taken, (before - sim.hp).ravel(), atol=1e-3)
        blue, red = sim.in_zone[0].any(-1)
        assert frames["zone_owner"][at] == blue + 2 * red
    assert at == replay["outcome"]["frames"]
    assert (np.diff(frames["zone_score"], axis=0) >= 0).all()
    assert frames["zone_score"].max() <= 1


def test_only_the_match_that_runs_is_kept() -> None:
    """EB9: matches are written down where asked for, and one at a time."""
    env = SkirmishEnv(CONFIG)
    with pytest.raises(EnvError, match="Call reset first"):
        env.get_replay()
    lengths = [len(played(seed, env)["frames"]["alive"]) for seed in (0, 1)]
    assert [len(played(seed)["frames"]["alive"]) for seed in (0, 1)] == lengths
    assert EnvConfig().record_replay is False


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_half_a_file_is_refused(part: float, replay: dict, tmp_path: Path) -> None:
    path = save_replay(replay, tmp_path / "match.npz")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(EnvError, match=re.escape(str(path))):
        load_replay(path)


def test_a_file_with_a_flipped_bit_is_refused_or_unharmed(replay: dict, tmp_path: Path) -> None:
    path = save_replay(replay, tmp_path / "match.npz")
    whole, rng, refused = path.read_bytes(), np.random.default_rng(0), 0
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        path.write_bytes(bytes(damaged))
        try:
            assert_same(load_replay(path), replay)
        except EnvError:
            refused += 1
    assert refused > 100


class Trap:
    """Its unpickling would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_pickles_are_refused_and_never_run(replay: dict, tmp_path: Path) -> None:
    path, sprung = save_replay(replay, tmp_path / "match.npz"), tmp_path / "sprung"
    arrays = {f"frames.{name}": column for name, column in replay["frames"].items()}
    arrays["shots"] = np.array([Trap(sprung)], dtype=object)
    np.savez(path, match=np.zeros(1, np.uint8), **arrays)
    with pytest.raises(EnvError, match="damaged"):
        load_replay(path)
    np.save(tmp_path / "array.npy", arrays["shots"], allow_pickle=True)
    with pytest.raises(EnvError, match="no archive"):
        load_replay(tmp_path / "array.npy")
    with pytest.raises(ValueError, match="Object arrays"):
        save_replay({**replay, "shots": arrays["shots"]}, tmp_path / "other.npz")
    assert not sprung.exists()
    assert not (tmp_path / "other.npz").exists()


def rewrite(path: Path, **changes: object) -> None:
    """Change what the file says of the match as a whole; None takes it out."""
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    match = {**json.loads(arrays["match"].tobytes()), **changes}
    text = json.dumps({name: value for name, value in match.items() if value is not None})
    arrays["match"] = np.frombuffer(text.encode(), dtype=np.uint8)
    np.savez(path, **arrays)


def test_what_is_no_replay_is_told_apart(replay: dict, tmp_path: Path) -> None:
    path = save_replay(replay, tmp_path / "match.npz")
    rewrite(path, format=FORMAT + 1)
    with pytest.raises(EnvError, match=f"has format {FORMAT + 1}, but this version reads {FORMAT}"):
        load_replay(path)
    rewrite(path, format=FORMAT, units=None)
    with pytest.raises(EnvError, match="units is missing"):
        load_replay(path)
    np.savez(path, weights=np.zeros(3))
    with pytest.raises(EnvError, match="is no replay: it holds weights"):
        load_replay(path)
    with pytest.raises(EnvError, match="is no file"):
        load_replay(tmp_path / "nowhere.npz")
