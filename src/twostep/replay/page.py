"""A match as one HTML file: no network, no other file, everything inside."""

from __future__ import annotations

import html
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from twostep.replay.events import describe, describe_outcome, find_events
from twostep.replay.files import writing
from twostep.replay.look import DARK, LIGHT, SHAPES
from twostep.replay.packing import Column, pack

SCRIPTS = ("decode.js", "match.js", "arena.js", "units.js", "panel.js", "player.js")
"""Joined to one script in this order."""
_POSITIONS = 8192
"""Places told apart along the longer side: a tenth of a pixel on a large screen."""
_LEVELS = 500
"""Steps from nothing to the most, for what is shown as a bar."""


def write_page(replay: Mapping[str, Any], path: str | os.PathLike[str], title: str | None = None) -> Path:
    """Write a page that plays a match of skirmish: pause, scrub, speed, every unit's state.

    Args:
        title: What the page is called; None says the seed, who won, and after how long.
    """
    heading = describe(replay) if title is None else title
    parts = {
        "title": html.escape(heading),
        "colors": f":root {{\n{_properties(LIGHT)}}}\n:root[data-theme='dark'] {{\n{_properties(DARK)}}}\n",
        "style": _web("page.css"),
        "match": _json(describe_match(replay)),
        "script": "\n".join(_web(name) for name in SCRIPTS),
    }
    # All at once: what stands in a title or a name is not looked through for further places to fill.
    text = re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _web("page.html"))
    target = Path(path)
    with writing(target) as part:
        part.write_text(text, encoding="utf-8")
    return target


def describe_match(replay: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page knows of a match, as plain containers."""
    frames = replay["frames"]
    return {
        "seed": int(replay["seed"]),
        "outcome": describe_outcome(replay),
        "winner": str(replay["outcome"]["winner"]),
        "secondsPerFrame": float(replay["seconds_per_frame"]),
        "frames": len(frames["alive"]),
        "size": [float(side) for side in replay["size"]],
        "walls": np.asarray(replay["walls"], dtype=np.float64).round(3).tolist(),
        "zone": [float(number) for number in replay["zone"]],
        "units": [dict(unit) for unit in replay["units"]],
        "events": [asdict(event) for event in find_events(replay)],
        "shapes": SHAPES,
        "tracks": pack(_columns(replay)),
        "shots": pack(_shots(replay)),
    }


def _columns(replay: Mapping[str, Any]) -> dict[str, Column]:
    frames, units = replay["frames"], replay["units"]
    place = max(replay["size"]) / _POSITIONS
    earned = np.cumsum(np.asarray(replay["rewards"], dtype=np.float64), axis=0)
    return {
        "x": Column(frames["x"], place),
        "y": Column(frames["y"], place),
        # Unwrapped, so that the page can go halfway between two headings without thinking about full turns.
        "heading": Column(np.unwrap(np.asarray(frames["heading"], dtype=np.float64), axis=0), math.tau / 512),
        "hp": Column(frames["hp"], max(unit["max_hp"] for unit in units) / _LEVELS),
        "heat": Column(frames["heat"], max(unit["max_heat"] for unit in units) / _LEVELS),
        "cooldown": Column(frames["cooldown"], _step(frames["cooldown"], _LEVELS)),
        "alive": Column(frames["alive"], 1.0),
        "overheated": Column(frames["overheated"], 1.0),
        "earned": Column(earned, _step(earned, 10 * _LEVELS)),
        "zoneScore": Column(frames["zone_score"], 1 / _LEVELS),
        "zoneOwner": Column(np.asarray(frames["zone_owner"])[:, None], 1.0),
    }


def _shots(replay: Mapping[str, Any]) -> dict[str, Column]:
    shots = np.asarray(replay["shots"], dtype=np.float64).reshape(-1, 5)
    names = ("frame", "shooter", "target", "hit")
    whole = {name: Column(shots[:, [column]], 1.0) for column, name in enumerate(names)}
    return whole | {"damage": Column(shots[:, [4]], 0.1)}


def _step(values: Any, levels: int) -> float:
    return float(np.abs(values).max(initial=0.0)) / levels or 1.0


def _properties(colors: Mapping[str, str]) -> str:
    return "".join(f"  --{name}: {color};\n" for name, color in colors.items())


def _json(value: Any) -> str:
    """Write JSON that can stand in HTML: no text in it ends the script."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _web(name: str) -> str:
    return (files("twostep.replay") / "web" / name).read_text(encoding="utf-8")
