"""A match drawn with Pillow, picture by picture: the same shapes and colours as on the page, seen from further away."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from twostep.replay.events import TEAMS, duration, find_events, first_dead_frames
from twostep.replay.look import DARK, SHAPES

FINER = 2
"""Pixels drawn for every pixel shown, along each side: Pillow draws hard edges, halving the picture makes them soft."""
HEADER, FOOTER, MARGIN = 46, 28, 10
NAME, TIME = 46, 36
"""Room for a team's name, and for half of the time."""
SMALLEST = 8
"""Pixels from a mech's middle to its edge, however large the arena."""
GRID_LINES = 12
STAGE_MARGIN = 0.07
"""Around where anybody ever is, in parts of the arena's longer side."""
TRAIL_SECONDS, TRACER_SECONDS, FLASH_SECONDS, BURST_SECONDS, CAPTION_SECONDS = 2.0, 0.45, 0.3, 0.9, 3.0

Point = tuple[float, float]


class Unit(NamedTuple):
    """What is drawn of a unit at some moment; lengths in pixels."""

    number: int
    at: Point
    size: float
    outline: list[Point]
    color: str
    cross: bool
    """Whether a cross marks it instead of a dot, so that teams can be told apart without colours."""


class Painter:
    """Draws a match at any moment, which is a frame number with a fraction."""

    def __init__(self, replay: Mapping[str, Any], width: int = 480, colors: Mapping[str, str] = DARK) -> None:
        self.colors, self.units = colors, list(replay["units"])
        self.seconds, self.duration = float(replay["seconds_per_frame"]), duration(replay)
        self._frames: dict[str, Any] = {name: np.asarray(column) for name, column in replay["frames"].items()}
        self._headings = np.unwrap(np.asarray(self._frames["heading"], dtype=np.float64), axis=0)
        self.last = len(self._headings) - 1
        dead = first_dead_frames(self._frames["alive"])
        self._deaths = np.where(dead < 0, math.inf, dead)
        self._shots = np.asarray(replay["shots"], dtype=np.float64).reshape(-1, 5)
        self._events = find_events(replay)
        self._zone = [float(number) for number in replay["zone"]]
        self._left, bottom, right, self._upper = stage(replay)
        self._scale = FINER * width / (right - self._left)
        self._top = FINER * HEADER
        whole = math.ceil((self._upper - bottom) * self._scale / FINER) + HEADER + FOOTER
        self.size = width + width % 2, whole + whole % 2  # films need even sides
        self._large, self._small = (ImageFont.load_default(FINER * points) for points in (15, 12))
        self._ground = self._draw_ground(replay)

    def picture(self, moment: float) -> Image.Image:
        """Return the picture of a moment."""
        image = self._ground.copy()
        pen = ImageDraw.Draw(image, "RGBA")
        frame = min(int(moment), self.last)
        self._draw_zone(pen, frame)
        self._draw_trails(pen, moment)
        self._draw_wrecks(pen, moment)
        self._draw_shots(pen, moment)
        living = [self._unit(index, moment) for index in range(len(self.units)) if self._deaths[index] > moment]
        hurt = {int(shot[2]) for shot in self._recent_shots(moment, FLASH_SECONDS) if shot[3]}
        for unit in living:
            self._draw_mech(pen, unit, flash=unit.number in hurt)
        for unit in living:
            self._draw_state(pen, unit, frame, moment)
        self._draw_frame(pen)
        self._draw_header(pen, moment, frame)
        self._draw_caption(pen, moment)
        return image.reduce(FINER)

    def _place(self, x: float, y: float) -> Point:
        """Return where a point of the arena, whose y axis points up, is in the picture."""
        return (x - self._left) * self._scale, self._top + (self._upper - y) * self._scale

    def _position(self, index: int, moment: float) -> Point:
        return self._place(*(self._between(self._frames[axis][:, index], moment) for axis in ("x", "y")))

    def _between(self, values: Any, moment: float) -> float:
        before = min(int(moment), self.last)
        after = min(before + 1, self.last)
        return float(values[before] + (values[after] - values[before]) * (moment - before))

    def _unit(self, index: int, moment: float) -> Unit:
        about = self.units[index]
        x, y = self._position(index, moment)
        size = max(float(about["radius"]) * self._scale, SMALLEST * FINER)
        heading = self._between(self._headings[:, index], moment)
        cos, sin = size * math.cos(heading), size * math.sin(heading)
        shape = SHAPES.get(about["class"], SHAPES["other"])
        outline = [(x + ahead * cos - left * sin, y - ahead * sin - left * cos) for ahead, left in shape]
        return Unit(index, (x, y), size, outline, self.colors[about["team"]], about["team"] == TEAMS[1])

    def _recent_shots(self, moment: float, seconds: float) -> Any:
        frames = self._shots[:, 0]
        return self._shots[(frames <= moment) & (frames > moment - seconds / self.seconds)]

    def _draw_ground(self, replay: Mapping[str, Any]) -> Image.Image:
        width, height = (FINER * side for side in self.size)
        image = Image.new("RGB", (width, height), self.colors["floor"])
        pen = ImageDraw.Draw(image)
        longest = float(max(replay["size"]))
        for step in range(1, GRID_LINES):
            x, y = self._place(step * longest / GRID_LINES, step * longest / GRID_LINES)
            pen.line((x, 0, x, height), self.colors["grid"], FINER)
            pen.line((0, y, width, y), self.colors["grid"], FINER)
        for x0, y0, x1, y1 in np.asarray(replay["walls"], dtype=np.float64).reshape(-1, 4).tolist():
            box = (*self._place(x0, y1), *self._place(x1, y0))
            pen.rounded_rectangle(box, 3 * FINER, self.colors["wall"], self.colors["edge"], FINER)
        return image

    def _draw_frame(self, pen: ImageDraw.ImageDraw) -> None:
        """Cover what reaches out of the arena's part of the picture."""
        width, height = (FINER * side for side in self.size)
        pen.rectangle((0, 0, width, self._top), self.colors["page"])
        pen.rectangle((0, height - FINER * FOOTER, width, height), self.colors["page"])

    def _draw_zone(self, pen: ImageDraw.ImageDraw, frame: int) -> None:
        """Draw the zone in the colour of who holds it, and each team's progress as an arc from the top."""
        x, y = self._place(*self._zone[:2])
        radius = self._zone[2] * self._scale
        owner = int(self._frames["zone_owner"][frame])
        color = self.colors[("zone", *TEAMS, "contested")[owner]]
        box = _around((x, y), radius)
        pen.ellipse(box, _faded(color, 0.14 if owner else 0.06), _faded(color, 0.8), round(1.5 * FINER))
        thickness = 3 * FINER
        for side, team in enumerate(TEAMS):
            angle = 360 * min(1.0, float(self._frames["zone_score"][frame][side]))
            reach = (-90 - angle, -90) if side == 0 else (-90, -90 + angle)
            inner = _around((x, y), max(0, radius - (1.5 + 1.7 * side) * thickness))
            if angle:
                pen.arc(inner, *reach, fill=self.colors[team], width=thickness)

    def _draw_trails(self, pen: ImageDraw.ImageDraw, moment: float) -> None:
        span = TRAIL_SECONDS / self.seconds
        for index, about in enumerate(self.units):
            until = min(moment, float(self._deaths[index]))
            begin = max(0, math.ceil(moment - span))
            points = [self._position(index, time) for time in (*range(begin, math.ceil(until)), until)]
            if len(points) > 1 and until > moment - span:
                color = _faded(self.colors[about["team"]], 0.22)
                pen.line(points, color, round(0.4 * max(float(about["radius"]) * self._scale, SMALLEST * FINER)))

    def _draw_wrecks(self, pen: ImageDraw.ImageDraw, moment: float) -> None:
        for index, death in enumerate(self._deaths.tolist()):
            if death > moment:
                continue
            unit = self._unit(index, death)
            wreck = self.colors["wreck"]
            pen.polygon(unit.outline, _faded(wreck, 0.35), wreck, FINER)
            self._draw_cross(pen, unit.at, 0.5 * unit.size, unit.color)
            age = (moment - death) * self.seconds / BURST_SECONDS
            if age < 1:
                box = _around(unit.at, unit.size * (1 + 3 * age))
                pen.ellipse(box, None, _faded(self.colors["low"], 1 - age), max(1, round((1 - age) * 5 * FINER)))

    def _draw_shots(self, pen: ImageDraw.ImageDraw, moment: float) -> None:
        """Draw tracers that fade: to what they hit, thin and past what they missed."""
        for number, (frame, shooter, target, hit, _) in enumerate(self._recent_shots(moment, TRACER_SECONDS).tolist()):
            x0, y0 = self._position(int(shooter), frame)
            x1, y1 = self._position(int(target), frame)
            color = self.colors[self.units[int(shooter)]["team"]]
            strength = 1 - (moment - frame) * self.seconds / TRACER_SECONDS
            distance = math.hypot(x1 - x0, y1 - y0) or 1.0
            across, along = (x1 - x0) / distance, (y1 - y0) / distance
            if hit:
                pen.line((x0, y0, x1, y1), _faded(color, strength), 2 * FINER)
                pen.ellipse(_around((x1, y1), 4 * FINER), _faded(self.colors["heat"], strength))
            else:
                aside = (1 if number % 2 else -1) * 1.4 * float(self.units[int(target)]["radius"]) * self._scale
                end = (x1 + 2 * self._scale * across - along * aside, y1 + 2 * self._scale * along + across * aside)
                pen.line((x0, y0, *end), _faded(color, 0.6 * strength), FINER)

    def _draw_mech(self, pen: ImageDraw.ImageDraw, unit: Unit, *, flash: bool) -> None:
        body, mark = (self.colors["mark"], unit.color) if flash else (unit.color, self.colors["mark"])
        pen.polygon(unit.outline, body, self.colors["low"] if flash else self.colors["floor"], FINER)
        if unit.cross:
            self._draw_cross(pen, unit.at, 0.28 * unit.size, mark)
        else:
            pen.ellipse(_around(unit.at, 0.28 * unit.size), mark)

    def _draw_cross(self, pen: ImageDraw.ImageDraw, at: Point, size: float, color: str) -> None:
        x, y = at
        for rise in (size, -size):
            pen.line((x - size, y - rise, x + size, y + rise), color, round(1.6 * FINER))

    def _draw_state(self, pen: ImageDraw.ImageDraw, unit: Unit, frame: int, moment: float) -> None:
        """Draw the ring of heat, which is closed while the unit is shut down, and the bar of hit points."""
        about, (x, y) = self.units[unit.number], unit.at
        ring = 1.6 * unit.size
        shut = bool(self._frames["overheated"][frame, unit.number])
        heat = 1.0 if shut else self._between(self._frames["heat"][:, unit.number], moment) / float(about["max_heat"])
        if heat > 0.05:
            color = self.colors["low" if shut else "heat"]
            pen.arc(_around((x, y), ring), -90, -90 + 360 * min(1.0, heat), fill=color, width=round(1.5 * FINER))
        hull = min(1.0, max(0.0, float(self._frames["hp"][frame, unit.number]) / float(about["max_hp"])))
        width, height = 20 * FINER, 3 * FINER
        left, top = round(x - width / 2), round(max(y - ring - 3 * FINER - height, self._top + FINER))
        pen.rectangle((left - 1, top - 1, left + width, top + height), self.colors["floor"], self.colors["edge"])
        if hull > 0:
            color = self.colors["low" if hull < 0.35 else "hull"]
            pen.rectangle((left, top, left + max(1, round(hull * (width - 1))), top + height - 1), color)

    def _draw_header(self, pen: ImageDraw.ImageDraw, moment: float, frame: int) -> None:
        """Draw who is alive, the time, and how much of the zone's score each team has."""
        width, middle, edge = FINER * self.size[0], 15 * FINER, MARGIN * FINER
        passed = min(moment * self.seconds, self.duration)
        text = f"{int(passed // 60)}:{passed % 60:04.1f}"
        pen.text((width / 2, middle), text, self.colors["text"], self._large, anchor="mm")
        for side, team in enumerate(TEAMS):
            color, inwards = self.colors[team], 1 - 2 * side
            start = edge if side == 0 else width - edge
            pen.text((start, middle), team.capitalize(), color, self._large, anchor="lm" if side == 0 else "rm")
            own = [index for index, about in enumerate(self.units) if about["team"] == team]
            step = min(12 * FINER, (width / 2 - edge - (NAME + TIME) * FINER) / max(1, len(own)))
            for place, index in enumerate(own):
                at = (start + inwards * (NAME * FINER + place * step), middle)
                alive = self._deaths[index] > moment
                box = _around(at, 0.36 * step)
                pen.ellipse(box, color if alive else None, color if alive else self.colors["wreck"], FINER)
            score = min(1.0, float(self._frames["zone_score"][frame][side]))
            top, full = 32 * FINER, width / 2 - edge - 2 * FINER
            low, high = sorted((start, start + inwards * full))
            pen.rectangle((low, top, high, top + 5 * FINER), self.colors["line"])
            low, high = sorted((start, start + inwards * full * score))
            if score > 0:
                pen.rectangle((low, top, high, top + 5 * FINER), color)

    def _draw_caption(self, pen: ImageDraw.ImageDraw, moment: float) -> None:
        """Tell what happened last, while it is news."""
        span = CAPTION_SECONDS / self.seconds
        told = [event for event in self._events if event.frame <= moment < event.frame + span]
        if told:
            width, height = (FINER * side for side in self.size)
            color = self.colors.get(told[-1].team, self.colors["text"])
            text = told[-1].text[:60]
            pen.text((width / 2, height - FINER * FOOTER / 2), text, color, self._small, anchor="mm")


def stage(replay: Mapping[str, Any]) -> tuple[float, float, float, float]:
    """Return the part of the arena in which the match takes place: left, bottom, right, top, in metres."""
    frames, size = replay["frames"], [float(side) for side in replay["size"]]
    alive = np.asarray(frames["alive"], dtype=np.bool_)
    margin = STAGE_MARGIN * max(size)
    lows, highs = list[float](), list[float]()
    for axis, side, middle in zip(("x", "y"), size, replay["zone"], strict=False):
        places = np.asarray(frames[axis], dtype=np.float64)[alive].tolist()
        reach = float(replay["zone"][2])
        lows.append(max(0.0, min([*places, middle - reach]) - margin))
        highs.append(min(side, max([*places, middle + reach]) + margin))
    return lows[0], lows[1], highs[0], highs[1]


def _around(at: Sequence[float], radius: float) -> tuple[float, float, float, float]:
    x, y = at
    return x - radius, y - radius, x + radius, y + radius


def _faded(color: str, strength: float) -> tuple[int, int, int, int]:
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    return red, green, blue, round(255 * min(1.0, max(0.0, strength)))
