"""Ways to hurt what is saved: kills, damage, disks that fail, signals, races. Small in tests, full in `make chaos`."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from twostep.checkpoint import TrainingCheckpointer, load_state
from twostep.cli import main
from twostep.cli.locking import RunLock
from twostep.errors import CheckpointError, ConfigError


def state(step: int) -> dict[str, Any]:
    """A state in which every number tells the step."""
    return {"step": step, "weights": torch.full((5_000,), step), "parts": {str(at): step for at in range(50)}}


def require_whole(found: Any, step: int) -> None:
    assert found["step"] == step
    assert bool((found["weights"] == step).all())
    assert set(found["parts"].values()) == {step}


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep back thousands of warnings that are meant to come."""
    logger = logging.getLogger("twostep")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def forked(work: Callable[[], int | None]) -> int:
    """Run a function in a child process, without the time that an interpreter takes to start; return its number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: the child uses none
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = work() or 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        os._exit(code)


def kills_while_saving(count: int, seed: int = 0) -> dict[str, Any]:
    """B8: a process that saves without pause is killed so many times; what it had saved last is always there."""
    generator, halfway, fresh = random.Random(seed), 0, 0
    with folder() as where, quiet():
        checkpoints = TrainingCheckpointer(where, keep_last=2)
        checkpoints.save(0, state(0))
        last = 0
        for _ in range(count):
            ours, theirs = os.pipe()

            def save_for_ever(first: int = last + 1, end: int = theirs) -> None:
                for step in range(first, sys.maxsize):
                    TrainingCheckpointer(where, keep_last=2).save(step, state(step))
                    os.write(end, step.to_bytes(8, "little"))

            pid = forked(save_for_ever)
            os.close(theirs)
            time.sleep(generator.uniform(0.0, 0.08))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            told = b""
            while piece := os.read(ours, 65536):
                told += piece
            os.close(ours)
            last = max(last, int.from_bytes(told[-8:], "little"))
            halfway += any(name.endswith((".saving", ".replaced", ".removed")) for name in os.listdir(where))
            loaded = TrainingCheckpointer(where).load()
            require_whole(loaded.state, loaded.state["step"])
            assert loaded.state["step"] >= last, "what was saved is not lost"
            fresh += loaded.state["step"] > last
            last = loaded.state["step"]
        saved = last
    return {"kills": count, "valid checkpoint left": count, "caught halfway": halfway, "saves": saved}


def damage(count: int, seed: int = 0) -> dict[str, Any]:
    """B9: so many files are cut off, or one bit of them is turned; each is refused, and the one before is taken."""
    generator, cut = random.Random(seed), 0
    with folder() as where, quiet():
        checkpoints = TrainingCheckpointer(where)
        for step in (1, 2):
            checkpoints.save(step, state(step))
        files = sorted(checkpoints.path(2).iterdir())
        whole = {file: file.read_bytes() for file in files}
        for _ in range(count):
            file = generator.choice(files)
            content = bytearray(whole[file])
            if generator.random() < 0.5:
                del content[generator.randrange(len(content)) :]
                cut += 1
            else:
                bit = generator.randrange(8 * len(content))
                content[bit // 8] ^= 1 << bit % 8
            file.write_bytes(content)
            with pytest.raises(CheckpointError) as refused:
                load_state(checkpoints.path(2))
            assert str(file) in str(refused.value), "path and part are named"
            assert "\n" not in str(refused.value)
            require_whole(checkpoints.load().state, 1)
            file.write_bytes(whole[file])
        require_whole(checkpoints.load().state, 2)
    return {"damaged files": count, "cut off": cut, "bits turned": count - cut, "refused": count, "loaded": 0}


def full_disks(count: int, seed: int = 0) -> dict[str, Any]:
    """B10: so many saves fail at random places; the run is told once, nothing is lost and nothing left behind."""
    generator, kinds = random.Random(seed), {"no room": 0, "input or output": 0, "no permission": 0, "read only": 0}
    with folder() as where:
        checkpoints = TrainingCheckpointer(where)
        checkpoints.save(0, state(0))
        for number in range(count):
            before = sorted(os.listdir(where))
            kind = generator.choice(list(kinds))
            kinds[kind] += 1
            with _failing(kind, generator), _warnings() as told:
                assert checkpoints.try_save(number + 1, state(number + 1)) is None
                assert checkpoints.try_save(number + 1, state(number + 1)) is None
            assert len(told) == 1, told
            assert "Training goes on without this checkpoint" in told[0]
            assert sorted(os.listdir(where)) == before
            found = checkpoints.load()
            require_whole(found.state, number if number else 0)
            checkpoints.save(number + 1, state(number + 1))
    return {"failed saves": 2 * count, **kinds, "warnings": count, "checkpoints lost": 0}


@contextmanager
def _failing(kind: str, generator: random.Random) -> Iterator[None]:
    def fail(number: int) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            raise OSError(number, os.strerror(number))

        return call

    if kind == "no room":
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (generator.randrange(20_000), limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, before)
        return
    where, number = {
        "input or output": ("os.fsync", errno.EIO),
        "no permission": ("pathlib.Path.rename", errno.EACCES),
        "read only": ("pathlib.Path.mkdir", errno.EROFS),
    }[kind]
    with mock.patch(where, fail(number)):
        yield


@contextmanager
def _warnings() -> Iterator[list[str]]:
    told: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    logger, handler = logging.getLogger("twostep.checkpoint"), Keeps()
    logger.addHandler(handler)
    propagates, logger.propagate = logger.propagate, False
    try:
        yield told
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


def signals(count: int, seed: int = 0) -> dict[str, Any]:
    """B15: runs get a signal at random times; each ends with the code of it and loses no update."""
    generator, longest = random.Random(seed), 0.0
    names = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")
    for number in range(count):
        name = names[number % len(names)]
        with folder() as where:
            pid = forked(lambda where=where: _train(where))
            rows = _wait_for_rows(where)
            time.sleep(generator.uniform(0.0, 0.3))
            began = time.monotonic()
            os.kill(pid, getattr(signal, name))
            _, status = os.waitpid(pid, 0)
            longest = max(longest, time.monotonic() - began)
            assert os.waitstatus_to_exitcode(status) == 128 + getattr(signal, name), (name, status)
            last = json.loads(rows.read_text().splitlines()[-1])["step"]
            loaded = TrainingCheckpointer(rows.parent / "checkpoints").load()
            assert loaded.state["total_timesteps"] == last, "no update is lost"
            assert not (rows.parent / ".lock").exists()
    return {"signals": count, "updates lost": 0, "longest until ended, seconds": round(longest, 2)}


def _train(where: Path) -> int:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    small = ["--rollout_steps", "32", "--num_envs", "2", "--hidden_size", "8", "--no_progress", "--no_tensorboard"]
    words = ["--run_dir", str(where), "--total_timesteps", "100_000_000", "--device", "cpu"]
    return main(["train", "CartPole-v1", *small, *words])


def _wait_for_rows(where: Path) -> Path:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for rows in where.glob("*/metrics.jsonl"):
            if rows.stat().st_size:
                return rows
        time.sleep(0.005)
    raise AssertionError("the run did not begin")


def lock_races(count: int, processes: int = 4, seed: int = 0) -> dict[str, Any]:
    """B14: processes race for a folder whose holder has died; never are two in it, and never is it stuck."""
    generator, held = random.Random(seed), 0
    with folder() as where:
        for _ in range(count):
            (where / ".lock").write_text(json.dumps({"pid": 2**22 + 1, "started": 1, "host": os.uname().nodename}))
            waits = [generator.uniform(0, 0.004) for _ in range(processes)]
            pids = [forked(partial(_hold, where, wait)) for wait in waits]
            codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
            assert set(codes) <= {0, 2}, "held by one, refused to others; never two at once"
            assert 0 in codes
            held += codes.count(0)
            with RunLock(where):
                assert not (where / "inside").exists()
    return {"races": count, "processes each": processes, "times held": held, "two at once": 0}


def _hold(where: Path, wait: float) -> int:
    time.sleep(wait)
    try:
        with RunLock(where):
            inside = where / "inside"
            try:
                inside.touch(exist_ok=False)
            except FileExistsError:
                return 3
            time.sleep(0.003)
            inside.unlink()
    except ConfigError:
        return 2
    return 0


def fresh_copy(saved: Path, where: Path) -> Path:
    """Return a copy of a saved state to spoil."""
    target = where / "state"
    if target.is_symlink() or target.is_file():
        target.unlink()
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(saved, target)
    return target
