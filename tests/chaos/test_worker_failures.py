"""Workers that die, hang or raise, in small numbers; `make chaos` runs the same in thousands."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import time

import numpy as np
import pytest
from scenarios import Failing, Stamped, Verifier, crashes, hangs, is_there, kills, makers

from twostep.errors import EnvError
from twostep.vector import VectorEnv
from twostep.worlds.skirmish import EnvConfig


def is_gone(pid):
    """Whether a process has ended, or does so within a second."""
    until = time.monotonic() + 1
    while is_there(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not is_there(pid)


def told(error):
    """Return all that an error says, its notes included."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


@pytest.mark.parametrize(("start_method", "count", "pause"), [("forkserver", 30, 0.03), ("spawn", 4, 0.5)])
def test_killed_workers_cost_their_episodes_and_nothing_else(start_method, count, pause):
    """A1, E19: every stored transition is a real one, none is glued to the next episode, the count is exact."""
    figures = kills(count, num_workers=3, num_envs=6, start_method=start_method, pause=pause)
    assert figures["workers lost"] >= count
    assert figures["transitions verified"] > 100


def test_a_stopped_worker_is_noticed_within_twice_the_deadline():
    """A2, EB8: nothing waits for ever for one that does not answer."""
    assert hangs(2, step_timeout=1.5, num_workers=2)["longest until replaced, seconds"] < 3.0


@pytest.mark.parametrize("way", ["segfault", "exit", "memory", "error", "sys.exit"])
def test_each_way_to_fail_is_survived(way):
    """A2, E19."""
    assert crashes(way, 3)["workers lost"] == 3


@pytest.mark.parametrize(
    ("way", "kind", "message"),
    [
        ("error", ArithmeticError, "wheel lost"),
        ("memory", MemoryError, "no room for the map"),
        ("odd error", EnvError, "stuck at the ford, 3 m deep"),
        ("sys.exit", EnvError, "SystemExit: 3"),
        ("interrupt", EnvError, "KeyboardInterrupt"),
        ("generator exit", EnvError, "GeneratorExit"),
        ("late exit", EnvError, "exited with code 7 in step"),
        ("hang up", EnvError, "closed its connection and was ended in step"),
        ("exit", EnvError, "exited with code 0 in step"),
        ("segfault", EnvError, "was killed by SIGSEGV in step"),
        ("abort", EnvError, "was killed by SIGABRT in step"),
    ],
)
def test_without_restarts_the_first_failure_is_raised_with_its_place_and_traceback(way, kind, message):
    """A2, EB8: env, seed, episode, step, action and the worker's own traceback, never a bare EOFError."""
    envs = [lambda number=number: Failing(number, way) for number in range(4)]
    with VectorEnv(4, envs, num_workers=2, start_method="forkserver", check=False) as env:
        env.reset([10, 11, 12, 13])
        env.step(np.zeros(4, dtype=np.int64))
        with pytest.raises(kind if sys.version_info >= (3, 11) else EnvError, match=message) as caught:
            env.step(np.array([0, 0, 0, 3]))
        words = told(caught.value)
        assert "env 3 (seed 13), episode 1, step 2 of it, in step(3)" in words
        assert "memory runs out" not in words
        assert "Worker 1 (env 2 to env 3)" in words
        assert ("scenarios.py" in words) == (way not in ("exit", "late exit", "hang up")), (
            "its own traceback, where it could leave one"
        )
        assert "restarts=5" in words
        assert env.failures == 1
        with pytest.raises(EnvError, match="Call reset first"):
            env.step(np.zeros(4, dtype=np.int64))
        assert env.reset([10, 11, 12, 13]).episode_starts.all(), "a reset starts the lost worker anew"
        assert env.step(np.zeros(4, dtype=np.int64)).valid is None


def test_a_hanging_step_says_where_it_hangs():
    """A2: also the Python line, because the worker is asked before it is ended."""
    with VectorEnv(2, [lambda: Failing(0, "sleep")] * 2, num_workers=1, step_timeout=0.5, check=False) as env:
        env.reset([5, 6])
        with pytest.raises(EnvError, match=r"did not answer within 0\.5 s") as caught:
            env.step(np.array([0, 3]))
        assert "env 1 (seed 6), episode 1, step 1 of it, in step(3)" in str(caught.value)
        assert re.search(r'scenarios.py", line \d+ in step', str(caught.value))


class NeverBegins(Stamped):
    def reset(self, *, seed=None, options=None):
        raise RuntimeError("no track.")


class NeverSteps(Stamped):
    def step(self, action):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_an_environment_that_always_fails_on_reset_stops_after_k_failures(start_method, caplog):
    """A3: with one clear error, within 10 s, and one warning for each time."""
    began = time.monotonic()
    settings = {"start_method": start_method, "restarts": 5, "check": False}
    with VectorEnv(2, makers(2, NeverBegins), num_workers=1, **settings) as env:
        with pytest.raises(RuntimeError if sys.version_info >= (3, 11) else EnvError, match="no track") as caught:
            env.reset(0)
        assert env.failures == 6
        assert "failure 6 in a row, with restarts=5" in told(caught.value)
    assert time.monotonic() - began < 10
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 5
    assert ["Traceback" in words for words in warnings] == [True, False, False, False, False]
    assert not any(".." in words for words in warnings)


def test_failures_in_a_row_are_counted_until_a_step_succeeds():
    """A3: one that dies in every first step never gets anywhere, though each of its resets succeeds."""
    with VectorEnv(1, makers(1, NeverSteps), restarts=3, start_method="forkserver", check=False) as env:
        env.reset(0)
        assert [env.step(np.zeros(1, dtype=np.int64)).valid.tolist() for _ in range(3)] == [[False]] * 3
        with pytest.raises(EnvError, match=r"SIGKILL.*memory runs out.*failure 4 in a row"):
            env.step(np.zeros(1, dtype=np.int64))
        assert env.failures == 4


def test_new_episodes_after_a_failure_follow_from_the_seed():
    """A1, A7: two runs with the same seed and the same failure are the same."""

    def run():
        with VectorEnv(2, makers(2), num_workers=2, restarts=1, start_method="forkserver") as env:
            env.reset(3)
            shown = []
            for number in range(30):
                if number == 7:
                    os.kill(env.pids[1], signal.SIGKILL)
                shown.append(env.step(np.array([0, 1])).obs.copy())
            return np.stack(shown)

    first = run()
    np.testing.assert_array_equal(first, run())
    assert len(np.unique(first[:, 1, 1])) > 2


class Told(Stamped):
    def __init__(self, number):
        super().__init__(number)
        self.level = 0

    def set_level(self, level):
        self.level = level


def test_what_environments_were_told_is_told_again_to_those_that_replace_them():
    """A1: a curriculum's task survives the process that it was set in."""
    with VectorEnv(4, makers(4, Told), num_workers=2, restarts=1, start_method="forkserver") as env:
        env.reset(0)
        env.call("set_level", 1)
        env.call("set_level", 2, indices=[3])
        os.kill(env.pids[1], signal.SIGKILL)
        env.step(np.zeros(4, dtype=np.int64))
        assert env.call("level") == [1, 1, 1, 2]


def test_a_death_between_steps_is_found_by_a_call_and_told_by_the_next_step():
    """A1: rows whose observation has changed under the policy are never taken for a transition."""
    with VectorEnv(4, makers(4), num_workers=2, restarts=1, start_method="forkserver") as env:
        verifier, obs = Verifier(4), env.reset(0).obs.copy()
        os.kill(env.pids[0], signal.SIGKILL)
        assert env.call("number") == [0, 1, 2, 3]
        step = env.step(np.zeros(4, dtype=np.int64))
        assert step.valid.tolist() == [False, False, True, True]
        assert step.truncated.tolist() == [True, True, False, False]
        names = ("terminated", "truncated", "episode_starts", "rewards", "valid")
        verifier.transition(obs, np.zeros(4), {name: getattr(step, name) for name in names}, step.obs, {})
        assert env.step(np.zeros(4, dtype=np.int64)).valid is None


def test_the_nursery_may_die_too():
    """A1: workers go on, and the next one that must be replaced has a new nursery."""
    with VectorEnv(2, makers(2), num_workers=2, restarts=1, start_method="forkserver") as env:
        env.reset(0)
        nursery = env._crew._launcher._home._process
        nursery.kill()
        nursery.wait()
        assert env.step(np.zeros(2, dtype=np.int64)).valid is None
        os.kill(env.pids[0], signal.SIGKILL)
        assert env.step(np.zeros(2, dtype=np.int64)).valid.tolist() == [False, True]
        os.kill(env.pids[1], signal.SIGKILL)
        assert env.step(np.zeros(2, dtype=np.int64)).valid.tolist() == [True, False]


class Forking(Stamped):
    """Has a child that holds on to everything it has inherited."""

    def reset(self, *, seed=None, options=None):
        if not hasattr(self, "child"):
            self.child = os.fork()
            if self.child == 0:
                time.sleep(1000)
        return super().reset(seed=seed)


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_worker_dies_with_its_own_children_and_is_missed_at_once(start_method):
    """A2, A4: although they still hold its end of the socket."""
    with VectorEnv(1, makers(1, Forking), restarts=1, start_method=start_method, check=False) as env:
        env.reset(0)
        (child,) = env.call("child")
        os.kill(env.pids[0], signal.SIGKILL)
        began = time.monotonic()
        assert env.step(np.zeros(1, dtype=np.int64)).valid.tolist() == [False]
        assert time.monotonic() - began < 5
        (other,) = env.call("child")
        assert is_gone(child)
        assert is_there(other)
    assert is_gone(other)


class Unmakeable(Stamped):
    def __init__(self, number):
        raise FileNotFoundError(f"no map {number}")


def test_environments_that_cannot_be_made_are_one_error_and_leave_nothing():
    """A3, A4: whatever restarts says, because what never worked will not work the next time."""
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError if sys.version_info >= (3, 11) else EnvError, match="no map 0") as caught:
        VectorEnv(2, makers(2, Unmakeable), num_workers=2, restarts=9)
    assert "in __init__" in told(caught.value)
    del caught
    assert len(os.listdir("/proc/self/fd")) == len(before)


class Fussy(Told):
    """Takes a level in its first process only."""

    def __init__(self, number, path):
        super().__init__(number)
        self.path = path

    def set_level(self, level):
        if self.path.exists():
            raise LookupError("the level is gone")
        self.path.touch()


def test_a_call_that_cannot_be_repeated_is_a_failure_and_not_forgotten(tmp_path):
    """A1: an environment that plays another task than it was told would spoil what is learned."""
    with VectorEnv(1, lambda: Fussy(0, tmp_path / "level"), restarts=2, start_method="forkserver") as env:
        env.reset(0)
        env.call("set_level", 1)
        os.kill(env.pids[0], signal.SIGKILL)
        with pytest.raises(LookupError if sys.version_info >= (3, 11) else EnvError, match="the level is gone"):
            env.step(np.zeros(1, dtype=np.int64))


def test_many_hanging_workers_are_noticed_together():
    """A2: the deadline is one for all, however many there are."""
    with VectorEnv(6, makers(6), num_workers=6, restarts=1, start_method="forkserver", step_timeout=1.0) as env:
        env.reset(0)
        for pid in env.pids:
            os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        assert not env.step(np.zeros(6, dtype=np.int64)).valid.any()
        assert time.monotonic() - began < 4.0


def test_the_log_of_a_failure_holds_the_worker_s_traceback(caplog):
    """A2: a run that goes on must not hide what is wrong with its environments."""
    with VectorEnv(1, lambda: Failing(0, "error"), restarts=1, start_method="forkserver", check=False) as env:
        env.reset(0)
        env.step(np.array([3]))
    (record,) = caplog.records
    assert re.search(r"wheel lost.*scenarios\.py", record.getMessage(), re.DOTALL)


def test_all_agents_of_all_environments_of_a_lost_worker_are_broken_off():
    """A1, E18: also those that had ended before; the match that goes on elsewhere goes on."""
    config = EnvConfig(team=("light", "heavy"))
    with VectorEnv(3, config, num_workers=2, restarts=1, start_method="forkserver") as env:
        assert env.num_rows == 6
        env.reset(0)
        idle = np.zeros((6, *env.action_space.shape), dtype=env.action_space.dtype)
        env.step(idle)
        os.kill(env.pids[1], signal.SIGKILL)
        step = env.step(idle)
        assert step.valid.tolist() == [True] * 2 + [False] * 4
        assert step.truncated.tolist() == step.episode_starts.tolist() == [False] * 2 + [True] * 4
        assert not step.terminated.any()
        assert step.final_rows is None
        assert not step.infos
        assert env.step(idle).valid.all()
