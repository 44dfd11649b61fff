"""Robots stepped in one call: each as if it were alone, however many threads, and also after a break."""

import numpy as np
import pytest

from twostep import make_env
from twostep.errors import ConfigError, EnvError, StateError
from twostep.worlds.quadruped import Chance, QuadrupedConfig, QuadrupedEnv, QuadrupedRows

HARD = {"terrains": ("flat", "stairs", "gaps"), "num_levels": 3, "levels": (0, 2), "privileged": True}
SHORT = {"max_seconds": 0.6, "command_seconds": 0.2, "chance": {"push_seconds": 0.1, "bodies": 3}}


def actions_for(rows, steps, seed=0):
    return np.random.default_rng(seed).uniform(-1.2, 1.2, (steps, rows, 12)).astype(np.float32)


def record(env, actions):
    """Step through all actions, and keep everything that is said."""
    told = []
    for action in actions:
        step = env.step(action)
        obs = {name: values.copy() for name, values in step.obs.items()}
        final = {} if step.final_obs is None else {name: values.copy() for name, values in step.final_obs.items()}
        rows = [] if step.final_rows is None else list(step.final_rows)
        flags = (np.array(flag) for flag in (step.rewards, step.terminated, step.truncated, step.episode_starts))
        told.append((obs, *flags, rows, final, step.infos))
    return told


def assert_same(one, other):
    assert len(one) == len(other)
    for first, second in zip(one, other, strict=True):
        np.testing.assert_equal(first, second)


def test_rows_do_not_depend_on_threads_or_on_other_rows():
    """L9: rows are independent: one thread or three, alone or beside others, every number is the same."""
    actions = actions_for(5, 40)
    told = []
    for threads in (1, 3):
        env = QuadrupedRows(QuadrupedConfig.from_dict({**HARD, **SHORT, "threads": threads}), 5)
        env.reset(seed=7)
        told.append(record(env, actions))
        env.close()
    assert_same(*told)
    fewer = QuadrupedRows(QuadrupedConfig.from_dict({**HARD, **SHORT}), 2)
    fewer.reset(seed=7)  # the first rows of a seed are the same whatever the number of rows
    for (obs, rewards, *_), both in zip(record(fewer, actions[:, :2]), told[0], strict=True):
        np.testing.assert_equal(obs, {name: values[:2] for name, values in both[0].items()})
        np.testing.assert_equal(rewards, both[1][:2])


def test_rows_are_single_environments_side_by_side():
    """L8: `make_env` with workers, or with wrappers, steps the same robots one by one."""
    actions = actions_for(3, 40)
    rows = make_env("quadruped", num_envs=3, seed=5, **HARD, **SHORT)
    single = make_env(lambda: QuadrupedEnv(**HARD, **SHORT), num_envs=3, seed=5)
    np.testing.assert_equal(rows.reset().obs, single.reset().obs)
    for (obs, *ends), (other, *others) in zip(record(rows, actions), record(single, actions), strict=True):
        np.testing.assert_equal(obs, other)
        np.testing.assert_equal(ends[:4], others[:4])
    assert rows.observation_space == single.observation_space


def test_going_on_from_a_state_is_never_having_stopped():
    """LB9, L22: the state of all rows, taken in the middle of episodes, is taken up by new ones bit for bit."""
    actions = actions_for(4, 60)
    env = make_env("quadruped", num_envs=4, seed=1, **HARD, **SHORT)
    env.reset()
    env.assign({2: {"terrain": "gaps", "difficulty": 2}})
    record(env, actions[:25])
    state = env.state_dict()
    going_on = record(env, actions[25:])
    again = make_env("quadruped", num_envs=4, seed=99, **HARD, **SHORT)
    again.reset()
    again.assign({1: {"terrain": "gaps", "difficulty": 1}})
    again.load_state_dict(state)
    assert_same(going_on, record(again, actions[25:]))
    with pytest.raises(StateError, match="not of 2 robots"):
        make_env("quadruped", num_envs=2, **HARD, **SHORT).load_state_dict(state)
    with pytest.raises(StateError, match="Call reset first"):
        make_env("quadruped", num_envs=2).state_dict()


def test_time_outs_are_cuts_and_falls_are_ends():
    """LB6: an episode whose time is up is truncated, with its last observation; one that falls is terminated."""
    quiet = {"chance": {"phase": False, "bodies": 1, "push_speed": 0.0}, "max_seconds": 0.5}
    env = make_env("quadruped", num_envs=3, seed=0, **quiet)
    env.reset()
    for _ in range(24):
        step = env.step(np.zeros((3, 12)))
        assert not step.truncated.any()
        assert step.final_rows is None
    step = env.step(np.zeros((3, 12)))
    assert step.truncated.all()
    assert not step.terminated.any()
    assert step.episode_starts.all()
    assert not np.array_equal(step.final_obs["proprioception"], step.obs["proprioception"])
    env.world.physics.state[1, 4:8] = (0.0, 1.0, 0.0, 0.0)  # on its back
    step = env.step(np.zeros((3, 12)))
    assert step.terminated.tolist() == [False, True, False]
    assert step.infos[1]["fell"]
    assert step.infos[1]["reward_fall"] == -1.0


def test_episodes_of_the_first_reset_begin_in_the_middle_of_their_time():
    """L12: rows are out of step from the beginning on, so that not all episodes end together."""
    env = QuadrupedRows(QuadrupedConfig(), 32)
    env.reset(seed=0)
    assert len(set(env.world.step_count.tolist())) > 20
    together = QuadrupedRows(QuadrupedConfig(chance=Chance(phase=False)), 32)
    together.reset(seed=0)
    assert not together.world.step_count.any()


def test_who_reaches_the_edge_is_carried_back_to_the_middle():
    """The middle feels the same: the robot that was carried goes on as one that always stood there."""
    config = QuadrupedConfig(terrains=("stairs",), levels=(9, 9), chance=Chance.none())
    carried, stayed = QuadrupedRows(config, 1), QuadrupedRows(config, 1)
    carried.reset(seed=0), stayed.reset(seed=0)
    middle = carried.world.middle([0])[0]
    assert np.abs(carried.world.physics.state[0, 1:3] - middle).max() < 0.5
    carried.world.physics.state[0, 1] = middle[0] + 4.6
    for step in range(10):
        assert not carried.step(np.zeros((1, 12))).terminated.any(), step
        stayed.step(np.zeros((1, 12)))
    np.testing.assert_allclose(carried.world.physics.state[0, 1:3], middle, atol=0.1)
    np.testing.assert_allclose(carried.world.physics.state[0, 8:20], stayed.world.physics.state[0, 8:20], atol=0.02)


def test_a_curriculum_says_which_ground_comes_next():
    """L26: tasks of the terrain grid reach each row with its next episode; unknown ones are refused by name."""
    env = make_env("quadruped", num_envs=2, terrains=("flat", "stairs"), num_levels=4)
    env.assign({0: {"terrain": "stairs", "difficulty": 3}})
    env.reset(seed=0)
    assert (env.world.kind[0], env.world.level[0]) == (1, 3)
    for task, message in (
        ({"terrain": "lava", "difficulty": 0}, "is not built here"),
        ({"terrain": "flat", "difficulty": 4}, "from 0 to 3"),
        ({"difficulty": 4}, "must say 'terrain'"),
    ):
        with pytest.raises(EnvError, match=message):
            env.assign({0: task})
    with pytest.raises(EnvError, match="row 2"):
        env.assign({2: {"terrain": "flat", "difficulty": 0}})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"terrains": ("lava",)}, "terrains=.*one or more of flat"),
        ({"levels": (0, 10)}, "from 0 to 9"),
        ({"forward": (1.0, 0.0)}, "forward="),
        ({"rewards": {"velocty": 1.0}}, "Did you mean rewards.velocity"),
        ({"chance": {"bodies": 0}}, "from 1 to 256"),
        ({"standing": 2.0}, "between 0 and 1"),
        ({"seed": -1}, "0 or more"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        QuadrupedConfig.from_dict(settings)


def test_settings_of_settings_can_be_named_with_dots():
    config = QuadrupedConfig.from_dict({"chance.bodies": 2, "chance.phase": False, "rewards": {"fall": -2.0}})
    assert (config.chance.bodies, config.chance.phase, config.rewards.fall) == (2, False, -2.0)
    with pytest.raises(ConfigError, match=r"Did you mean chance\.bodies"):
        QuadrupedConfig.from_dict({"chance.bodie": 2})


def test_settings_survive_being_written():
    config = QuadrupedConfig.from_dict(HARD | SHORT)
    assert QuadrupedConfig.from_dict(config.to_dict()) == config


def test_actions_that_do_not_fit_are_refused():
    env = make_env("quadruped", num_envs=2)
    with pytest.raises(EnvError, match="before reset"):
        env.step(np.zeros((2, 12)))
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"shape \[2, 12\]"):
        env.step(np.zeros((2, 11)))
    with pytest.raises(EnvError, match="not finite"):
        env.step(np.full((2, 12), np.nan))
