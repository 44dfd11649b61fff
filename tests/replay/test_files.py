"""E25: replays in files, from friends and from strangers: nothing is unpickled, made large, or met by a crash."""

import io
import json
import os
import pickle
import resource
import time
import zipfile
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twostep.errors import TwostepError
from twostep.replay import read_replay, write_page
from twostep.replay.files import writing
from twostep.worlds.skirmish import save_replay


@pytest.fixture(scope="module")
def saved(real_replay, tmp_path_factory):
    """The bytes of a whole replay."""
    return save_replay(real_replay, tmp_path_factory.mktemp("saved") / "match.npz").read_bytes()


@pytest.fixture(scope="module")
def attempt(tmp_path_factory):
    """A function: bytes to the replay that they hold, or to the one line that says why they hold none."""
    folder = tmp_path_factory.mktemp("attempts")

    def read(content):
        path = folder / "match.npz"
        path.write_bytes(content)
        try:
            replay = read_replay(path)
        except TwostepError as error:
            complaint = str(error)
        else:
            write_page(replay, folder / "match.html")  # what passes can be shown
            return replay
        assert "\n" not in complaint
        assert str(path) in complaint
        return complaint

    return read


def members(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(parts, compression=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def array_bytes(array, **options):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, **options)
    return buffer.getvalue()


def header_only(shape, descr="<f4"):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def test_what_was_saved_comes_back(real_replay, saved, attempt):
    replay = attempt(saved)
    assert replay["units"] == real_replay["units"]
    assert replay["outcome"] == real_replay["outcome"]
    for name, column in real_replay["frames"].items():
        assert (replay["frames"][name] == column).all()


def test_every_truncation_is_refused(saved, attempt):
    for length in [*range(0, len(saved), 97), len(saved) - 1]:
        assert isinstance(attempt(saved[:length]), str), length


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes_are_refused_or_harmless(saved, attempt, data):
    content = bytearray(saved)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    attempt(bytes(content))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300), magic=st.sampled_from([b"", b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY"]))
def test_random_bytes_are_refused(attempt, content, magic):
    assert isinstance(attempt(magic + content), str)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_part_of_random_bytes_is_refused_or_harmless(saved, attempt, data):
    """The archive is whole, its checksums are right, and what is inside is not."""
    parts = members(saved)
    name = data.draw(st.sampled_from(sorted(parts)))
    content = bytearray(parts[name])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    attempt(archive_of(parts | {name: bytes(content)}))


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def test_pickles_are_never_opened(saved, attempt, tmp_path):
    mark = tmp_path / "harm"
    pickled = array_bytes(np.array([Bomb(str(mark))], dtype=object), allow_pickle=True)
    for name in ("walls.npy", "match.npy", "frames.x.npy", "more.npy"):
        assert "no array of numbers" in attempt(archive_of(members(saved) | {name: pickled}))
    for content in (pickle.dumps(Bomb(str(mark))), pickled):
        assert isinstance(attempt(content), str)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(str(mark))))
    assert mark.exists()  # the bomb works


@pytest.mark.parametrize("shape", [(10**12,), (2**62, 4), (2**40, 2**40), (10**6, 0, 10**6), (3,), (-4, 4)])
def test_shapes_that_are_not_there_are_refused(saved, attempt, shape):
    parts = members(saved) | {"walls.npy": header_only(shape)}
    assert isinstance(attempt(archive_of(parts)), str)


def test_a_bomb_of_zeros_stays_packed(saved, attempt):
    zeros = header_only((2**28,)) + bytes(2**26)  # a gigabyte claimed, 64 MiB there, 64 kB in the file
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    content = archive_of(members(saved) | {"walls.npy": zeros})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "more than a replay has" in attempt(content)
    assert time.process_time() - began < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= max(before, peak) + 8 * 1024


def test_other_ways_to_pack_are_refused(saved, attempt):
    assert "packed in a way" in attempt(archive_of(members(saved), zipfile.ZIP_LZMA))
    assert "parts" in attempt(archive_of(members(saved) | {f"more{number}.npy": b"" for number in range(100)}))


def test_text_that_is_too_deep_is_refused(saved, attempt):
    for text in (b"[" * 100_000, b"{}", b"[]", b"3", b"null", b'{"format": 1}', b"\xff\xfe", b"9" * 5000):
        part = array_bytes(np.frombuffer(text, dtype=np.uint8))
        assert isinstance(attempt(archive_of(members(saved) | {"match.npy": part})), str), text[:20]


def with_column(name, change):
    def apply(replay):
        replay["frames"][name] = change(np.array(replay["frames"][name]))

    return apply


def put(name, value):
    return lambda replay: replay.__setitem__(name, value)


def put_unit(name, value):
    return lambda replay: replay["units"][0].__setitem__(name, value)


def nan_at_the_end(column):
    column[-1] = np.nan
    return column


WRONG = {
    "a position that is no number": (with_column("x", nan_at_the_end), "finite"),
    "a heading beyond all bounds": (with_column("heading", lambda column: column + 1e9), "finite"),
    "hit points of someone else": (with_column("hp", lambda column: column[:, 1:]), "hp has shape"),
    "frames that are missing": (with_column("y", lambda column: column[1:]), "y has shape"),
    "owners from nowhere": (with_column("zone_owner", lambda column: column + 7), "zone_owner"),
    "a score for one team": (with_column("zone_score", lambda column: column[:, 0]), "zone_score"),
    "no units": (put("units", []), "units"),
    "units that are words": (put("units", ["blue"]), "unit 0"),
    "a unit without a name": (put_unit("id", None), "unit 0"),
    "a name without end": (put_unit("id", "x" * 10_000), "unit 0"),
    "a name that commands the terminal": (put_unit("id", "\x1b]0;hi\x07"), "unit 0"),
    "an outcome that commands the terminal": (put("outcome", {"winner": "x", "reason": "\x1b[2J"}), "outcome"),
    "a unit of a third team": (put_unit("team", "green"), "team"),
    "a unit without size": (put_unit("radius", 0), "unit 0"),
    "hit points without end": (put_unit("max_hp", float("inf")), "unit 0"),
    "an arena without size": (put("size", [0, 0]), "size"),
    "an arena that is a line": (put("size", [100_000, 1]), "as long as wide"),
    "a size that is a word": (put("size", "60"), "size"),
    "a zone without radius": (put("zone", [1, 2]), "zone"),
    "time that stands still": (put("seconds_per_frame", 0), "seconds_per_frame"),
    "time that is no number": (put("seconds_per_frame", float("nan")), "seconds_per_frame"),
    "a seed that is a word": (put("seed", "7"), "seed"),
    "an outcome that is a word": (put("outcome", "blue"), "outcome"),
    "an outcome without a winner": (put("outcome", {"reason": "zone"}), "outcome"),
    "walls with three sides": (put("walls", np.zeros((2, 3), dtype=np.float32)), "walls"),
    "shots at nobody": (put("shots", np.array([[0, 0, 99, 1, 1]], dtype=np.float32)), "shots"),
    "shots before the beginning": (put("shots", np.array([[-1, 0, 1, 1, 1]], dtype=np.float32)), "shots"),
    "shots after the end": (put("shots", np.array([[1e5, 0, 1, 1, 1]], dtype=np.float32)), "shots"),
    "rewards for nobody": (put("rewards", np.zeros((0, 0), dtype=np.float32)), "frames"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_shown_is_refused_by_name(real_replay, tmp_path, wrong):
    change, words = WRONG[wrong]
    replay = deepcopy(real_replay)
    change(replay)
    path = save_replay(replay, tmp_path / "match.npz")
    with pytest.raises(TwostepError, match=words) as caught:
        read_replay(path)
    assert str(path) in str(caught.value)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "folder.npz").mkdir()
    for name in ("pipe.npz", "folder.npz", "missing.npz", "zero\0.npz", "x" * 5000 + ".npz"):
        with pytest.raises(TwostepError):
            read_replay(tmp_path / name)


def test_a_large_file_is_not_even_opened(tmp_path):
    path = tmp_path / "match.npz"
    with path.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(TwostepError, match="2,147,483,648 bytes"):
        read_replay(path)


def test_what_fails_on_the_way_leaves_the_old_file(tmp_path):
    target = tmp_path / "match.html"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), writing(target) as part:
        part.write_bytes(b"half a file" + bytes(1 // (part.write_bytes(b"half") - 4)))
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_the_text_of_a_replay_is_plain_json(saved):
    text = np.load(io.BytesIO(saved), allow_pickle=False)["match"].tobytes()
    assert json.loads(text)["world"] == "skirmish"
