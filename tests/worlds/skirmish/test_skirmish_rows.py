"""Many matches as rows against the same matches one by one."""

from __future__ import annotations

import time

import numpy as np
import pytest

from twostep.errors import EnvError
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


def test_one_process_plays_twenty_thousand_agent_steps_a_second() -> None:
    """Five against five as training plays it: blue by a policy, red by the heuristic; only blue's steps count."""
    rows = SkirmishRows(EnvConfig(), 32, seed=0)
    rows.reset()
    rng = np.random.default_rng(0)
    actions = np.stack([rng.integers(0, choices, rows.num_rows) for choices in rows.action_space.nvec], axis=-1)
    best = 0.0
    for _ in range(5):
        began = time.process_time()
        for _ in range(30):
            rows.step(actions)
        best = max(best, 30 * rows.num_rows / (time.process_time() - began))
    assert best > 20_000
