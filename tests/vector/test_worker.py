"""The protocol of a worker, frame by frame, with a worker that runs in a thread of this process."""

from __future__ import annotations

import os
import socket
import threading
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from twostep.errors import EnvError
from twostep.vector.channels import Channel, packed_for_worker, unpacked
from twostep.vector.places import count_envs_from
from twostep.vector.shared import SharedRows, bytes_needed, mapped, nameless_file
from twostep.vector.worker import (
    ABSENT,
    CALL,
    CLOSE,
    DONE,
    ENDED,
    MAKE,
    MASKED,
    MEMORY,
    RAISED,
    RESET,
    STEP,
    Made,
    Setup,
    Trouble,
    Worker,
)
from twostep.worlds.skirmish import EnvConfig


class Masked(gym.Env):
    """Ends at action 2; even steps forbid action 1."""

    observation_space = spaces.Tuple([spaces.Box(0, 99, (1,), np.float32), spaces.Discrete(2)])
    action_space = spaces.Discrete(4)
    closed = 0

    def reset(self, *, seed=None, options=None):
        self.t, self.seed = 0, seed
        return self._look()

    def _look(self):
        obs = np.array([self.t], dtype=np.float32), self.t % 2
        return obs, {"action_mask": np.array([True, self.t % 2 == 1, True, True]), "t": self.t}

    def step(self, action):
        if action == 3:
            raise ZeroDivisionError("fell off")
        self.t += 1
        obs, info = self._look()
        return obs, float(action), action == 2, False, info

    def close(self):
        Masked.closed += 1


class Parent:
    """The other end."""

    def __init__(self):
        ours, theirs = socket.socketpair()
        self.memory = nameless_file()
        self.channel, self.theirs = Channel(ours), Channel(theirs)
        self.thread = threading.Thread(target=Worker(self.theirs, self.memory).run)
        self.thread.start()

    def ask(self, kind, message=None):
        packed = None if message is None else packed_for_worker(message, "A message")
        self.channel.send(kind, packed, time.monotonic() + 20)
        kind, answer = self.channel.receive(time.monotonic() + 20)
        return kind, unpacked(answer) if answer else None

    def share(self, made, num_envs, first_env):
        """Make room for all rows, of which the worker has the last ones."""
        num_rows = num_envs * made.rows_per_env
        size = bytes_needed(made.observation_space, made.action_space, num_rows)
        os.ftruncate(self.memory, size)
        assert self.ask(MEMORY, (num_rows, first_env * made.rows_per_env)) == (DONE, None)
        return SharedRows.over(mapped(self.memory), made.observation_space, made.action_space, num_rows)

    def close(self):
        self.channel.send(CLOSE)
        self.thread.join(20)
        self.channel.close()
        self.theirs.close()
        os.close(self.memory)


@pytest.fixture
def parent():
    parent = Parent()
    yield parent
    parent.close()
    count_envs_from(0)


def test_a_worker_s_whole_life(parent):
    """E16: make, memory, reset, step, call, close; what is found lies in its own rows of shared memory."""
    Masked.closed = 0
    kind, made = parent.ask(MAKE, Setup([Masked, Masked], 1, None, None, check=False))
    assert kind == DONE
    assert made == Made(Masked.observation_space, Masked.action_space, 1, (), (), True, "Masked")
    rows = parent.share(made, num_envs=3, first_env=1)
    rows.obs[0][...] = 77
    assert parent.ask(RESET, ([5, 6], None, {})) == (MASKED, None)
    assert rows.episode_starts.tolist() == [False, True, True]
    assert rows.masks[1:].tolist() == [[True, False, True, True]] * 2
    rows.actions[...] = [3, 0, 2]
    assert parent.ask(STEP) == (MASKED | ENDED, {1: {"action_mask": pytest.approx([1, 1, 1, 1]), "t": 1}})
    assert (rows.obs[0].ravel().tolist(), rows.obs[1].tolist()) == ([77, 1, 0], [0, 1, 0])
    assert rows.final_obs[0].ravel().tolist() == [0, 0, 1]
    flags = (rows.terminated, rows.truncated, rows.valid, rows.episode_starts, rows.final)
    assert [flag[1:].tolist() for flag in flags] == [
        [False, True],
        [False] * 2,
        [True] * 2,
        [False, True],
        [False, True],
    ]
    assert rows.rewards[1:].tolist() == [0, 2]
    assert parent.ask(CALL, ("seed", (), [1, 0])) == (DONE, [None, 5])
    assert parent.ask(RESET, ([9], [0], {})) == (MASKED, None)
    assert rows.episode_starts[1:].tolist() == [True, False]
    assert parent.ask(CALL, ("seed", (), None)) == (DONE, [9, None])


def test_closing_closes_the_environments():
    """E16, E19."""
    Masked.closed = 0
    parent = Parent()
    parent.ask(MAKE, Setup([Masked, Masked], 0, None, None, check=False))
    parent.close()
    assert Masked.closed == 2
    assert not parent.thread.is_alive()


def test_a_worker_that_made_nothing_closes_too():
    """E16, EB8."""
    parent = Parent()
    parent.close()
    assert not parent.thread.is_alive()


def test_what_is_raised_comes_with_place_and_traceback(parent):
    """E16, EB8: environments are numbered as the parent numbers them; the worker lives on to be told what is next."""
    _, made = parent.ask(MAKE, Setup([Masked, Masked], 4, None, None, check=False))
    rows = parent.share(made, num_envs=6, first_env=4)
    parent.ask(RESET, ([7, 8], None, {}))
    rows.actions[...] = [0, 0, 0, 0, 0, 3]
    kind, trouble = parent.ask(STEP)
    assert kind == RAISED
    assert isinstance(trouble, Trouble)
    assert isinstance(unpacked(trouble.error), (ZeroDivisionError, EnvError))
    assert trouble.summary.startswith(("ZeroDivisionError: fell off", "twostep.errors.EnvError: env 5"))
    assert "env 5 (seed 8), episode 1, step 1 of it, in step(3)" in trouble.traceback
    assert rows.working_on[4] == 1
    kind, trouble = parent.ask(CALL, ("nowhere", (), None))
    assert (kind, type(trouble)) == (DONE, Trouble)
    assert "nowhere" in trouble.summary
    assert parent.ask(STEP + 100)[0] == RAISED


def test_rows_of_many_agents_say_who_is_absent(parent):
    """E16: a config that can make many matches as one is asked to, once for all its environments."""
    config = EnvConfig(team=("light", "heavy"))
    _, made = parent.ask(MAKE, Setup([config, config], 0, None, None, check=True))
    assert (made.rows_per_env, made.agent_ids, made.name) == (2, ("blue_0", "blue_1"), "SkirmishRows")
    rows = parent.share(made, num_envs=2, first_env=0)
    assert parent.ask(RESET, ([1, 2], None, {}))[0] == DONE
    assert parent.ask(STEP)[0] == ABSENT
    assert rows.valid.all()
    assert rows.working_on[0] == -1
