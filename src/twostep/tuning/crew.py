"""Trials in processes of their own: one that dies, of whatever cause, takes nothing with it."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from twostep.tuning.study import REPORTS, Study

_PATIENCE = 0.2
"""Seconds between two looks at what was asked from outside."""


@dataclass(frozen=True)
class Order:
    """One trial as a process is given it: what to change, where to work, how many seeds, how many trials at a time."""

    number: int
    changes: dict[str, Any]
    home: Path
    seeds: int
    metric: str
    side_by_side: int = 1


class Channel:
    """What a process that trains says to the one that decides, as JSON over a pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def report(self, step: int, value: float) -> bool:
        """Say how far it is; return whether to give up."""
        self._say("report", step=step, value=value)
        return json.loads(self._pipe.recv_bytes())

    def finish(self, values: list[float]) -> None:
        """Say what each seed reached."""
        self._say("finish", values=values)

    def fail(self, error: str) -> None:
        """Say why it cannot go on."""
        self._say("fail", error=error)

    def break_off(self) -> None:
        """Say that it was stopped, with everything saved."""
        self._say("break_off")

    def _say(self, what: str, **about: Any) -> None:
        self._pipe.send_bytes(json.dumps({"what": what, **about}).encode())


Work = Callable[[Order, Connection], None]


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    gives_up: bool = False
    """Whether it was told to."""


@dataclass
class Crew:
    """Processes that train the trials of a study, so many at a time.

    `work` is a function of a module, which a new process calls with its order and its end of a pipe.
    """

    study: Study
    work: Work
    trials: int
    size: int
    reached: Callable[[int, float, float], None] = lambda *_: None
    """Is told of a trial, of how much of it is done, and of its metric."""
    ended: Callable[[int], None] = lambda _: None
    _workers: dict[int, _Worker] = field(default_factory=dict[int, "_Worker"])

    def run(self, stopped: Callable[[], bool]) -> None:
        """Train until so many trials have ended, or until it is stopped: then what runs saves itself and ends."""
        told = False
        try:
            while True:
                if stopped():
                    for worker in () if told else self._workers.values():
                        worker.process.terminate()  # asks: it finishes its update and saves
                    told = True
                else:
                    self._hire()
                if not self._workers:
                    return
                self._listen()
        finally:
            for number, worker in list(self._workers.items()):
                worker.process.kill()
                worker.process.join()
                self.study.break_off(number)

    def _hire(self) -> None:
        while len(self._workers) < self.size and self.study.count() + len(self._workers) < self.trials:
            number = self.study.next()
            if number is None:
                return
            settings = self.study.settings
            home = self.study.home(number)
            order = Order(number, self.study.params(number), home, settings.seeds, settings.metric, self.size)
            ours, theirs = multiprocessing.Pipe()
            context = multiprocessing.get_context("spawn")
            process = context.Process(target=self.work, args=(order, theirs), name=f"trial {number}")
            process.start()
            theirs.close()
            self._workers[number] = _Worker(process, ours)

    def _listen(self) -> None:
        pipes = {worker.pipe: number for number, worker in self._workers.items()}
        for pipe in wait(list(pipes), _PATIENCE):
            number = pipes[cast("Connection", pipe)]
            worker = self._workers[number]
            said: dict[str, Any]
            try:
                said = json.loads(worker.pipe.recv_bytes())
            except (EOFError, OSError):
                worker.process.join()
                said = {"what": "fail", "error": f"its process died with exit code {worker.process.exitcode}"}
            if said["what"] == "report":
                self._answer(number, worker, said["step"], said["value"])
            else:
                self._end(number, worker, said)

    def _answer(self, number: int, worker: _Worker, step: int, value: float) -> None:
        worker.gives_up = self.study.report(number, step, value)
        self.reached(number, step / (REPORTS * self.study.settings.seeds), value)
        with suppress(ConnectionError):  # it has died since: the next look says so
            worker.pipe.send_bytes(json.dumps(worker.gives_up).encode())

    def _end(self, number: int, worker: _Worker, said: dict[str, Any]) -> None:
        del self._workers[number]
        worker.pipe.close()
        worker.process.join()
        if worker.gives_up:
            self.study.give_up(number)
        elif said["what"] == "finish":
            self.study.finish(number, fmean(said["values"]))
        elif said["what"] == "break_off":
            self.study.break_off(number)
        else:
            self.study.fail(number, said["error"])
        self.ended(number)
