"""One worker process of a `VectorEnv`, as its parent sees it."""

from __future__ import annotations

import os
import select
import socket
from typing import NamedTuple

from twostep.vector.channels import Channel, packed_for_worker
from twostep.vector.endings import ASK_FOR_WORDS, last_words
from twostep.vector.launching import Child, Launcher
from twostep.vector.shared import nameless_file
from twostep.vector.worker import MAKE, Made, Setup, Trouble

_PATIENCE = 0.02


class Loss(NamedTuple):
    """A worker that did not do what it was told, and is no more."""

    member: Member
    told: int
    """What it was told last: `STEP`, `RESET` and so on."""
    reason: str
    """What became of it, to follow its name: `was killed by SIGSEGV`."""
    words: str
    """Its own traceback, where it left one."""
    trouble: Trouble | None = None
    """What it raised, where it raised something."""


class Member:
    """One worker, as its parent sees it: it stays the same when its process is replaced."""

    def __init__(self, number: int, setup: Setup) -> None:
        self.number = number
        self.first_env, self.num_envs = setup.first_env, len(setup.factories)
        self.setup = packed_for_worker(setup, "What makes the environments")
        self.made: Made | None = None
        self.failures_in_a_row = 0
        self.was_replaced = False
        """Its episodes were broken off since the last step: the next one says so."""
        self.is_busy = False
        """It has been told something, and its answer has not come yet."""
        self.told = MAKE
        self.is_gone = False
        """Its process has ended although nothing was asked of it."""
        self.channel: Channel | None = None
        self._child: Child | None = None
        self._lifeline = self._words = -1

    def start(self, by: Launcher, memory: int) -> None:
        """Start its process."""
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        self._words = nameless_file()
        try:
            self._child = by.start((theirs.fileno(), lifeline, self._words, memory))
        except BaseException:
            ours.close()
            self.let_go()
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self.channel = Channel(ours, _PATIENCE)
        self.is_busy = self.is_gone = False

    @property
    def pid(self) -> int | None:
        """Its process, unless that is gone."""
        return None if self._child is None else self._child.pid

    @property
    def descriptors(self) -> list[int]:
        """What becomes readable when it answers or ends."""
        assert self.channel is not None
        assert self._child is not None
        own = [self.channel.socket.fileno()]
        return own if self._child.sentinel is None else [*own, self._child.sentinel]

    def ask_for_words(self) -> int:
        """Let a silent process write down what it is doing; return the file that it writes to."""
        assert self._child is not None
        self._child.signal(ASK_FOR_WORDS)
        return self._words

    def end(self, patience: float = 0.0) -> tuple[str, str]:
        """End its process, after waiting so long for it to end by itself; return how it ended, and its last words."""
        if self._child is None:
            return "had ended", ""
        child, self._child = self._child, None
        if patience > 0:
            self._wait_for_end(child, patience)
        self._close_lifeline()
        how, words = child.end(), last_words(self._words)
        self.let_go()
        return how, words

    def has_ended(self, patience: float) -> bool:
        """Whether its process ends by itself within so many seconds; True also where the system cannot tell."""
        if self._child is None or self._child.sentinel is None:
            return True
        ended = select.poll()
        ended.register(self._child.sentinel, select.POLLIN)
        return bool(ended.poll(patience * 1000))

    def _wait_for_end(self, child: Child, patience: float) -> None:
        ended = select.poll()
        if child.sentinel is not None:
            ended.register(child.sentinel, select.POLLIN)
        elif self.channel is not None:
            ended.register(self.channel.socket, select.POLLIN)
        ended.poll(patience * 1000)

    def _close_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def forget(self) -> None:
        """Let go of its process, which another process owns."""
        self._child = None
        self.let_go()

    def let_go(self) -> None:
        """Close every descriptor of it that this process holds."""
        self._close_lifeline()
        if self._words >= 0:
            os.close(self._words)
            self._words = -1
        if self.channel is not None:
            self.channel.close()
            self.channel = None
