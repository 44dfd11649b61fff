"""What happened in a match, in words."""

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.replay.events import describe, describe_outcome, find_events, first_dead_frames


def match_of(deaths, owners, shots=(), winner="blue", reason="zone"):
    """As much of a replay as events need; deaths: the first dead frame of every unit, -1 for survivors."""
    length, half = len(owners), len(deaths) // 2
    frames = np.arange(length)[:, None]
    alive = np.array([[death < 0 or frame < death for death in deaths] for frame in frames.ravel()])
    units = [{"id": f"{team}_{slot}", "team": team} for team in ("blue", "red") for slot in range(half)]
    return {
        "seed": 3,
        "seconds_per_frame": 0.4,
        "units": units,
        "frames": {"alive": alive, "zone_owner": np.array(owners, dtype=np.int8)},
        "shots": np.array(shots, dtype=np.float32).reshape(-1, 5),
        "outcome": {"winner": winner, "reason": reason},
    }


@st.composite
def matches(draw):
    length = draw(st.integers(1, 30))
    owners = draw(st.lists(st.integers(0, 3), min_size=length, max_size=length))
    deaths = draw(st.lists(st.integers(-1, length - 1).filter(bool), min_size=2, max_size=12))
    deaths = deaths[: len(deaths) // 2 * 2]
    return match_of(deaths, owners), deaths, owners


@settings(deadline=None)
@given(matches())
def test_every_death_and_every_capture_is_told_once_and_in_order(match):
    replay, deaths, owners = match
    *events, end = find_events(replay)
    assert [event.frame for event in events] == sorted(event.frame for event in events)
    assert (end.kind, end.frame) == ("end", len(owners) - 1)
    kills = {event.unit: event.frame for event in events if event.kind == "kill"}
    assert kills == {unit: death for unit, death in enumerate(deaths) if death >= 0}
    teams = {event.unit: event.team for event in events if event.kind == "kill"}
    assert all(team != replay["units"][unit]["team"] for unit, team in teams.items())
    # The holders one after the other, without frames in which nobody or both are there, and without repetition.
    held = [("blue", "red")[owner - 1] for owner in owners if owner in (1, 2)]
    changes = [team for at, team in enumerate(held) if at == 0 or held[at - 1] != team]
    captures = [event for event in events if event.kind == "zone"]
    assert [event.team for event in captures] == changes
    assert all(owners[event.frame] == 1 + ("blue", "red").index(event.team) for event in captures)


def test_the_kill_goes_to_who_shot_last():
    shots = [(1, 3, 0, 1, 5), (2, 2, 0, 1, 5), (2, 3, 0, 0, 0), (2, 0, 2, 1, 1)]
    replay = match_of([2, -1, -1, -1], [0] * 4, shots)
    kill, _ = find_events(replay)
    assert (kill.frame, kill.unit, kill.by, kill.text) == (2, 0, 2, "red_0 destroys blue_0")


def test_a_death_without_a_shot_is_told_without_a_name():
    kill, _ = find_events(match_of([1, -1], [0, 0]))
    assert (kill.by, kill.text) == (-1, "blue_0 is destroyed")


@pytest.mark.parametrize(
    ("winner", "reason", "words"),
    [
        ("blue", "zone", "blue wins by holding the zone"),
        ("red", "elimination", "red wins by elimination"),
        ("red", "time", "red wins on time"),
        ("draw", "time", "a draw on time"),
        ("draw", "running", "not decided yet"),
        ("blue", "magic", "blue wins by magic"),
    ],
)
def test_outcomes_in_words(winner, reason, words):
    replay = match_of([-1, -1], [0, 0, 0], winner=winner, reason=reason)
    assert describe_outcome(replay) == words
    assert describe(replay) == f"Seed 3: {words} after 0.8 s"


def test_first_dead_frames():
    alive = np.array([[1, 1, 0], [1, 0, 0], [1, 0, 1]], dtype=bool)
    assert first_dead_frames(alive).tolist() == [-1, 1, 0]


def test_kills_of_a_real_match_agree_with_who_is_left(real_replay):
    before = deepcopy(real_replay["frames"]["alive"])
    events = find_events(real_replay)
    lost = int((~before[-1]).sum())
    kills = [event for event in events if event.kind == "kill"]
    assert len(kills) == lost > 0
    assert all(event.by >= 0 for event in kills)
    assert events[-1].team == real_replay["outcome"]["winner"]
    assert (real_replay["frames"]["alive"] == before).all()
