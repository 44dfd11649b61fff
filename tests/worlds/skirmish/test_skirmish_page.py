"""Every number on the page about skirmish is the code's."""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pytest

from twostep.worlds.skirmish import CLASSES, EnvConfig, RewardWeights, SkirmishEnv, SkirmishRows, load_replay
from twostep.worlds.skirmish.control import TURN, action_space
from twostep.worlds.skirmish.observation import ENEMY, MATE, RAY_REACH, SELF, Observer
from twostep.worlds.skirmish.sight import ARC
from twostep.worlds.skirmish.simulation import BACKWARDS, SHUTDOWN, SIDEWAYS

PAGE = Path(__file__).parents[3].joinpath("docs", "skirmish.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return re.split(r"^## ", PAGE.split(f"## {title}\n")[1], flags=re.M)[0]


def table(title: str) -> list[list[str]]:
    """Read the rows of a section's table, without its two lines of heading."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_classes() -> None:
    heading = section("Classes").splitlines()[0].strip("|").split("|")[1:]
    assert [name.strip() for name in heading] == list(CLASSES)
    rows = {name: [float(number) for number in numbers] for name, *numbers in table("Classes")}
    assert rows == {name: [asdict(kind)[name] for kind in CLASSES.values()] for name in asdict(CLASSES["scout"])}
    team = ", ".join(f'"{name}"' for name in EnvConfig().team)
    assert f"({team})" in section("Classes")


def test_rewards_and_settings() -> None:
    weights = {name: float(weight) for name, weight, _ in table("Rewards")}
    assert weights == asdict(RewardWeights())
    config = EnvConfig()
    values = {name: value for name, value, _ in table("Settings")}
    assert values == {name: str(getattr(config, name)) for name in values}
    rest = {setting.name for setting in fields(config)} - values.keys()
    assert rest == {"team", "rewards", "heuristic", "seed"}
    assert all(f"`{name}`" in section("Settings") for name in rest)


def test_observations() -> None:
    config, observer = EnvConfig(), Observer(EnvConfig())
    ends, count = [], len(config.team)
    for numbers, _ in table("Observations"):
        first, _, last = numbers.partition("-")
        assert int(first) == (ends[-1] + 1 if ends else 0)
        ends.append(int(last or first))
    walls = SELF + config.rays
    assert ends[-4:] == [SELF - 1, walls - 1, walls + MATE * (count - 1) - 1, observer.length - 1]
    text = section("Observations")
    assert f"Box(-1, 1, ({observer.length},))" in text
    for words in (
        f"in {config.rays} directions", f"of {RAY_REACH:g} m", f"of {SHUTDOWN:g} s", f"{count - 1} mates",
        f"({MATE} numbers)", f"{count} enemies", f"({ENEMY} numbers)",
    ):  # fmt: skip
        assert words in text


def test_rules_and_actions() -> None:
    config, text = EnvConfig(), " ".join(section("Rules").split())
    for words in (
        f"square of {config.size:g} m with {config.walls} walls",
        f"lasts {config.step_seconds:g} s: {config.ticks_per_step} ticks of motion of {config.tick_seconds:g} s",
        f"sideways it is {SIDEWAYS:g} of that, backwards {BACKWARDS:g}",
        f"within {np.arccos(ARC):.1f} radians",
        f"shuts down for {SHUTDOWN:g} s",
        f"scored {config.zone_seconds:g} s wins",
        f"after {config.max_seconds:g} s",
    ):
        assert words in text
    choices = action_space("discrete").nvec.tolist()
    assert f"MultiDiscrete({choices})" in section("Actions")
    assert [sum(cell != "" for cell in row[1:]) for row in table("Actions")] == choices
    assert f"the other one {TURN[1]:g} of it" in section("Actions")
    assert f"Box(-1, 1, {action_space('continuous').shape})" in section("Actions")


def test_strength_of_the_scripted_opponent() -> None:
    """The page promises what `test_skirmish_balance.py` asks for."""
    assert [wins for _, wins in table("The scripted opponent")] == [
        "half of the matches",
        "at most 5 %",
        "at least 85 %",
    ]


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = PAGE.split("```python\n")[1].split("```")[0]
    exec(code, {})
    assert load_replay("match.npz")["seed"] == 7
    assert SkirmishRows(EnvConfig(), 2).num_rows == 10
    assert isinstance(EnvConfig().make(), SkirmishEnv)
