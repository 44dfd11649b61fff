"""Starting processes as torchrun does, without the seconds that torchrun and imports take."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

_ALIKE = multiprocessing.get_context("forkserver")
_ALIKE.set_forkserver_preload(["twostep.trainer", "twostep.cli.training", "twostep.policies.actor_critic"])


class Ended(NamedTuple):
    """How a process ended, and what it said."""

    code: int | None
    out: str
    err: str


class Started(NamedTuple):
    """A process, and where what it says is written."""

    process: BaseProcess
    said: Path

    def end(self, timeout: float = 90) -> Ended:
        """Wait for it; one that takes too long is killed."""
        self.process.join(timeout)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        return Ended(self.process.exitcode, *((self.said / name).read_text() for name in ("out", "err")))


def start(folder: Path, work: Callable[..., Any], *given: Any, size: int = 2, **told: str) -> list[Started]:
    """Let so many processes do a function, each told by its environment which of them it is."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), **told}
    started: list[Started] = []
    for rank in range(size):
        said = folder / f"said_by_{rank}"
        said.mkdir(parents=True)
        environment = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        process = _ALIKE.Process(target=_do, args=(work, given, environment, said), daemon=True)
        process.start()
        started.append(Started(process, said))
    return started


def end_all(started: Sequence[Started]) -> list[Ended]:
    """Wait for all of them."""
    return [one.end() for one in started]


def _do(work: Callable[..., Any], given: Sequence[Any], environment: dict[str, str], said: Path) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.update(environment)
    for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
        with (said / name).open("wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    sys.exit(work(*given))
