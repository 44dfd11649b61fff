"""Ways to hurt `VectorEnv`, each with a size: small in tests, full in `benchmarks/chaos.py`.

Each returns figures; what must hold is asserted on the way.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
import uuid
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from twostep.vector import VectorEnv

MOST = 1 << 24
"""Observations are float32, which holds whole numbers up to here exactly."""


def digest(*numbers: int) -> int:
    return zlib.crc32(repr([int(number) for number in numbers]).encode()) % MOST


class Stamped(gym.Env):
    """Its observation proves where it comes from: environment, episode, step, all actions so far, and a checksum."""

    observation_space = spaces.Box(0, MOST, (5,), np.float32)
    action_space = spaces.Discrete(4)

    def __init__(self, number: int) -> None:
        self.number = number

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = int(self.np_random.integers(MOST)), 0
        self.length = int(self.np_random.integers(5, 40))
        self.history = digest(self.number, self.episode)
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        stamp = self.number, self.episode, self.t, self.history
        return np.array([*stamp, digest(*stamp)], dtype=np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.history = digest(self.history, action)
        over = self.t >= self.length
        return self.observe(), float(self.t), over and self.t % 2 == 0, over and self.t % 2 == 1, {"t": self.t}


class Verifier:
    """Checks that stored transitions are real ones, in one chain from the first observation to the last."""

    def __init__(self, num_envs: int) -> None:
        self.num_valid = self.num_broken = self.num_episodes = 0
        self._numbers = np.arange(num_envs)

    def observation(self, obs: np.ndarray) -> list[tuple[int, ...]]:
        stamps = [tuple(row) for row in np.asarray(obs, dtype=np.int64).tolist()]
        for number, stamp in zip(self._numbers, stamps, strict=True):
            assert stamp[0] == number, f"row {number} shows {stamp}"
            assert stamp[4] == digest(*stamp[:4]), f"row {number}: torn or stale observation {stamp}"
        return stamps

    def transition(
        self, obs: Any, actions: Any, flags: dict[str, np.ndarray], next_obs: Any, finals: dict[int, Any]
    ) -> None:
        before, after = self.observation(obs), self.observation(next_obs)
        for row, (number, episode, t, history, _) in enumerate(before):
            ended = flags["terminated"][row] or flags["truncated"][row]
            assert bool(flags["episode_starts"][row]) == bool(ended), (
                "an episode starts where one ends, and nowhere else"
            )
            if not flags["valid"][row]:
                assert flags["truncated"][row]
                assert not flags["terminated"][row]
                assert flags["rewards"][row] == 0
                assert row not in finals
                self.num_broken += 1
            else:
                led_to = number, episode, t + 1, digest(history, int(actions[row]))
                assert flags["rewards"][row] == t + 1
                reached = tuple(np.asarray(finals[row], dtype=np.int64).tolist()) if ended else after[row]
                assert reached == (*led_to, digest(*led_to)), f"{before[row]} led to {reached}, not to {led_to}"
                self.num_valid += 1
                self.num_episodes += bool(ended)
            if ended:
                assert after[row][1:3] == (after[row][1], 0)
                assert after[row][1] != episode, "a new episode, not the old one again"


class Killer(threading.Thread):
    """Sends a signal to a random worker at random times, until it is told to stop."""

    def __init__(self, env: VectorEnv, number: int, mean_pause: float, seed: int = 0) -> None:
        super().__init__(daemon=True)
        self.num_sent = 0
        self._env, self._number, self._pause = env, number, mean_pause
        self._random, self._stopped = random.Random(seed), threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(self._random.uniform(0, 2 * self._pause)):
            pid = self._random.choice(self._env.pids)
            if pid is not None:
                try:
                    os.kill(pid, self._number)
                except ProcessLookupError:
                    continue
                self.num_sent += 1

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def makers(num_envs: int, kind: Any = Stamped) -> list[Any]:
    return [lambda number=number: kind(number) for number in range(num_envs)]


def kills(
    count: int, num_envs: int = 8, num_workers: int = 4, start_method: str = "forkserver", pause: float = 0.05
) -> dict[str, Any]:
    """A1: one run, in which so many workers are lost to SIGKILL at random times; every transition is verified."""
    env = VectorEnv(
        num_envs,
        makers(num_envs),
        num_workers=num_workers,
        seed=1,
        restarts=100,
        start_method=start_method,
        step_timeout=60,
    )
    verifier, generator, steps, longest = Verifier(num_envs), np.random.default_rng(0), 0, 0.0
    obs = env.reset().obs.copy()
    killer = Killer(env, signal.SIGKILL, pause)
    killer.start()
    began = time.monotonic()
    while env.failures < count or verifier.num_valid <= 100:
        actions = generator.integers(0, 4, num_envs)
        before = time.monotonic()
        step = env.step(actions)
        longest = max(longest, time.monotonic() - before)
        steps += 1
        names = ("terminated", "truncated", "episode_starts", "rewards")
        flags = {name: getattr(step, name) for name in names}
        flags["valid"] = np.ones(num_envs, dtype=bool) if step.valid is None else step.valid
        finals = {} if step.final_rows is None else dict(zip(step.final_rows.tolist(), step.final_obs, strict=True))
        verifier.transition(obs, actions, flags, step.obs, finals)
        obs = step.obs.copy()
    seconds = time.monotonic() - began
    killer.stop()
    env.close()
    assert verifier.num_valid + verifier.num_broken == steps * num_envs
    assert verifier.num_broken >= num_envs // num_workers
    return {
        "workers lost": env.failures,
        "SIGKILLs sent": killer.num_sent,
        "transitions verified": verifier.num_valid,
        "rows broken off": verifier.num_broken,
        "episodes": verifier.num_episodes,
        "seconds": round(seconds, 1),
        "mean seconds between losses": round(seconds / env.failures, 4),
        "longest step, seconds": round(longest, 2),
    }


def hangs(count: int, step_timeout: float, num_workers: int = 4) -> dict[str, Any]:
    """A2: so many workers are stopped by SIGSTOP, one at a time; each is noticed within twice the deadline."""
    env = VectorEnv(
        num_workers,
        makers(num_workers),
        num_workers=num_workers,
        restarts=1,
        start_method="forkserver",
        step_timeout=step_timeout,
    )
    env.reset(0)
    generator, longest = random.Random(0), 0.0
    for number in range(count):
        pid = generator.choice(env.pids)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        step = env.step(np.zeros(num_workers, dtype=np.int64))
        longest = max(longest, time.monotonic() - began)
        assert env.failures == number + 1
        assert (~step.valid).sum() == 1
        assert not is_there(pid)
        env.step(np.zeros(num_workers, dtype=np.int64))
    env.close()
    assert longest < 2 * step_timeout
    return {
        "workers stopped": count,
        "deadline, seconds": step_timeout,
        "longest until replaced, seconds": round(longest, 2),
    }


class Failing(Stamped):
    """Fails in its own way in the step in which it is given action 3; fails in reset where told to."""

    def __init__(self, number: int, way: str) -> None:
        super().__init__(number)
        self.way = way

    def step(self, action: int) -> Any:
        if action == 3:
            WAYS[self.way]()
        return super().step(action)


class Unrebuildable(Exception):  # noqa: N818
    """Takes other arguments than it keeps."""

    def __init__(self, place: str, depth: int) -> None:
        super().__init__(f"stuck at {place}, {depth} m deep")


def _raise(error: BaseException) -> None:
    raise error


def _hang_up() -> None:
    for descriptor in range(3, 64):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.close(descriptor)


WAYS: dict[str, Any] = {
    "segfault": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(0),
    "memory": lambda: _raise(MemoryError("no room for the map")),
    "error": lambda: _raise(ArithmeticError("wheel lost")),
    "odd error": lambda: _raise(Unrebuildable("the ford", 3)),
    "sys.exit": lambda: sys.exit(3),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "generator exit": lambda: _raise(GeneratorExit()),
    "late exit": lambda: (_hang_up(), time.sleep(0.2), os._exit(7)),
    "hang up": lambda: (_hang_up(), time.sleep(1000)),
    "abort": lambda: os.abort(),
    "sleep": lambda: time.sleep(1000),
}


def crashes(way: str, count: int, num_envs: int = 4, num_workers: int = 2, **settings: Any) -> dict[str, Any]:
    """A2: so many failures of one kind, each broken off and replaced, with nothing lost elsewhere."""
    kinds = [lambda number=number: Failing(number, way) for number in range(num_envs)]
    env = VectorEnv(
        num_envs, kinds, num_workers=num_workers, restarts=1, start_method="forkserver", check=False, **settings
    )
    verifier, generator = Verifier(num_envs), np.random.default_rng(0)
    obs = env.reset(0).obs.copy()
    for number in range(count):
        for fails in (False, True):
            actions = generator.integers(0, 3, num_envs)
            if fails:
                actions[generator.integers(num_envs)] = 3
            step = env.step(actions)
            names = ("terminated", "truncated", "episode_starts", "rewards")
            flags = {name: getattr(step, name) for name in names}
            flags["valid"] = np.ones(num_envs, dtype=bool) if step.valid is None else step.valid
            finals = {} if step.final_rows is None else dict(zip(step.final_rows.tolist(), step.final_obs, strict=True))
            verifier.transition(obs, actions, flags, step.obs, finals)
            obs = step.obs.copy()
            assert env.failures == number + fails
    env.close()
    assert verifier.num_broken == count * num_envs // num_workers
    return {"workers lost": count, "transitions verified": verifier.num_valid}


PARENT = """
    import sys, time
    sys.path.insert(0, {folder!r})
    import numpy as np
    from scenarios import Failing, makers
    from twostep.vector import VectorEnv
    env = VectorEnv(4, [lambda: Failing(0, "sleep")] * 4, num_workers=2, start_method={method!r}, check=False)
    env.reset(0)
    for _ in range(20):
        env.step(np.zeros(4, dtype=np.int64))
    print(*env.pids, flush=True)
    env.step(np.full(4, {action}))
    time.sleep(1000)
"""


def orphans(count: int, start_method: str, mid_step: bool) -> dict[str, Any]:
    """A4: the parent is killed so many times, between steps or in the middle of one; nothing of it is left."""
    before = set(os.listdir("/dev/shm"))
    longest, most_left = 0.0, 0
    for _ in range(count):
        marker = f"chaos-{uuid.uuid4()}"
        program = textwrap.dedent(PARENT).format(
            folder=str(Path(__file__).parent), method=start_method, action=3 if mid_step else 0
        )
        parent = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CHAOS_MARKER": marker},
        )
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        time.sleep(0.05)
        assert len(_marked(marker)) >= 3
        parent.kill()
        parent.wait()
        parent.stdout.close()
        began = time.monotonic()
        while _marked(marker) and time.monotonic() - began < 5:
            time.sleep(0.005)
        longest, most_left = max(longest, time.monotonic() - began), max(most_left, len(_marked(marker)))
    segments = set(os.listdir("/dev/shm")) - before
    assert not segments
    assert most_left == 0
    return {
        "parents killed": count,
        "processes left after 5 s": most_left,
        "segments left": len(segments),
        "longest until all were gone, seconds": round(longest, 3),
    }


def _marked(marker: str) -> list[int]:
    """Return the living processes that have inherited a mark."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                marked = marker.encode() in (entry / "environ").read_bytes()
            except OSError:
                continue
            if marked and is_there(int(entry.name)):
                found.append(int(entry.name))
    return found


def is_there(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be taken note of does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def resident() -> int:
    """Return this process's resident memory in KiB."""
    text = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmRSS")))


def cycles(count: int, start_method: str = "forkserver", warm_up: int = 5) -> dict[str, Any]:
    """A5: created, reset, stepped and closed so many times; memory, descriptors and threads stay as they are."""

    def cycle() -> None:
        with VectorEnv(2, makers(2), num_workers=2, start_method=start_method) as env:
            env.reset(0)
            env.step(np.zeros(2, dtype=np.int64))

    def state() -> tuple[int, int, int]:
        gc.collect()
        return resident(), len(os.listdir("/proc/self/fd")), threading.active_count()

    for _ in range(warm_up):
        cycle()
    memory, descriptors, threads = state()
    for _ in range(count):
        cycle()
    memory_after, descriptors_after, threads_after = state()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    assert (descriptors_after, threads_after) == (descriptors, threads)
    growth = (memory_after - memory) / memory
    return {
        "cycles": count,
        "descriptors": f"{descriptors} to {descriptors_after}",
        "threads": f"{threads} to {threads_after}",
        "resident memory, KiB": f"{memory} to {memory_after}",
        "growth of memory, percent": round(100 * growth, 2),
        "children left": len(children),
    }
