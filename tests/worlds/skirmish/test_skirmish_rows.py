"""Many matches as rows against the same matches one by one."""

from __future__ import annotations

import time

import numpy as np
import pytest

from twostep.errors import ConfigError, EnvError
from twostep.worlds.skirmish import EnvConfig, HeuristicPolicy, SkirmishEnv, SkirmishRows
from twostep.worlds.skirmish.control import encode

CONFIGS = [
    EnvConfig(max_seconds=14.0),
    EnvConfig(control="continuous", team=("heavy", "scout"), size=30.0, walls=4, zone_radius=5.0),
]


@pytest.mark.parametrize("num_matches", [1, 3])
@pytest.mark.parametrize("config", CONFIGS)
def test_rows_equal_the_environment_bit_for_bit(config: EnvConfig, num_matches: int) -> None:
    """The same seeds give the same matches, whatever steps beside them, in every digit, and the next ones too."""
    rows = SkirmishRows(config, num_matches, agent_ids="blue_*")
    seeds = [40 + match for match in range(num_matches)]
    envs, red = [SkirmishEnv(config) for _ in seeds], HeuristicPolicy()
    step = rows.reset(seeds)
    seen = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    rows.action_space.seed(0)
    ended = 0
    for _ in range(110):
        chosen = np.stack([rows.action_space.sample() for _ in range(rows.num_rows)])
        acting = [env.agents for env in envs]
        step = rows.step(chosen)
        for match, env in enumerate(envs):
            actions = {agent: red.act(env, agent) for agent in env.agents}
            first = match * rows.num_agents
            actions |= {agent: chosen[first + at] for at, agent in enumerate(rows.agent_ids) if agent in env.agents}
            seen[match], rewards, terminations, _, infos = env.step(actions)
            final, ended = seen[match], ended + (not env.agents)
            if not env.agents:
                seen[match] = env.reset()[0]
            for at, agent in enumerate(rows.agent_ids):
                row = first + at
                assert step.valid[row] == (agent in acting[match])
                assert step.episode_starts[row] == (env.simulation.steps[0] == 0)
                np.testing.assert_array_equal(step.obs[row], seen[match].get(agent, np.zeros_like(step.obs[row])))
                if step.valid[row]:
                    assert step.rewards[row] == np.float32(rewards[agent])
                    assert step.terminated[row] == terminations[agent]
                if step.valid[row] and terminations[agent]:
                    assert step.infos[row] == infos[agent]
                    assert (step.final_obs[step.final_rows == row] == final[agent]).all()
    assert ended >= num_matches


def test_rewards_of_rows_that_ended_are_nothing_until_the_next_match() -> None:
    rows = SkirmishRows(EnvConfig(size=30.0, zone_radius=5.0), 8, seed=0)
    rows.reset()
    act, missing = HeuristicPolicy(), 0
    for _ in range(60):
        step = rows.step(_planned(rows, act))
        gone = ~step.valid
        missing += gone.sum()
        assert not step.rewards[gone].any()
        assert not step.terminated[gone].any()
        assert not step.obs[gone & ~step.episode_starts].any()
    assert missing > 20


def _planned(rows: SkirmishRows, player: HeuristicPolicy) -> np.ndarray:
    """What a heuristic does in place of the policy."""
    actions = encode(player.plan(rows.simulation), rows.config.control)
    return actions[:, 0].reshape(rows.num_rows, -1)


def test_any_match_of_any_row_can_be_played_again_by_its_seed() -> None:
    config = EnvConfig(max_seconds=6.0)
    rows, act = SkirmishRows(config, 4, seed=9), HeuristicPolicy()
    rows.reset()
    for _ in range(20):
        step = rows.step(_planned(rows, act))
    assert step.valid.all()
    for match, seed in enumerate(rows.simulation.seeds):
        env = SkirmishEnv(config)
        env.reset(seed=seed)
        for _ in range(rows.simulation.steps[match]):
            seen = env.step({agent: act.act(env, agent) for agent in env.agents})[0]
        for at, agent in enumerate(rows.agent_ids):
            np.testing.assert_array_equal(step.obs[match * 5 + at], seen[agent])


def test_one_seed_decides_all_matches_whatever_ran_before() -> None:
    rows, act = SkirmishRows(EnvConfig(max_seconds=4.0), 3), HeuristicPolicy()
    runs = []
    for _ in range(2):
        step = rows.reset(17)
        runs.append([step.obs.copy(), *(rows.step(_planned(rows, act)).obs.copy() for _ in range(25))])
    np.testing.assert_array_equal(runs[0], runs[1])
    assert len(set(rows.simulation.seeds)) == 3


def test_all_agents_or_single_ones_can_be_controlled() -> None:
    config = EnvConfig(team=("scout", "light"))
    assert SkirmishRows(config, 2, agent_ids="*").num_rows == 8
    assert SkirmishRows(config, 2, agent_ids=["red_1", "blue_*"]).agent_ids == ("red_1", "blue_0", "blue_1")
    assert SkirmishRows(config, 2, agent_ids="*").opponent is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs=0"),
        ({"agent_ids": "green_*"}, "'green_\\*', which is no agent. There are blue_0"),
        ({"agent_ids": ()}, "nobody to act for"),
        ({"agent_ids": "*", "opponent": HeuristicPolicy}, "it would play nobody"),
    ],
)
def test_what_cannot_work_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        SkirmishRows(EnvConfig(), **arguments)
    rows = SkirmishRows(EnvConfig(), 2)
    with pytest.raises(EnvError, match="before reset"):
        rows.step(np.zeros((10, 3), dtype=np.int64))
    with pytest.raises(EnvError, match="0 or more"):
        rows.reset(-1)
    with pytest.raises(EnvError, match="3 seeds came for 2"):
        rows.reset([1, 2, 3])
    rows.reset(np.array([1, 2]))
    for indices in ([2], [-1], [0, 0], [0.5], [True]):
        with pytest.raises(EnvError, match="indices="):
            rows.reset([1] * len(indices), indices)


def test_matches_are_asked_and_told_one_by_one() -> None:
    """E16: what worker commands ask, of each match; the same as of the environment played alone."""
    config = EnvConfig(team=("light", "heavy"), max_seconds=4.0, record_replay=True)
    rows, alone = SkirmishRows(config, 3), SkirmishEnv(config)
    rows.reset([5, 6, 7])
    alone.reset(seed=6)
    assert rows.call("get_last_outcome") == [None] * 3
    assert rows.call("get_team_alive", indices=[1, 0]) == [{"blue": 2, "red": 2}] * 2
    assert [replay["seed"] for replay in rows.call("get_replay", indices=np.array([2, 0]))] == [7, 5]
    actions = np.zeros((6, 3), dtype=np.int64)
    heuristic = HeuristicPolicy()
    while alone.agents:
        given = {
            agent: heuristic.act(alone, agent) if agent.startswith("red") else actions[0] for agent in alone.agents
        }
        alone.step(given)
        rows.step(actions)
    assert rows.call("get_last_outcome", indices=[1]) == [alone.get_last_outcome()]
    (found,), expected = rows.call("get_replay", indices=[1]), alone.get_replay()
    assert found["outcome"] == expected["outcome"]
    for name, column in expected["frames"].items():
        np.testing.assert_array_equal(found["frames"][name], column)
    rows.reset([8, 8, 8])
    assert [replay["seed"] for replay in rows.call("get_replay")] == [8, 8, 8]


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_opponent_of_a_match_can_be_made_easier(share: float) -> None:
    """E16: as a curriculum of opponents wants it; other matches notice nothing."""
    rows, others = SkirmishRows(EnvConfig(), 2, agent_ids="*"), SkirmishRows(EnvConfig(), 2, agent_ids="*")
    for env in (rows, others):
        env.reset([4, 4])
    rows.call("set_heuristic", {"fire_share": share}, indices=[1])
    fired = np.zeros(2)
    for _ in range(60):
        fired += rows.scripted_actions()[..., 2].astype(bool).any(-1)
        same = np.concatenate(others.call("scripted_actions"))
        np.testing.assert_array_equal(rows.call("scripted_actions", indices=[0])[0], same[: len(same) // 2])
        for env in (rows, others):
            env.step(same.reshape(-1, 3))
    assert fired[0] == 60
    assert fired[1] == 60 * share
    again = SkirmishRows(EnvConfig(), 2, agent_ids="*")
    again.load_state_dict(rows.state_dict())
    assert again.simulation.heuristics == rows.simulation.heuristics, "resuming keeps it"
    with pytest.raises(ConfigError, match=r"heuristic\.fire_shar is no setting"):
        rows.call("set_heuristic", {"fire_shar": share})


def test_one_process_plays_twenty_thousand_agent_steps_a_second() -> None:
    """32 matches at once, five against five, red by the heuristic; only steps of blue agents that are alive count."""
    rows = SkirmishRows(EnvConfig(), 32, seed=0)
    rows.reset()
    rng = np.random.default_rng(0)
    actions = np.stack([rng.integers(0, choices, rows.num_rows) for choices in rows.action_space.nvec], axis=-1)
    best = 0.0
    for _ in range(5):
        began = time.process_time()
        acted = sum(int(rows.step(actions).valid.sum()) for _ in range(30))
        best = max(best, acted / (time.process_time() - began))
    assert best > 20_000
