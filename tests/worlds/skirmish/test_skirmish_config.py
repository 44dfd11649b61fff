"""Settings: what is refused, how they are read and written, what they lead to."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.errors import ConfigError
from twostep.worlds.skirmish import CLASSES, EnvConfig, HeuristicConfig, RewardWeights, SkirmishEnv

configs = st.builds(
    EnvConfig,
    team=st.lists(st.sampled_from(list(CLASSES)), min_size=1, max_size=6).map(tuple),
    size=st.floats(30, 200),
    walls=st.integers(0, 10).map(lambda pairs: 2 * pairs),
    zone_radius=st.floats(1.2, 7.5),
    zone_seconds=st.floats(1, 30),
    max_seconds=st.floats(4, 90),
    tick_seconds=st.floats(0.02, 0.2),
    ticks_per_step=st.integers(1, 5),
    control=st.sampled_from(["discrete", "continuous"]),
    rays=st.integers(0, 16),
    rewards=st.builds(RewardWeights, zone=st.floats(-2, 2), death=st.floats(0, 2)),
    heuristic=st.builds(HeuristicConfig, engage=st.floats(0, 2), spread=st.floats(0, 1)),
    seed=st.none() | st.integers(0, 2**31),
)


@given(configs)
def test_what_is_written_is_read_back(config: EnvConfig) -> None:
    """A round trip through JSON gives the same settings, and any part of them is enough."""
    text = json.dumps(config.to_dict())
    assert EnvConfig.from_dict(json.loads(text)) == config
    assert EnvConfig.from_dict({"team": ["heavy"], "rewards": {"zone": 3}}) == EnvConfig(
        team=("heavy",), rewards=RewardWeights(zone=3)
    )


@settings(max_examples=30, deadline=None)
@given(configs)
def test_whatever_is_accepted_can_be_played(config: EnvConfig) -> None:
    """Spaces fit, numbers stay finite, and a match ends in time."""
    env = SkirmishEnv(replace(config, max_seconds=max(config.step_seconds, min(config.max_seconds, 2.0))))
    policy = env.make_opponent()
    env.reset(seed=0)
    for _ in range(env.config.max_steps):
        seen, rewards, *_ = env.step({agent: policy.act(env, agent) for agent in env.agents})
        assert all(env.observation_space(agent).contains(one) for agent, one in seen.items())
        assert np.isfinite(list(rewards.values())).all()
        assert np.isfinite(env.state()).all()
        if not env.agents:
            break
    assert not env.agents


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"team": ()}, "1 to 20"),
        ({"team": ("scout",) * 21}, "1 to 20"),
        ({"team": ("mech",)}, "'mech'; classes are scout, light, medium, heavy"),
        ({"team": 5}, "team=5"),
        ({"size": 29.9}, "between 30 and 1000"),
        ({"size": float("nan")}, "finite number"),
        ({"size": "60"}, "size='60' must be a finite number: 60.0 is the default"),
        ({"size": True}, "finite number"),
        ({"walls": 3}, "even"),
        ({"walls": 2.0}, "whole number"),
        ({"zone_radius": 20.0}, "a quarter of size"),
        ({"zone_radius": 1.0}, "the widest mech"),
        ({"tick_seconds": 0.0}, "above 0"),
        ({"ticks_per_step": 0}, "between 1 and 20"),
        ({"zone_seconds": 0.3}, "at least one step of 0.4 s"),
        ({"max_seconds": 0.3}, "at least one step of 0.4 s"),
        ({"control": "keyboard"}, "'discrete' or 'continuous'"),
        ({"rays": -1}, "between 0 and 64"),
        ({"seed": -1}, "0 or more"),
        ({"seed": "x"}, "0 or more"),
        ({"record_replay": "no"}, "true or false"),
        ({"rewards": 3}, "a RewardWeights, or a mapping"),
        ({"rewards": {"zone": None}}, "finite number"),
        ({"rewards": {"zones": 1}}, "rewards.zones is no setting of skirmish. Did you mean rewards.zone?"),
        ({"heuristic": {"engage": -1}}, "engage=-1 must be 0 or more"),
        ({"heuristic": {"standoff": 2}}, "between 0 and 1"),
        ({"heuristic": {"heat_limit": 2}}, "between 0 and 1"),
        ({"heuristic": {"spread": 2}}, "between 0 and 1"),
    ],
)
def test_what_cannot_work_is_refused_with_a_way_out(chosen: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        EnvConfig(**chosen)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("syze", "Did you mean size?"), ("zone_radios", "Did you mean zone_radius?"), ("qq", "Settings are team, size")],
)
def test_unknown_settings_are_refused_with_the_closest(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(hint)):
        EnvConfig.from_dict({name: 1})


def test_settings_cannot_change_later_and_take_one_class_for_a_team() -> None:
    config = EnvConfig(team="heavy", size=np.float32(40.0), walls=np.int64(2))
    assert config.team == ("heavy",)
    with pytest.raises(AttributeError):
        config.size = 50.0
    assert EnvConfig().step_seconds == pytest.approx(0.4)
    assert EnvConfig().max_steps == 150
    assert EnvConfig(team=("scout", "heavy")).agent_ids == ("blue_0", "blue_1", "red_0", "red_1")
