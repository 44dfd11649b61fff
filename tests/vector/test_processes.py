"""VectorEnv against the same environments in this process, its two faces, and what it refuses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from twostep.errors import EnvError
from twostep.tree import tree_items
from twostep.vector import VectorEnv, make_group, row_seeds
from twostep.worlds.skirmish import EnvConfig

# Workers cannot import test modules.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEP_FIELDS = ("obs", "episode_starts", "rewards", "terminated", "truncated", "valid", "final_rows", "final_obs")


class Rich(gym.Env):
    """A tree of observations, actions of three kinds, masks, and infos, all drawn from its seed."""

    def __init__(self, number=0):
        self.number, self.level = number, 0
        self.observation_space = spaces.Dict(
            {
                "camera": spaces.Box(0, 255, (2, 3), np.uint8),
                "rest": spaces.Tuple([spaces.Discrete(9), spaces.Box(-9, 9, (), np.float64), spaces.MultiBinary(2)]),
            }
        )
        self.action_space = spaces.Dict({"choice": spaces.Discrete(3), "force": spaces.Box(-1, 1, (2,), np.float32)})
        self.force = np.zeros(2, dtype=np.float32)

    def action_masks(self):
        return {"choice": self.mask, "force": None}

    def _observe(self):
        self.mask = self.np_random.permutation(3) > 0
        number, flags = self.np_random.uniform(-9, 9) + float(self.force.sum()), self.np_random.integers(0, 2, 2)
        camera = self.np_random.integers(0, 255, (2, 3), dtype=np.uint8)
        return {
            "camera": camera,
            "rest": (int(self.np_random.integers(9)), np.clip(number, -9, 9), flags.astype(np.int8)),
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action):
        assert self.mask[action["choice"]]
        self.force = action["force"]
        ends = self.np_random.random() < 0.1, self.np_random.random() < 0.1
        return self._observe(), float(action["choice"]), *ends, {"level": self.level, "ends": ends}

    def set_level(self, level):
        self.level = level


def sample(env, generator, step):
    """Draw one allowed action per row."""
    if isinstance(env.action_space, spaces.Dict):
        masks = step.action_masks["choice"]
        choices = np.array([generator.choice(np.flatnonzero(mask)) for mask in masks])
        return {"choice": choices, "force": generator.uniform(-1, 1, (env.num_rows, 2)).astype(np.float32)}
    if isinstance(env.action_space, spaces.MultiDiscrete):
        return generator.integers(0, env.action_space.nvec, (env.num_rows, len(env.action_space.nvec)))
    if isinstance(env.action_space, spaces.Discrete):
        return generator.integers(0, env.action_space.n, env.num_rows)
    return generator.uniform(-1, 1, (env.num_rows, *env.action_space.shape)).astype(np.float32)


def told(error):
    """Return all that an error says, its notes included."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def same(found, expected, fields=STEP_FIELDS):
    """Refuse two steps that differ in a bit."""
    for name in (*fields, "action_masks"):
        pair = getattr(found, name), getattr(expected, name)
        leaves, others = (dict(tree_items(value)) for value in pair)
        assert leaves.keys() == others.keys(), name
        for path, leaf in leaves.items():
            assert leaf.dtype == others[path].dtype, f"{name} {path}"
            np.testing.assert_array_equal(leaf, others[path], err_msg=f"{name} {path}")
    assert found.infos == expected.infos


MADE_BY = {
    "cartpole": lambda: gym.make("CartPole-v1", max_episode_steps=20),
    "pendulum": lambda: gym.make("Pendulum-v1", max_episode_steps=7),
    "rich": Rich,
    "skirmish": EnvConfig(team=("light", "heavy"), max_seconds=8.0),
}


@pytest.mark.parametrize(
    ("kind", "num_workers", "start_method"),
    [
        ("cartpole", 1, "spawn"),
        ("cartpole", 2, "spawn"),
        ("cartpole", 5, "forkserver"),
        ("pendulum", 3, "forkserver"),
        ("rich", 2, "forkserver"),
        ("rich", 3, "forkserver"),
        ("skirmish", 2, "forkserver"),
    ],
)
def test_equals_the_same_environments_in_this_process_bit_for_bit(kind, num_workers, start_method):
    """A7, E17, L9: for any number of workers, with masks, trees, infos, resets of some and of all."""
    source, num_envs = MADE_BY[kind], 5
    group = make_group([source] * num_envs)
    with VectorEnv(num_envs, source, num_workers=num_workers, start_method=start_method) as env:
        assert (env.num_envs, env.num_rows, env.rows_per_env) == (num_envs, group.num_rows, group.rows_per_env)
        assert (env.agent_ids, env.possible_agents) == (group.agent_ids, group.possible_agents)
        assert (env.observation_space, env.action_space) == (group.observation_space, group.action_space)
        assert len(env.pids) == num_workers
        generator, ends = np.random.default_rng(1), 0
        step, expected = env.reset(7), group.reset(7)
        same(step, expected)
        for number in range(60):
            actions = sample(env, generator, step)
            step, expected = env.step(actions), group.step(actions)
            same(step, expected)
            ends += len(expected.infos)
            if number == 20:
                step, expected = env.reset([5, 6], [3, 1]), group.reset([5, 6], [3, 1])
                same(step, expected)
            if number == 30:
                step, expected = env.reset(), group.reset()
                same(step, expected)
            if number == 40:
                step, expected = env.reset(indices=[4]), group.reset(indices=[4])
                same(step, expected)
        assert ends > 3
        same(env.reset(seed=[9] * num_envs), group.reset(seed=[9] * num_envs))
    group.close()


def test_seeds_come_from_the_constructor_from_a_config_or_from_nowhere():
    """A7: and runs without a seed differ."""
    config = EnvConfig(team="light", seed=3)
    by_config = VectorEnv(2, config, num_workers=1, start_method="forkserver")
    by_seed = VectorEnv(2, EnvConfig(team="light"), num_workers=2, seed=3, start_method="forkserver")
    with by_config, by_seed:
        np.testing.assert_array_equal(by_config.reset().obs, by_seed.reset().obs)
        assert (by_config.reset().obs != by_seed.reset(4).obs).any()
    with VectorEnv(2, "CartPole-v1", num_workers=1) as env:
        first = env.reset().obs.copy()
        assert (first != env.reset().obs).any()
    with VectorEnv(2, "CartPole-v1", num_workers=1) as env:
        assert (first != env.reset().obs).any()


def test_each_way_to_say_what_environments_are_made_by():
    """A6, E18: functions of the main module, lambdas, configs, ids, lists."""
    limit = 17
    makers = [lambda number=number: gym.make("CartPole-v1", max_episode_steps=limit + number) for number in range(3)]
    with VectorEnv(3, makers, num_workers=2, start_method="forkserver") as env:
        assert [spec.max_episode_steps for spec in env.call("spec")] == [17, 18, 19]
    gym.register("Registered-v0", entry_point=Rich)
    with VectorEnv(2, "Registered-v0", num_workers=1, start_method="forkserver") as env:
        assert env.spec_name == "Rich"
    with VectorEnv(1, EnvConfig(team="light", record_replay=True), start_method="forkserver") as env:
        env.reset(1)
        assert env.call("get_replay")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, "CartPole-v1"), r"num_envs=0, but must be 1 or more"),
        ((2, [Rich]), r"1 environments were listed, but num_envs=2"),
        ((2, "CartPole-v9"), r"There is no environment 'CartPole-v9'. Did you mean CartPole-v1"),
        ((2, "no_such_module:Thing-v0"), r"There is no environment 'no_such_module:Thing-v0'"),
        ((2, 3), r"3 makes no environment in another process"),
    ],
)
def test_what_makes_no_environments_is_refused(arguments, message):
    with pytest.raises(EnvError, match=message):
        VectorEnv(*arguments)


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(EnvError, match=r"num_workers=3.*between 1 and num_envs=2"):
        VectorEnv(2, "CartPole-v1", num_workers=3)
    with pytest.raises(EnvError, match=r"step_timeout=0, but must be above 0"):
        VectorEnv(2, "CartPole-v1", step_timeout=0)
    with pytest.raises(EnvError, match=r"restarts=-1, but must be 0 or more"):
        VectorEnv(2, "CartPole-v1", restarts=-1)
    with pytest.raises(EnvError, match=r"start_method='fork', but must be 'spawn'.*'forkserver'"):
        VectorEnv(2, "CartPole-v1", start_method="fork")
    lock = threading.Lock()
    with pytest.raises(EnvError, match=r"cannot be sent to another process.*inside the function"):
        VectorEnv(2, lambda: lock)


@pytest.mark.parametrize(
    "actions",
    [
        np.zeros(2, dtype=np.int64),
        np.zeros(4, dtype=np.int64),
        np.zeros((3, 1), dtype=np.int64),
        np.zeros(3),
        [],
        [{}] * 2,
    ],
)
def test_actions_of_a_wrong_form_are_refused_before_anything_is_sent(cartpoles, actions):
    """EB8: too few actions never wait for a worker that was told nothing; the episode goes on as if nothing was."""
    cartpoles.reset(0)
    good = np.ones(3, dtype=np.int64)
    before = cartpoles.step(good).obs.copy()
    with pytest.raises(EnvError):
        cartpoles.step(actions)
    after = cartpoles.step(good).obs.copy()
    cartpoles.reset(0)
    np.testing.assert_array_equal(cartpoles.step(good).obs, before)
    np.testing.assert_array_equal(cartpoles.step(good).obs, after)


@pytest.fixture(scope="module")
def cartpoles():
    with VectorEnv(3, "CartPole-v1", num_workers=2, start_method="forkserver") as env:
        yield env


def test_calls_reach_the_environments_that_are_meant(cartpoles):
    assert cartpoles.call("get_wrapper_attr", "gravity") == [9.8] * 3
    assert cartpoles.call("set_wrapper_attr", "gravity", 1.5, indices=[2, 0]) == [True, True]
    assert cartpoles.call("gravity") == [1.5, 9.8, 1.5]
    assert cartpoles.call("gravity", indices=[1]) == [9.8]
    cartpoles.call("set_wrapper_attr", "gravity", 9.8)


def test_an_error_in_a_call_is_raised_here_and_breaks_nothing(cartpoles):
    cartpoles.reset(1)
    kind = AttributeError if sys.version_info >= (3, 11) else EnvError
    with pytest.raises(kind, match="no_such_thing") as caught:
        cartpoles.call("no_such_thing")
    assert re.search(
        r"Worker [01] \(env .*in a call of no_such_thing.*Traceback.*_attribute", told(caught.value), re.DOTALL
    )
    assert cartpoles.step(np.zeros(3, dtype=np.int64)).rewards.tolist() == [1, 1, 1]
    assert cartpoles.failures == 0


def test_order_of_calls_is_kept(cartpoles):
    with pytest.raises(EnvError, match=r"indices=\[0, 3\].*3 environments"):
        cartpoles.reset(indices=[0, 3])
    with pytest.raises(EnvError, match="2 seeds came for 3"):
        cartpoles.reset([1, 2])
    with VectorEnv(1, "CartPole-v1") as env:
        with pytest.raises(EnvError, match="step was called before reset"):
            env.step(np.zeros(1, dtype=np.int64))
        with pytest.raises(EnvError, match="reset was called with indices before"):
            env.reset(indices=[0])
    with pytest.raises(EnvError, match="closed"):
        env.reset()
    env.close()


def test_num_envs_1_is_enough_for_a_test():
    """E20."""
    with VectorEnv(num_envs=1, env_cfg=EnvConfig(team="light")) as env:
        (seen,), _ = env.reset(seeds=[0])
        assert list(seen) == ["blue_0"]


def test_workers_never_load_torch_nor_the_main_module(tmp_path):
    """A6: no `if __name__` is needed, and what the main module imports is not imported again."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, torch, gymnasium as gym\n"
        "from twostep.vector import VectorEnv\n"
        "print('main runs', flush=True)\n"
        "class Mine(gym.Wrapper):\n"
        "    def modules(self): return sorted(sys.modules)\n"
        "for method in ('spawn', 'forkserver'):\n"
        "    with VectorEnv(2, lambda: Mine(gym.make('CartPole-v1')), start_method=method) as env:\n"
        "        env.reset(0)\n"
        "        assert not any('torch' in names for names in env.call('modules'))\n"
        "        assert all('gymnasium' in names for names in env.call('modules'))\n"
        "print('done')\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split("\n")[:2], done.stderr) == (["main runs", "done"], "")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_neither_uses_nor_ends_the_workers(cartpoles):
    """A4: a data loader that forks this process inherits the object, but not the workers."""
    cartpoles.reset(2)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            cartpoles.step(np.zeros(3, dtype=np.int64))
        except EnvError:
            cartpoles.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert cartpoles.step(np.zeros(3, dtype=np.int64)).valid is None
    assert cartpoles.failures == 0


class Crossing(gym.Env):
    """Sleeps where it is told to, so that Ctrl-C can come in the middle of a step."""

    observation_space = spaces.Box(0, 1e6, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        time.sleep(0.3 * action)
        self.t += 1
        return np.array([self.t], dtype=np.float32), 0.0, False, False, {}


def test_ctrl_c_in_the_middle_of_a_step_confuses_nobody():
    """A15: the late answer is not taken for the next one's."""
    with VectorEnv(2, Crossing, num_workers=2, start_method="forkserver") as env:
        env.reset(0)
        pids = env.pids
        threading.Timer(0.1, lambda: signal.raise_signal(signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            env.step(np.array([0, 1]))
        with pytest.raises(EnvError, match=r"after an error\. Call reset first"):
            env.step(np.array([0, 0]))
        assert env.reset(0).obs.tolist() == [[0], [0]]
        assert env.step(np.array([0, 0])).obs.tolist() == [[1], [1]]
        assert env.pids == pids


def test_row_seeds_are_those_of_every_other_vector():
    class Telling(Crossing):
        def reset(self, *, seed=None, options=None):
            self.seen = seed
            return super().reset()

    with VectorEnv(3, Telling, num_workers=2, start_method="forkserver") as env:
        env.reset(11)
        assert env.call("seen") == row_seeds(11, 3)
        env.reset([4, 5], [2, 0])
        assert env.call("seen") == [5, row_seeds(11, 3)[1], 4]


class Telling(Crossing):
    def surroundings(self):
        return os.getcwd(), os.environ["OMP_NUM_THREADS"], os.getpid() == os.getsid(0)


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_workers_share_no_more_than_they_should(start_method, monkeypatch, tmp_path):
    """A6: one thread each unless the user says otherwise, no terminal, the place where the object was made."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    home = os.getcwd()
    with VectorEnv(1, Telling, start_method=start_method, restarts=1) as env:
        assert env.call("surroundings") == [(home, "1", True)]
        env.reset(0)
        monkeypatch.chdir(tmp_path)
        os.kill(env.pids[0], signal.SIGKILL)
        env.step(np.zeros(1, dtype=np.int64))
        assert env.call("surroundings") == [(home, "1", True)]


def test_shared_memory_has_no_name():
    """A4: nothing lies in /dev/shm, not even while it is used."""
    before = set(os.listdir("/dev/shm"))
    with VectorEnv(2, "CartPole-v1", num_workers=1) as env:
        env.reset(0)
        assert set(os.listdir("/dev/shm")) == before
