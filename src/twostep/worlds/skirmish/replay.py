"""A match written down: everything a viewer needs, as plain arrays and numbers, and as a small file."""

from __future__ import annotations

import json
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


class Recorder:
    """Writes down the first of a simulation's matches."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._frames: list[dict[str, Array]] = []
        self._shots: list[tuple[float, ...]] = []

    def begin(self) -> None:
        """Forget the last match and write down how the next one begins."""
        self._frames, self._shots = [], []
        self.record(np.zeros(self._sim.shape[1:], dtype=np.float32))

    def record(self, rewards: Array) -> None:
        """Write down a step, with what everybody earned in it, `[2, K]`."""
        sim = self._sim
        if self._frames:
            self._record_shots()
        columns = {name: getattr(sim, name)[0] for name in ("x", "y", "heading", "hp", "heat", "cooldown", "alive")}
        columns |= {"overheated": sim.shutdown[0] > 0, "rewards": rewards}
        frame = {name: np.array(column).ravel() for name, column in columns.items()}
        frame["zone_score"] = np.minimum(sim.zone_score[0] / np.float32(sim.config.zone_seconds), 1)
        blue, red = sim.holds_zone[0]
        owner = 1 if blue else 2 if red else CONTESTED if sim.contested[0] else NOBODY
        frame["zone_owner"] = np.int8(owner)  # pyright: ignore[reportArgumentType]
        self._frames.append(frame)

    def _record_shots(self) -> None:
        sim, count, frame = self._sim, self._sim.team_size, len(self._frames)
        for team, slot in np.argwhere(sim.fired[0]).tolist():
            target = int(sim.target[0, team, slot])
            hit, damage = sim.hit[0, team, slot, target], sim.damage[0, team, slot, target]
            shooter, victim = team * count + slot, (1 - team) * count + target
            self._shots.append((frame, shooter, victim, float(hit), float(damage)))

    def replay(self) -> dict[str, Any]:
        """Return what was written down."""
        if not self._frames:
            raise EnvError("Nothing was recorded yet: no match has begun. Call reset first.")
        sim, config = self._sim, self._sim.config
        columns = {name: np.stack([frame[name] for frame in self._frames]) for name in self._frames[0]}
        walls = np.stack([side[0] for side in sim.walls], axis=-1)
        return {
            "format": FORMAT,
            "world": "skirmish",
            "seed": sim.seeds[0],
            "seconds_per_frame": config.step_seconds,
            "size": [config.size, config.size],
            "walls": walls[walls[:, 0] < config.size],
            "zone": [config.size / 2, config.size / 2, config.zone_radius],
            "units": [_unit(agent, config.team[at % sim.team_size]) for at, agent in enumerate(config.agent_ids)],
            "rewards": columns.pop("rewards"),
            "frames": columns,
            "shots": np.array(self._shots, dtype=np.float32).reshape(-1, 5),
            "outcome": sim.outcome(0),
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
    """Write a replay as one compressed file of arrays without pickles; return its path, which ends with `.npz`."""
    path = Path(path)
    if path.suffix != ".npz":
        path = path.with_name(f"{path.name}.replay.npz")
    arrays = {name: np.asarray(replay[name]) for name in ("walls", "shots", "rewards")}
    arrays |= {f"frames.{name}": np.asarray(column) for name, column in replay["frames"].items()}
    rest = {name: value for name, value in replay.items() if name != "frames" and name not in arrays}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = np.frombuffer(json.dumps(rest).encode(), dtype=np.uint8)
    np.savez_compressed(path, match=text, **arrays)  # pyright: ignore[reportArgumentType]
    return path


def load_replay(path: str | Path) -> dict[str, Any]:
    """Read what `save_replay` wrote."""
    with np.load(path, allow_pickle=False) as stored:
        if "match" not in stored:
            raise EnvError(
                f"{path} is no replay: it holds {', '.join(stored.files) or 'nothing'}. save_replay makes one."
            )
        replay: dict[str, Any] = json.loads(stored["match"].tobytes())
        if replay.get("format") != FORMAT:
            raise EnvError(
                f"{path} has format {replay.get('format')}, but this version reads {FORMAT}. Update twostep."
            )
        names = [name for name in stored.files if name != "match"]
        replay |= {name: stored[name] for name in names if not name.startswith("frames.")}
        replay["frames"] = {name.removeprefix("frames."): stored[name] for name in names if name.startswith("frames.")}
    return replay
