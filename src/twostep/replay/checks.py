"""Whether a replay can be shown: every number there, finite, of the right shape, and of a size that can be drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from twostep.errors import ConfigError
from twostep.replay.events import TEAMS

PER_UNIT = ("x", "y", "heading", "hp", "heat", "cooldown", "alive", "overheated")
MOST_UNITS, MOST_WALLS, LONGEST_TEXT = 1000, 10_000, 100
LARGEST = 1e6
"""No length, time, angle or reward is more; it keeps every sum and every picture within bounds."""
MOST_STRETCHED = 4.0
"""How many times longer one side of the arena may be than the other."""


def check_replay(replay: Mapping[str, Any], name: str) -> None:
    """Refuse a replay that cannot be shown; `name` is what the message calls it."""
    try:
        _check_match(replay)
        count = _check_units(replay["units"])
        _check_tracks(replay, count)
        _check_shots(_numbers(replay["shots"], "shots"), count, len(replay["rewards"]))
    except _DamagedError as error:
        raise ConfigError(f"{name} cannot be shown: {error}. Record the match again.") from None


class _DamagedError(Exception):
    """What is wrong, without where."""


def _check_match(replay: Mapping[str, Any]) -> None:
    expected = ("seed", "seconds_per_frame", "size", "walls", "zone", "units", "rewards", "frames", "shots", "outcome")
    missing = [name for name in expected if name not in replay]
    _require(not missing, f"it lacks {', '.join(missing)}")
    _require(type(replay["seed"]) is int, "its seed is no whole number")
    _require(_within(replay["seconds_per_frame"], 1e-3, 60), "seconds_per_frame is not between 0.001 and 60")
    size, zone = replay["size"], replay["zone"]
    _require(_are_numbers(size, 2, 1), "size is not two lengths of at least 1")
    _require(
        max(size) <= MOST_STRETCHED * min(size), f"size={size} is more than {MOST_STRETCHED:g} times as long as wide"
    )
    _require(_are_numbers(zone, 3, 0), "zone is not a place and a radius")
    walls = _numbers(replay["walls"], "walls")
    _require(walls.ndim == 2 and walls.shape[1] == 4 and len(walls) <= MOST_WALLS, f"walls have shape {walls.shape}")
    outcome = replay["outcome"]
    said = isinstance(outcome, Mapping) and all(_is_text(outcome.get(part)) for part in ("winner", "reason"))
    _require(said, "outcome does not say winner and reason")


def _check_units(units: Any) -> int:
    _require(isinstance(units, list) and 0 < len(units) <= MOST_UNITS, f"units are not a list of 1 to {MOST_UNITS}")
    for at, unit in enumerate(units):
        _require(isinstance(unit, Mapping), f"unit {at} is no mapping")
        _require(all(_is_text(unit.get(part)) for part in ("id", "class")), f"unit {at} has no id or no class")
        _require(unit.get("team") in TEAMS, f"unit {at} is in no team of {', '.join(TEAMS)}")
        lengths = [unit.get(part) for part in ("radius", "max_hp", "max_heat", "vision", "weapon_range")]
        _require(_are_numbers(lengths, 5, 1e-3), f"unit {at} has a size, strength or range that is no positive number")
    return len(units)


def _check_tracks(replay: Mapping[str, Any], count: int) -> None:
    frames = replay["frames"]
    _require(isinstance(frames, Mapping), "frames are no mapping")
    rewards = _numbers(replay["rewards"], "rewards")
    _require(rewards.ndim == 2 and len(rewards) > 0, "it has no frames")
    length = len(rewards)
    shapes = dict.fromkeys(PER_UNIT, (length, count)) | {"zone_score": (length, 2), "zone_owner": (length,)}
    _require(rewards.shape == (length, count), f"rewards have shape {rewards.shape}, but there are {count} units")
    for name, shape in shapes.items():
        _require(name in frames, f"frames lack {name}")
        column = _numbers(frames[name], name)
        _require(column.shape == shape, f"{name} has shape {column.shape}, not {shape}")
    owners = np.asarray(frames["zone_owner"])
    _require(bool(np.isin(owners, (0, 1, 2, 3)).all()), "zone_owner is not 0 to 3")


def _check_shots(shots: np.ndarray[Any, Any], count: int, length: int) -> None:
    _require(shots.ndim == 2 and shots.shape[1] == 5, f"shots have shape {shots.shape}, not 5 numbers each")
    for column, limit in ((0, length), (1, count), (2, count)):
        _require(
            bool((shots[:, column] >= 0).all() and (shots[:, column] < limit).all()), "shots name nobody or no time"
        )


def _numbers(value: Any, name: str) -> np.ndarray[Any, Any]:
    _require(isinstance(value, np.ndarray) and value.dtype.kind in "biuf", f"{name} are no numbers")
    with np.errstate(invalid="ignore"):  # of a NaN
        wide = value.astype(np.float64)
    _require(bool((np.abs(wide) <= LARGEST).all()), f"{name} are not all finite and below {LARGEST:g}")
    return value


def _are_numbers(values: Any, count: int, least: float) -> bool:
    return isinstance(values, list) and len(values) == count and all(_within(value, least, LARGEST) for value in values)


def _within(value: Any, low: float, high: float) -> bool:
    return isinstance(value, (int, float)) and low <= value <= high


def _is_text(value: Any) -> bool:
    # What is printed must not be able to command the terminal.
    return isinstance(value, str) and len(value) <= LONGEST_TEXT and value.isprintable()


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _DamagedError(otherwise)
