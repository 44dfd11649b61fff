"""One match as an environment of many agents."""

from __future__ import annotations

import re

import numpy as np
import pytest

from twostep.errors import EnvError
from twostep.worlds.skirmish import EnvConfig, HeuristicPolicy, SkirmishEnv
from twostep.worlds.skirmish.control import Orders, action_space, decode, encode

SHORT = EnvConfig(max_seconds=8.0)


def play(env: SkirmishEnv, policy, seed: int | None = 0) -> list:
    """Play one match by a policy; return everything that the environment said."""
    said: list = [env.reset(seed=seed)]
    while env.agents:
        said.append(env.step({agent: policy.act(env, agent) for agent in env.agents}))
    return said


def flat(said: list) -> list:
    """Bring what an environment said to plain numbers, every digit of them."""
    return [
        {agent: one.tolist() if isinstance(one, np.ndarray) else one for agent, one in part.items()}
        for step in said
        for part in step
    ]


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_pettingzoo_finds_nothing_wrong(control: str) -> None:
    """PettingZoo's own tests of parallel environments pass."""
    test = pytest.importorskip("pettingzoo.test")
    config = EnvConfig(control=control, max_seconds=12.0)
    test.parallel_api_test(SkirmishEnv(config), num_cycles=200)
    test.parallel_seed_test(lambda: SkirmishEnv(config), num_cycles=60)


def test_the_same_seed_gives_the_same_match_and_another_seed_another() -> None:
    config = EnvConfig(max_seconds=20.0)
    first, again = (flat(play(SkirmishEnv(config), HeuristicPolicy(), 3)) for _ in range(2))
    assert first == again
    assert flat(play(SkirmishEnv(config), HeuristicPolicy(), 4)) != first


def test_every_match_of_a_sequence_can_be_played_again_by_its_seed() -> None:
    """Resets without a seed go on drawing; the whole sequence follows from the first seed."""
    env, seeds, said = SkirmishEnv(SHORT), [], []
    for seed in (11, None, None):
        said.append(flat(play(env, HeuristicPolicy(), seed)))
        seeds.append(env.simulation.seeds[0])
    assert seeds[0] == 11
    assert len(set(seeds)) == 3
    assert [flat(play(SkirmishEnv(SHORT), HeuristicPolicy(), seed)) for seed in seeds] == said
    other = SkirmishEnv(SHORT)
    assert [flat(play(other, HeuristicPolicy(), seed)) for seed in (11, None, None)] == said


def test_the_seed_of_the_config_is_for_the_first_reset() -> None:
    env = SkirmishEnv(EnvConfig(seed=5))
    env.reset()
    assert env.simulation.seeds == [5]
    env.reset()
    assert env.simulation.seeds != [5]
    drawn = {SkirmishEnv(EnvConfig()).reset()[0]["blue_0"].tobytes() for _ in range(3)}
    assert len(drawn) == 3


def test_the_heuristic_remembers_nothing() -> None:
    """EB9: one that has played other matches, or plays two at once, does what a new one does."""
    fresh = flat(play(SkirmishEnv(SHORT), HeuristicPolicy(), 7))
    used, env = HeuristicPolicy(), SkirmishEnv(SHORT)
    play(env, used, 1)
    play(SkirmishEnv(SHORT), used, 2)
    assert flat(play(env, used, 7)) == fresh
    shared, envs, said = HeuristicPolicy(), [SkirmishEnv(SHORT), SkirmishEnv(SHORT)], [[], []]
    for one, seed, env in zip(said, (7, 8), envs, strict=True):
        one.append(env.reset(seed=seed))
    while any(env.agents for env in envs):
        for one, env in zip(said, envs, strict=True):
            if env.agents:
                one.append(env.step({agent: shared.act(env, agent) for agent in env.agents}))
    assert flat(said[0]) == fresh


def test_a_match_ends_for_all_with_its_outcome() -> None:
    """EB10: a won zone ends the match, and everybody is told by whom and why; a destroyed agent ends alone before."""
    env, reasons = SkirmishEnv(EnvConfig()), set()
    for seed in range(6):
        said = play(env, HeuristicPolicy(), seed)
        gone: set[str] = set()
        for seen, _, terminations, truncations, infos in said[1:]:
            assert set(seen) == set(terminations) == set(infos) == set(env.possible_agents) - gone
            assert not any(truncations.values())
            ended = {agent for agent, over in terminations.items() if over}
            assert all(("episode_parts" in infos[agent]) == (agent in ended) for agent in infos)
            gone |= ended
        assert gone == set(env.possible_agents)
        last = said[-1][4]
        outcome = next(iter(last.values()))["outcome"]
        reasons.add(outcome["reason"])
        assert outcome["frames"] == len(said) - 1
        for agent, info in last.items():
            assert info["outcome"] == outcome
            assert info["won"] == (outcome["winner"] == agent.partition("_")[0])
    assert "zone" in reasons


def test_rewards_come_with_their_parts_which_add_up() -> None:
    env = SkirmishEnv(EnvConfig())
    totals = dict.fromkeys(env.possible_agents, 0.0)
    for _, rewards, terminations, _, infos in play(env, HeuristicPolicy(), 1)[1:]:
        for agent, reward in rewards.items():
            totals[agent] += reward
            assert sum(infos[agent]["reward_parts"].values()) == pytest.approx(reward, abs=1e-6)
            if terminations[agent]:
                assert sum(infos[agent]["episode_parts"].values()) == pytest.approx(totals[agent], abs=1e-4)


@pytest.mark.parametrize(
    ("control", "actions", "message"),
    [
        ("discrete", {"blue_0": [0, 0, 0]}, "blue_1, red_0, red_1 got no action"),
        ("discrete", [0, 0], r"shape \[4, 2\] do not fit: \[4, 3\]"),
        ("discrete", [0.0, 0.0, 0.0], "takes integers"),
        ("discrete", [0, 5, 0], r"\[0, 5, 0\] is outside"),
        ("discrete", [0, -1, 0], "outside"),
        ("continuous", [0.0, 0.0, float("nan"), 0.0, 0.0], "nan, but must be finite"),
        ("continuous", [0.0], r"\[4, 5\]"),
    ],
)
def test_actions_that_cannot_be_taken_are_refused(control: str, actions, message: str) -> None:
    env = SkirmishEnv(EnvConfig(team=("scout", "light"), control=control))
    env.reset(seed=0)
    given = actions if isinstance(actions, dict) else dict.fromkeys(env.agents, actions)
    with pytest.raises(EnvError, match=message):
        env.step(given)
    env.step({agent: env.action_space(agent).sample() for agent in env.agents})


def test_what_is_asked_out_of_turn_is_refused() -> None:
    env = SkirmishEnv(SHORT)
    with pytest.raises(EnvError, match="Call reset first"):
        env.step({})
    with pytest.raises(EnvError, match="record_replay=True"):
        env.get_replay()
    with pytest.raises(EnvError, match="0 or more"):
        env.reset(seed=-1)


def test_actions_beyond_the_box_count_as_its_border() -> None:
    config = EnvConfig(control="continuous", team=("scout",))
    said = []
    for forward in (1.0, 7.0):
        env = SkirmishEnv(config)
        env.reset(seed=0)
        action = np.array([forward, 0, 0, 0, 0], dtype=np.float32)
        said.append(env.step(dict.fromkeys(env.agents, action))[0]["blue_0"].tolist())
    assert said[0] == said[1]


@pytest.mark.parametrize("control", ["discrete", "continuous"])
def test_orders_survive_the_way_through_actions(control: str) -> None:
    """What `decode` makes of actions, `encode` turns into actions that mean the same."""
    space = action_space(control)
    space.seed(0)
    actions = np.stack([space.sample() for _ in range(300)])
    orders = decode(actions, control)
    again = decode(encode(orders, control), control)
    for name in ("forward", "left", "turn", "fire"):
        np.testing.assert_allclose(getattr(again, name), getattr(orders, name), atol=1e-6)
    np.testing.assert_array_equal((again.weakest & again.fire), orders.weakest & orders.fire)


def test_numbers_mean_what_the_page_says() -> None:
    """Forwards, left and turn as they are within the box; fire and weakest from just above 0."""
    actions = np.array([[0.5, -0.25, 2.0, 0.01, 0.01], [-3.0, 1.0, -0.5, 0.0, -0.01]], dtype=np.float32)
    orders = decode(actions, "continuous")
    assert orders.forward.tolist() == [0.5, -1]
    assert orders.left.tolist() == [-0.25, 1]
    assert orders.turn.tolist() == [1, -0.5]
    assert orders.fire.tolist() == orders.weakest.tolist() == [True, False]


def test_choices_come_closest_to_the_orders() -> None:
    cases = {"forward": [0.9, -0.8, 0.1, 0, 0], "left": [0.2, 0, 0, 0.9, -0.6], "turn": [0.9, 0.4, 0.05, -0.3, -0.8]}
    numbers = {name: np.array(values, dtype=np.float32) for name, values in cases.items()}
    flags = np.array([0, 1, 1, 0, 1], dtype=bool), np.array([0, 0, 1, 1, 1], dtype=bool)
    chosen = encode(Orders(**numbers, fire=flags[0], weakest=flags[1]), "discrete")
    assert chosen.tolist() == [[1, 0, 0], [2, 1, 1], [0, 2, 2], [3, 3, 0], [4, 4, 2]]


def test_the_whole_state_is_there_for_those_who_may_know_it() -> None:
    env = SkirmishEnv(EnvConfig())
    env.reset(seed=0)
    before = env.state()
    assert env.state_space.contains(before)
    env.simulation.heat[0, 1, 2] = 50
    assert np.flatnonzero(env.state() != before).tolist() == [(5 + 2) * 8 + 5]


def test_spaces_belong_to_one_agent_each() -> None:
    env = SkirmishEnv(EnvConfig(control="continuous"))
    assert env.action_space("blue_0") is env.action_space("blue_0")
    assert env.action_space("blue_0") is not env.action_space("blue_1")
    assert env.unwrapped is env
    assert env.max_num_agents == 10
    assert re.fullmatch(r"skirmish_v\d+", env.metadata["name"])
