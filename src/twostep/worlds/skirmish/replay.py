"""A match written down: everything a viewer needs, as plain arrays and numbers, and as a small file."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from twostep.errors import EnvError
from twostep.worlds.skirmish.config import CLASSES
from twostep.worlds.skirmish.geometry import Array
from twostep.worlds.skirmish.simulation import Simulation

FORMAT = 1
NOBODY, CONTESTED = 0, 3
ARRAYS = ("walls", "shots", "rewards")
REST = ("world", "seed", "seconds_per_frame", "size", "zone", "units", "outcome")
STATE = ("x", "y", "heading", "hp", "heat", "cooldown", "alive")
FRAME = (*STATE, "overheated", "zone_score", "zone_owner")
UNREADABLE = (OSError, EOFError, ValueError, OverflowError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What numpy and zipfile raise at damaged archives."""


class Recorder:
    """Writes down one of a simulation's matches."""

    def __init__(self, sim: Simulation, match: int) -> None:
        self._sim, self._match = sim, match
        self._frames: list[dict[str, Array]] = []
        self._shots: list[tuple[float, ...]] = []

    def begin(self) -> None:
        """Forget the last match and write down how the next one begins."""
        self._frames, self._shots = [], []
        self.record(np.zeros(self._sim.shape[1:], dtype=np.float32))

    def record(self, rewards: Array) -> None:
        """Write down a step, with what everybody earned in it, `[2, K]`."""
        sim, match = self._sim, self._match
        if self._frames:
            self._record_shots()
        columns = {name: getattr(sim, name)[match] for name in STATE}
        columns |= {"overheated": sim.shutdown[match] > 0, "rewards": rewards}
        frame = {name: np.array(column).ravel() for name, column in columns.items()}
        frame["zone_score"] = np.minimum(sim.zone_score[match] / np.float32(sim.config.zone_seconds), 1)
        blue, red = sim.holds_zone[match]
        owner = 1 if blue else 2 if red else CONTESTED if sim.contested[match] else NOBODY
        frame["zone_owner"] = np.array(owner, dtype=np.int8)
        self._frames.append(frame)

    def _record_shots(self) -> None:
        sim, match, count, frame = self._sim, self._match, self._sim.team_size, len(self._frames)
        for team, slot in np.argwhere(sim.fired[match]).tolist():
            target = int(sim.target[match, team, slot])
            hit, damage = sim.hit[match, team, slot, target], sim.damage[match, team, slot, target]
            shooter, victim = team * count + slot, (1 - team) * count + target
            self._shots.append((frame, shooter, victim, float(hit), float(damage)))

    def replay(self) -> dict[str, Any]:
        """Return what was written down."""
        if not self._frames:
            raise EnvError("Nothing was recorded yet: no match has begun. Call reset first.")
        sim, match, config = self._sim, self._match, self._sim.config
        columns = {name: np.stack([frame[name] for frame in self._frames]) for name in self._frames[0]}
        walls = np.stack([side[:, match] for side in sim.walls], axis=-1)
        return {
            "format": FORMAT,
            "world": "skirmish",
            "seed": sim.seeds[match],
            "seconds_per_frame": config.step_seconds,
            "size": [config.size, config.size],
            "walls": walls[walls[:, 0] < config.size],
            "zone": [config.size / 2, config.size / 2, config.zone_radius],
            "units": [_unit(agent, config.team[at % sim.team_size]) for at, agent in enumerate(config.agent_ids)],
            "rewards": columns.pop("rewards"),
            "frames": columns,
            "shots": np.array(self._shots, dtype=np.float32).reshape(-1, 5),
            "outcome": sim.outcome(match),
        }


def _unit(agent: str, name: str) -> dict[str, Any]:
    kind = CLASSES[name]
    return {
        "id": agent,
        "team": agent.partition("_")[0],
        "class": name,
        "radius": kind.radius,
        "max_hp": kind.hit_points,
        "max_heat": kind.heat_capacity,
        "vision": kind.vision,
        "weapon_range": kind.weapon_range,
    }


def save_replay(replay: Mapping[str, Any], path: str | Path) -> Path:
    """Write a replay as one compressed file of arrays without pickles; return its path, which ends with `.npz`.

    An older file is replaced in one step, so that nobody ever reads half a match.
    """
    path = Path(path)
    if path.suffix != ".npz":
        path = path.with_name(f"{path.name}.replay.npz")
    arrays = {name: np.asarray(replay[name]) for name in ARRAYS}
    arrays |= {f"frames.{name}": np.asarray(column) for name, column in replay["frames"].items()}
    rest = {name: value for name, value in replay.items() if name not in ("frames", *ARRAYS)}
    text = np.frombuffer(json.dumps(rest).encode(), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.partial")
    with beside.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, match=text, **arrays)
    os.replace(beside, path)
    return path


def load_replay(path: str | Path) -> dict[str, Any]:
    """Read what `save_replay` wrote."""
    path = Path(path)
    if not path.is_file():
        raise EnvError(f"{path} is no file. save_replay returns the path that it wrote.")
    if not zipfile.is_zipfile(path):
        raise EnvError(
            f"{path} is no replay, or only a part of one: it is no archive of arrays. save_replay makes one."
        )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            columns = {name: stored[name] for name in stored.files}
        match = json.loads(columns.pop("match", np.zeros(0, np.uint8)).tobytes() or b"{}")
    except UNREADABLE as error:
        raise EnvError(f"{path} is damaged, or was not made by save_replay: {error}") from error
    return _assembled(path, match, columns)


def _assembled(path: Path, match: Any, columns: dict[str, Array]) -> dict[str, Any]:
    """Put the parts of a file together again, or say what is missing."""
    if not isinstance(match, dict) or "format" not in match:
        raise EnvError(f"{path} is no replay: it holds {', '.join(columns) or 'nothing'}. save_replay makes one.")
    if match["format"] != FORMAT:
        raise EnvError(f"{path} has format {match['format']}, but this version reads {FORMAT}. Update twostep.")
    frames = {name.removeprefix("frames."): columns[name] for name in columns if name.startswith("frames.")}
    missing = [name for name in (*REST, *ARRAYS) if name not in match and name not in columns]
    missing += [f"frames.{name}" for name in FRAME if name not in frames]
    if missing:
        raise EnvError(f"{path} is no whole replay: {', '.join(missing)} is missing. save_replay makes one.")
    return {**match, **{name: columns[name] for name in ARRAYS}, "frames": frames}
