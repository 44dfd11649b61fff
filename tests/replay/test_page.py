"""The page as a file: what is in it, what cannot get into it, and whether its numbers are those of the match."""

import base64
import json
from copy import deepcopy
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from twostep.errors import ConfigError
from twostep.replay import write_page
from twostep.replay.packing import Column, pack

HOSTILE = "</script></title><script>alert(1)</script>{{script}}{{match}}\"'&<!--\u2028\\u003c"


class Parsed(HTMLParser):
    """Tags with their attributes, and the text inside of scripts and headings."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.stack = [], {}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        name = dict(attributes).get("id")
        self.stack.append((tag, f"{tag}#{name}" if name else tag))

    def handle_endtag(self, tag):
        while self.stack and self.stack.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if self.stack:
            name = self.stack[-1][1]
            self.texts[name] = self.texts.get(name, "") + data


def parsed(path):
    page = Parsed(path.read_text(encoding="utf-8"))
    return page, json.loads(page.texts["script#match"])


def unpacked(packed):
    """What `web/decode.js` does, in Python: a column of values `[T, M]` for each name."""
    data = base64.b64decode(packed["bytes"])
    return {name: series_of(data[place["begin"] : place["end"]], place) for name, place in packed["columns"].items()}


def series_of(data, place):
    at, changes = 0, []

    def number():
        nonlocal at
        value, scale = 0, 1
        while True:
            byte, at = data[at], at + 1
            value += (byte & 127) * scale
            scale *= 128
            if byte < 128:
                return value

    while at < len(data):
        code = number()
        if code == 0:
            changes += [0] * number()
        else:
            changes.append(-(code + 1) // 2 if code % 2 else code // 2)
    count = place["series"]
    steps = np.cumsum(np.array(changes, dtype=np.int64).reshape(count, -1 if count else 0), axis=1)
    return (steps * place["resolution"]).T


@settings(deadline=None)
@given(
    arrays.arrays(
        np.float64,
        st.tuples(st.integers(0, 20), st.integers(1, 5)),
        elements=st.one_of(st.floats(-1e4, 1e4), st.sampled_from([0.0, 1.0])),
    ),
    st.sampled_from([1e-3, 0.1, 1.0, 7.0]),
)
def test_packed_numbers_come_back_within_half_a_step(values, resolution):
    column = unpacked(json.loads(json.dumps(pack({"a": Column(values, resolution)}))))["a"]
    assert column.shape == values.shape
    assert np.abs(column - values).max(initial=0) <= resolution / 2 * (1 + 1e-6)


def test_what_stands_still_takes_no_room():
    packed = pack({"still": Column(np.full((10_000, 3), 4.2), 0.1), "flags": Column(np.ones((50, 2), dtype=bool), 1)})
    assert len(packed["bytes"]) < 40
    assert (unpacked(packed)["flags"] == 1).all()


@pytest.mark.parametrize("kind", ["replay", "real_replay"])
def test_the_page_holds_the_match(kind, request, tmp_path):
    replay = request.getfixturevalue(kind)
    _, match = parsed(write_page(replay, tmp_path / "match.html"))
    tracks, frames = unpacked(match["tracks"]), replay["frames"]
    steps = {name: place["resolution"] for name, place in match["tracks"]["columns"].items()}
    shown = {"zoneScore": frames["zone_score"], "zoneOwner": frames["zone_owner"][:, None]}
    shown |= {"earned": np.cumsum(replay["rewards"], axis=0), "heading": np.unwrap(frames["heading"], axis=0)}
    shown |= {name: frames[name] for name in ("x", "y", "hp", "heat", "cooldown", "alive", "overheated")}
    assert set(shown) == set(tracks)
    for name, column in shown.items():
        assert np.abs(tracks[name] - column).max() <= 0.51 * steps[name] + 1e-6, name
    # Steps that nobody sees: a thousandth of the arena, a third of a percent of bars, a degree.
    assert steps["x"] < max(replay["size"]) / 1000
    assert steps["hp"] <= max(unit["max_hp"] for unit in replay["units"]) / 300
    assert steps["heading"] < np.radians(1)
    shots = np.concatenate([unpacked(match["shots"])[name] for name in ("frame", "shooter", "target", "hit")], axis=1)
    assert (shots == replay["shots"][:, :4]).all()
    assert [unit["id"] for unit in match["units"]] == [unit["id"] for unit in replay["units"]]
    assert match["frames"] == len(frames["x"])
    assert match["events"][-1]["kind"] == "end"


def test_the_page_asks_for_nothing_else(real_replay, tmp_path):
    path = write_page(real_replay, tmp_path / "match.html")
    page, _ = parsed(path)
    text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert "http" not in text.replace("http-equiv", "")
    assert not [tag for tag, attributes in page.tags if {"src", "href", "srcset", "data"} & set(attributes)]
    assert not [tag for tag, _ in page.tags if tag in ("link", "iframe", "img", "object", "embed", "base")]
    policy = next(attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes)
    assert "default-src 'none'" in policy
    assert "{{" not in text
    assert len(text) < 150_000


def test_hostile_names_stay_text(real_replay, tmp_path):
    replay = deepcopy(real_replay)
    for unit in replay["units"]:
        unit["id"] = unit["class"] = HOSTILE
    replay["outcome"]["winner"] = replay["outcome"]["reason"] = HOSTILE
    page, match = parsed(write_page(replay, tmp_path / "match.html", title=HOSTILE))
    scripts = [tag for tag, _ in page.tags if tag == "script"]
    assert len(scripts) == 2
    assert page.texts["title"] == page.texts["h1"] == HOSTILE
    assert {unit["id"] for unit in match["units"]} == {HOSTILE}
    assert "alert(1)" not in page.texts["script"]
    assert page.texts["script"].count("class Player") == 1


def test_the_title_tells_the_outcome(real_replay, tmp_path):
    page, _ = parsed(write_page(real_replay, tmp_path / "match.html"))
    winner = real_replay["outcome"]["winner"]
    assert page.texts["h1"].startswith(f"Seed {real_replay['seed']}: {winner} wins")


def test_a_match_of_one_frame_and_no_shots_has_a_page(play_match, tmp_path):
    replay = deepcopy(play_match(seed=2))
    replay["frames"] = {name: column[:1] for name, column in replay["frames"].items()}
    replay |= {"rewards": replay["rewards"][:1], "shots": np.zeros((0, 5), dtype=np.float32), "walls": np.zeros((0, 4))}
    replay["outcome"] |= {"reason": "running", "winner": "draw"}
    page, match = parsed(write_page(replay, tmp_path / "match.html"))
    assert match["frames"] == 1
    assert page.texts["h1"] == f"Seed {replay['seed']}: not decided yet after 0.0 s"


def test_pages_go_into_new_folders_and_over_old_pages(real_replay, tmp_path):
    (tmp_path / "file").write_text("here")
    with pytest.raises(ConfigError, match=r"file/match\.html cannot be written: .*Choose another place"):
        write_page(real_replay, tmp_path / "file" / "match.html")
    path = write_page(real_replay, tmp_path / "new" / "folder" / "match.html")
    write_page(real_replay, path, title="again")
    assert parsed(path)[0].texts["h1"] == "again"
    assert [entry.name for entry in path.parent.iterdir()] == ["match.html"]
