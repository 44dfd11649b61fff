"""What happened in a match, in words: who destroyed whom, who took the zone, how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

TEAMS = ("blue", "red")
_REASONS = {"zone": "by holding the zone", "elimination": "by elimination", "time": "on time"}


@dataclass(frozen=True)
class Event:
    """Something to jump to."""

    frame: int
    kind: str
    """kill, zone or end."""
    team: str
    """Whose success it is: blue, red, or none."""
    text: str
    unit: int = -1
    """Who was destroyed, or -1."""
    by: int = -1
    """Who did it, or -1."""


def find_events(replay: Mapping[str, Any]) -> list[Event]:
    """Return kills, captures of the zone and the end, in the order in which they happened."""
    last = len(replay["frames"]["alive"]) - 1
    end = Event(last, "end", _winner(replay), describe_outcome(replay))
    return [*sorted([*_kills(replay), *_captures(replay)], key=lambda event: event.frame), end]


def describe_outcome(replay: Mapping[str, Any]) -> str:
    """Say who won and why: `blue wins by holding the zone`."""
    winner, reason = replay["outcome"]["winner"], replay["outcome"]["reason"]
    if reason == "running":
        return "not decided yet"
    how = _REASONS.get(reason, f"by {reason}")
    return f"a draw {how}" if winner not in TEAMS else f"{winner} wins {how}"


def describe(replay: Mapping[str, Any]) -> str:
    """Say in a line what there is to see: the seed, the outcome and the length."""
    return f"Seed {replay['seed']}: {describe_outcome(replay)} after {duration(replay):.1f} s"


def duration(replay: Mapping[str, Any]) -> float:
    """Return the seconds from the first frame to the last."""
    return (len(replay["frames"]["alive"]) - 1) * float(replay["seconds_per_frame"])


def first_dead_frames(alive: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return for every unit the first frame in which it is dead, -1 for those that live to the end; alive: `[T, N]`."""
    dead = ~np.asarray(alive, dtype=np.bool_)
    return np.where(dead.any(axis=0), dead.argmax(axis=0), -1)


def _kills(replay: Mapping[str, Any]) -> list[Event]:
    units, shots = replay["units"], np.asarray(replay["shots"]).reshape(-1, 5)
    kills: list[Event] = []
    for victim, frame in enumerate(first_dead_frames(replay["frames"]["alive"]).tolist()):
        if frame < 0:
            continue
        deadly = (shots[:, 2] == victim) & (shots[:, 3] > 0) & (shots[:, 0] <= frame) & (shots[:, 0] >= frame - 1)
        found = np.flatnonzero(deadly)
        name, team = units[victim]["id"], units[victim]["team"]
        other = TEAMS[1 - TEAMS.index(team)]
        by = int(shots[found[-1], 1]) if len(found) else -1
        text = f"{units[by]['id']} destroys {name}" if by >= 0 else f"{name} is destroyed"
        kills.append(Event(frame, "kill", other, text, victim, by))
    return kills


def _captures(replay: Mapping[str, Any]) -> list[Event]:
    """Tell when a team holds the zone alone that the other held, or nobody, before."""
    owners = np.asarray(replay["frames"]["zone_owner"]).tolist()
    captures: list[Event] = []
    holder = 0
    for frame, owner in enumerate(owners):
        if owner in (1, 2) and owner != holder:
            holder, team = owner, TEAMS[owner - 1]
            captures.append(Event(frame, "zone", team, f"{team} takes the zone"))
    return captures


def _winner(replay: Mapping[str, Any]) -> str:
    winner = replay["outcome"]["winner"]
    return winner if winner in TEAMS else "none"
