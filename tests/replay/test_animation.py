"""Films of matches: what is drawn where, that files are small and soon written, and that nothing is lost in them."""

import math
import os
import shutil
import subprocess
import time
from copy import deepcopy

import numpy as np
import pytest
from PIL import Image

from twostep.errors import ConfigError
from twostep.replay import animation, write_animation
from twostep.replay.animation import HOLD_SECONDS, write_film
from twostep.replay.drawing import FINER, HEADER, Painter, stage
from twostep.replay.look import DARK, LIGHT, SHAPES


@pytest.fixture(scope="module")
def long_match(play_match):
    """A minute in which everybody moves all the time."""
    return play_match(seed=3, random_teams=("blue", "red"), zone_seconds=600.0, max_seconds=60.0)


def rgb(color):
    return tuple(int(color[place : place + 2], 16) for place in (1, 3, 5))


def distance(picture, at, color):
    """How far the picture's colour at a place is from a colour, at most over the channels."""
    return max(abs(one - other) for one, other in zip(picture.getpixel(at), rgb(color), strict=True))


def shown(path):
    """The pictures of a film as a viewer shows them, and how many seconds each stays."""
    pictures, seconds = [], []
    with Image.open(path) as film:
        for number in range(film.n_frames):
            film.seek(number)
            pictures.append(film.convert("RGB"))
            seconds.append(film.info["duration"] / 1000)
    return pictures, seconds


def test_units_are_where_they_are(real_replay):
    painter = Painter(real_replay, 600)
    picture, frames = painter.picture(0), real_replay["frames"]
    left, bottom, right, top = stage(real_replay)
    scale = 600 / (right - left)
    for unit, about in enumerate(real_replay["units"]):
        x, y, heading = (float(frames[name][0, unit]) for name in ("x", "y", "heading"))
        # A little behind the middle, where the mark is: inside every hull.
        x, y = x - 0.45 * about["radius"] * math.cos(heading), y - 0.45 * about["radius"] * math.sin(heading)
        at = int((x - left) * scale), int(HEADER + (top - y) * scale)
        assert distance(picture, at, DARK[about["team"]]) < 90, about
        assert distance(picture, at, DARK[{"blue": "red", "red": "blue"}[about["team"]]]) > 90
    for x0, y0, x1, y1 in real_replay["walls"].tolist():
        if bottom < (y0 + y1) / 2 < top:
            at = int(((x0 + x1) / 2 - left) * scale), int(HEADER + (top - (y0 + y1) / 2) * scale)
            assert distance(picture, at, DARK["wall"]) == 0


def test_the_stage_holds_everybody_who_is_alive(real_replay, replay):
    for match in (real_replay, replay):
        left, bottom, right, top = stage(match)
        frames, (width, height), (x, y, radius) = match["frames"], match["size"], match["zone"]
        alive = np.asarray(frames["alive"], dtype=bool)
        assert left <= frames["x"][alive].min() <= frames["x"][alive].max() <= right
        assert bottom <= frames["y"][alive].min() <= frames["y"][alive].max() <= top
        assert left <= x - radius <= x + radius <= right
        assert bottom <= y - radius <= y + radius <= top
        assert 0 <= left < right <= width
        assert 0 <= bottom < top <= height


def test_teams_hulls_and_the_dead_look_different(real_replay):
    dead = deepcopy(real_replay)
    dead["frames"]["alive"][:, 0] = False
    healthy, hurt = deepcopy(real_replay), deepcopy(real_replay)
    hurt["frames"]["hp"][:, 0] = 1
    hot, cold = deepcopy(real_replay), deepcopy(real_replay)
    hot["frames"]["heat"][:, 0] = 90
    shut = deepcopy(hot)
    shut["frames"]["overheated"][:, 0] = True
    pictures = [Painter(match).picture(0).tobytes() for match in (dead, healthy, hurt, hot, shut)]
    assert len(set(pictures)) == len(pictures)
    assert Painter(cold).picture(0).tobytes() == pictures[1]


def test_hits_and_misses_are_drawn_while_they_are_news(replay):
    painter = Painter(replay)
    frame, shooter, target, hit, _ = next(shot for shot in replay["shots"].tolist() if not shot[3])
    without = deepcopy(replay)
    without["shots"] = np.array([shot for shot in replay["shots"].tolist() if shot[0] != frame], dtype=np.float32)
    quiet = Painter(without)
    assert painter.picture(frame).tobytes() != quiet.picture(frame).tobytes()
    assert not hit
    assert painter.units[int(shooter)]["team"] != painter.units[int(target)]["team"]
    later = frame + 2 / replay["seconds_per_frame"]
    assert painter.picture(later).tobytes() == quiet.picture(later).tobytes()


@pytest.mark.parametrize("colors", [DARK, LIGHT])
def test_a_film_shows_what_was_painted(real_replay, tmp_path, colors):
    """Pictures are stored as what changed: put together again, they are those that were drawn, up to the palette."""
    path = write_animation(real_replay, tmp_path / "match.gif", width=320, speed=4, fps=5, colors=colors)
    pictures, seconds = shown(path)
    painter = Painter(real_replay, 320, colors)
    step = 4 / 5 / real_replay["seconds_per_frame"]
    count = math.ceil(painter.last / step) + 1
    assert len(pictures) <= count
    moments = np.minimum(np.arange(count) * step, painter.last)
    drawn = [np.asarray(painter.picture(moment), dtype=np.int16) for moment in moments]
    ends = np.cumsum(seconds)
    for number, picture in enumerate(drawn):  # equal pictures are stored once and stay longer
        there = np.asarray(pictures[int(np.searchsorted(ends, number / 5 + 0.01))], dtype=np.int16)
        assert there.shape == picture.shape
        assert np.abs(there - picture).mean() < 1.0
        assert np.quantile(np.abs(there - picture), 0.995) < 60
    assert sum(seconds) == pytest.approx(count / 5 + HOLD_SECONDS, abs=0.3)


def test_a_minute_is_small_and_soon_written(long_match, tmp_path):
    assert len(long_match["frames"]["x"]) * long_match["seconds_per_frame"] >= 60
    began = time.process_time()
    path = write_animation(long_match, tmp_path / "match.gif")
    assert time.process_time() - began < 15
    assert path.stat().st_size < 3_000_000
    pictures, seconds = shown(path)
    assert len(pictures) > 300
    assert sum(seconds) == pytest.approx(30 + HOLD_SECONDS, abs=0.5)


def test_long_matches_go_by_faster(real_replay, tmp_path, monkeypatch):
    monkeypatch.setattr(animation, "MOST_PICTURES", 40)
    long = {**real_replay, "seconds_per_frame": 60.0}
    pictures, seconds = shown(write_animation(long, tmp_path / "match.gif", width=200, fps=10))
    assert len(pictures) <= 41
    assert sum(seconds) == pytest.approx(4 + HOLD_SECONDS, abs=0.3)


def test_a_match_of_one_frame_is_a_picture(real_replay, tmp_path):
    one = deepcopy(real_replay)
    one["frames"] = {name: column[:1] for name, column in one["frames"].items()}
    one |= {"rewards": one["rewards"][:1], "shots": np.zeros((0, 5), dtype=np.float32)}
    pictures, _ = shown(write_animation(one, tmp_path / "match.gif"))
    assert len(pictures) == 1


def test_unknown_classes_have_a_shape(real_replay):
    strange = deepcopy(real_replay)
    for unit in strange["units"]:
        unit["class"] = "submarine"
    assert "submarine" not in SHAPES
    assert Painter(strange).picture(0).tobytes() != Painter(real_replay).picture(0).tobytes()


def test_many_units_fit_into_the_header(play_match):
    painter = Painter(play_match(seed=4, team=("light",) * 20, size=120.0, walls=0, max_seconds=2.0), 320)
    picture = painter.picture(0)
    for team, side in (("blue", range(56, 125)), ("red", range(195, 264))):
        assert any(distance(picture, (x, 15), DARK[team]) < 60 for x in side)
        assert not any(distance(picture, (x, 15), DARK[team]) < 60 for x in range(130, 190))  # where the time is


def test_pictures_are_drawn_finer_than_they_are_shown(real_replay):
    picture = Painter(real_replay).picture(0)
    assert FINER == 2
    assert len(picture.getcolors(10**6)) > 100  # soft edges


@pytest.mark.parametrize(
    "settings", [{"width": 10}, {"width": 100_000}, {"fps": 0}, {"fps": 1000}, {"speed": 0}, {"speed": float("nan")}]
)
def test_what_no_film_can_be_is_refused(real_replay, tmp_path, settings):
    (name,) = settings
    with pytest.raises(ConfigError, match=f"^{name}=.* must be .*usual"):
        write_animation(real_replay, tmp_path / "match.gif", **settings)


@pytest.mark.parametrize("name", ["match.avi", "match", "match.html"])
def test_other_endings_are_refused(real_replay, tmp_path, name):
    with pytest.raises(ConfigError, match=r"films end with \.gif or \.mp4"):
        write_animation(real_replay, tmp_path / name)
    assert not list(tmp_path.iterdir())


def pretend_ffmpeg(folder, script):
    program = folder / "bin" / "ffmpeg"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program.parent)


def test_mp4_needs_ffmpeg(real_replay, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"needs ffmpeg.*\.gif"):
        write_animation(real_replay, tmp_path / "match.mp4")


def test_mp4_is_what_ffmpeg_makes_of_the_pictures(tmp_path, monkeypatch):
    script = 'for last; do :; done; echo "$@" > "$(dirname "$0")/words"; cat > "${last#file:}"'
    folder = pretend_ffmpeg(tmp_path, script)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    pictures = [Image.new("RGB", (7, 5), (number, 0, 0)) for number in range(4)]
    path = write_film(pictures, tmp_path / "match.mp4", fps=2)
    raw = np.frombuffer(path.read_bytes(), dtype=np.uint8).reshape(-1, 4, 6, 3)  # sides made even
    assert raw[:, 0, 0, 0].tolist() == [0, 1, 2, 3, *[3] * round(2 * HOLD_SECONDS)]
    words = (tmp_path / "bin" / "words").read_text().split()
    assert words[words.index("-video_size") + 1] == "6x4"
    assert words[words.index("-framerate") + 1] == "2"


def test_what_ffmpeg_says_is_told(tmp_path, monkeypatch):
    folder = pretend_ffmpeg(tmp_path, "echo 'no such codec' >&2; exit 3")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    pictures = [Image.new("RGB", (640, 480))] * 50
    with pytest.raises(ConfigError, match=r"no such codec.*\.gif"):
        write_film(pictures, tmp_path / "match.mp4", fps=10)
    assert [entry.name for entry in tmp_path.iterdir()] == ["bin"]


def test_nothing_is_left_where_a_picture_fails(tmp_path, monkeypatch):
    folder = pretend_ffmpeg(tmp_path, "cat > /dev/null")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    palette = Image.new("RGB", (2, 2)).quantize(2)

    def pictures():
        yield Image.new("RGB", (64, 64))
        raise ZeroDivisionError

    for suffix in ("gif", "mp4"):
        with pytest.raises(ZeroDivisionError):
            write_film(pictures(), tmp_path / f"match.{suffix}", fps=10, palette=palette)
    assert [entry.name for entry in tmp_path.iterdir()] == ["bin"]


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg")
def test_mp4_can_be_read_back(real_replay, tmp_path):
    path = write_animation(real_replay, tmp_path / "match.mp4", width=320, fps=10, speed=4)
    command = ["ffmpeg", "-loglevel", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    painter = Painter(real_replay, 320)
    width, height = painter.size
    first = np.frombuffer(raw[: width * height * 3], dtype=np.uint8).reshape(height, width, 3).astype(int)
    assert np.abs(first - np.asarray(painter.picture(0), dtype=int)).mean() < 6


def test_the_colours_of_any_pictures_are_found(tmp_path):
    """Colours that only come late are in the palette too."""
    pictures = [Image.new("RGB", (40, 30), (250, 250, 250)) for _ in range(20)]
    pictures += [Image.new("RGB", (40, 30), (200, 30, 90)) for _ in range(20)]
    found, seconds = shown(write_film(pictures, tmp_path / "film.gif", fps=10))
    assert len(found) == 2
    assert seconds[0] == pytest.approx(2)
    assert max(abs(one - other) for one, other in zip(found[1].getpixel((5, 5)), (200, 30, 90), strict=True)) < 8
