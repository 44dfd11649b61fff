"""Films for where no page can be: GIF by Pillow alone, MP4 where ffmpeg is installed."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from PIL import Image

from twostep.errors import ConfigError
from twostep.replay.drawing import Painter
from twostep.replay.events import duration
from twostep.replay.files import writing
from twostep.replay.look import DARK

SUFFIXES = (".gif", ".mp4")
HOLD_SECONDS = 2.0
"""How long the last picture stays."""
MOST_PICTURES = 1500
"""Longer matches go by faster, so that a file stays small and is soon written."""
_COLORS, _SAMPLES = 128, 12
_TINTS = (0.08, 0.14, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)
"""How much of a colour there can be over the floor: where things are see-through, and along their edges."""


def write_animation(
    replay: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    width: int = 560,
    speed: float = 2.0,
    fps: float = 12.5,
    colors: Mapping[str, str] = DARK,
) -> Path:
    """Write a match of skirmish as a film: GIF or MP4, by the path's ending.

    Args:
        speed: Seconds of the match per second of the film.
        colors: `DARK` or `LIGHT` of `twostep.replay.look`, or others under the same names.
    """
    for name, value, low, high, usual in (
        ("width", width, 200, 4000, "560"),
        ("speed", speed, 0.01, 1000, "2"),
        ("fps", fps, 1, 50, "12.5"),
    ):
        if not low <= value <= high:
            raise ConfigError(f"{name}={value!r} must be between {low} and {high}: {usual} is usual.")
    painter = Painter(replay, width, colors)
    speed = max(speed, duration(replay) * fps / MOST_PICTURES)
    step = speed / fps / painter.seconds
    moments = [min(number * step, painter.last) for number in range(math.ceil(painter.last / step) + 1)]
    return write_film(map(painter.picture, moments), path, fps, _palette_of(colors))


def write_film(
    pictures: Iterable[Image.Image], path: str | os.PathLike[str], fps: float, palette: Image.Image | None = None
) -> Path:
    """Write pictures of one size as a film, whose last picture stays a while.

    Args:
        palette: An image with the colours that a GIF may use; None finds them in the pictures.
    """
    target = Path(path)
    write = _writer(target)
    if palette is None:
        pictures = list(pictures)
        palette = _palette_from(pictures)
    with writing(target) as part:
        write(_with_hold(iter(pictures), round(HOLD_SECONDS * fps)), part, fps, palette)
    return target


def _writer(target: Path) -> Callable[[Iterator[Image.Image], Path, float, Image.Image], None]:
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"{target} ends with {suffix or 'nothing'}, but films end with {' or '.join(SUFFIXES)}.")
    if suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise ConfigError(f"{target} needs ffmpeg, which is not installed. Install it, or let the name end with .gif.")
    return _write_gif if suffix == ".gif" else _write_mp4


def _with_hold(pictures: Iterator[Image.Image], count: int) -> Iterator[Image.Image]:
    last = next(pictures)
    yield last
    for last in pictures:
        yield last
    yield from repeat(last, count)


def _write_gif(pictures: Iterator[Image.Image], part: Path, fps: float, palette: Image.Image) -> None:
    # Without dither, what stands still keeps its colours, and only what moves takes space.
    indexed = (picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures)
    first = next(indexed)
    first.save(
        part,
        format="GIF",
        save_all=True,
        append_images=indexed,
        duration=10 * round(100 / fps),  # GIF counts in hundredths of a second
        loop=0,
        optimize=True,
        disposal=1,
    )


def _write_mp4(pictures: Iterator[Image.Image], part: Path, fps: float, _palette: Image.Image) -> None:
    first = next(pictures)
    width, height = (side - side % 2 for side in first.size)  # the usual kind of MP4 has only even sides
    command = ["ffmpeg", "-loglevel", "error", "-y", "-f", "rawvideo", "-pixel_format", "rgb24"]
    command += ["-video_size", f"{width}x{height}", "-framerate", f"{fps:g}", "-i", "-"]
    command += ["-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4", f"file:{part}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    try:
        for picture in chain((first,), pictures):
            process.stdin.write(picture.convert("RGB").crop((0, 0, width, height)).tobytes())
    except BrokenPipeError:
        pass  # ffmpeg says why
    except BaseException:
        process.kill()
        raise
    finally:
        _, complaint = process.communicate()
    if process.returncode:
        said = complaint.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        raise ConfigError(f"ffmpeg cannot write the film: {said[-1]}. Let the name end with .gif instead.")


def _palette_of(colors: Mapping[str, str]) -> Image.Image:
    """Return the colours that drawings are made of, each alone and over the floor."""
    floor = _rgb(colors["floor"])
    flat = [_rgb(colors[name]) for name in ("page", "floor", "grid", "line", "wall", "edge")]
    inks = ("blue", "red", "zone", "contested", "heat", "hull", "low", "wreck", "mark", "text")
    mixed = [
        tuple(round(under + (ink - under) * tint) for under, ink in zip(floor, _rgb(colors[name]), strict=True))
        for name in inks
        for tint in _TINTS
    ]
    return _palette(list(dict.fromkeys([*flat, *mixed])))


def _palette_from(pictures: Sequence[Image.Image]) -> Image.Image:
    """Return the colours that tell most about all pictures, found in some of them at a small size."""
    chosen = pictures[:: max(1, len(pictures) // _SAMPLES)]
    width, height = (max(1, side // 2) for side in chosen[0].size)
    samples = Image.new("RGB", (width, height * len(chosen)))
    for number, picture in enumerate(chosen):
        samples.paste(picture.resize((width, height), Image.Resampling.NEAREST), (0, number * height))
    return samples.quantize(_COLORS)


def _palette(colors: Sequence[Sequence[int]]) -> Image.Image:
    image = Image.new("P", (1, 1))
    image.putpalette(bytes(channel for color in colors for channel in color))
    return image


def _rgb(color: str) -> tuple[int, ...]:
    return tuple(int(color[place : place + 2], 16) for place in (1, 3, 5))
