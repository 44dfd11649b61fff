"""The worker processes of one `VectorEnv`: started, asked, listened to, and ended."""

from __future__ import annotations

import os
import select
import socket
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from twostep.vector.channels import Channel, ChannelClosed, Frame, Overdue, packed_for_worker, unpacked
from twostep.vector.endings import ASK_FOR_WORDS, ask_for_words, last_words
from twostep.vector.launching import Child, Launcher, launcher
from twostep.vector.shared import nameless_file
from twostep.vector.worker import CLOSE, MAKE, MEMORY, RAISED, Made, Setup, Trouble

_GRACE = 5.0


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
        ours.setblocking(False)
        self.channel = Channel(ours)
        self.is_busy = self.is_gone = False

    @property
    def descriptors(self) -> list[int]:
        """What becomes readable when it answers or ends."""
        assert self.channel is not None
        assert self._child is not None
        own = [self.channel.socket.fileno()]
        return own if self._child.sentinel is None else [*own, self._child.sentinel]

    def words(self) -> str:
        """Let a silent process write down what it is doing, and return that."""
        assert self._child is not None
        child = self._child
        ask_for_words(lambda: child.signal(ASK_FOR_WORDS), self._words)
        return last_words(self._words)

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


class Crew:
    """All workers of one `VectorEnv`."""

    def __init__(self, setups: Sequence[Setup], start_method: str, start_timeout: float) -> None:
        self.members = [Member(number, setup) for number, setup in enumerate(setups)]
        self._launcher = launcher(start_method)
        self._start_timeout = start_timeout
        self._owner = os.getpid()
        self.memory = nameless_file()
        self._shares: list[bytes] = []
        self._poller = select.poll()
        self._whose: dict[int, Member] = {}
        _CREWS.add(self)

    @property
    def is_ours(self) -> bool:
        """Whether this process started them, and has not closed them."""
        return self.memory >= 0 and self._owner == os.getpid()

    def start(self, members: Iterable[Member]) -> list[Loss]:
        """Start the processes of `members` and let them make their environments; return those that failed."""
        members = list(members)
        for member in members:
            member.start(self._launcher, self.memory)
            for descriptor in member.descriptors:
                self._poller.register(descriptor, select.POLLIN)
                self._whose[descriptor] = member
        answers, losses = self.ask({member: Frame(MAKE, member.setup) for member in members}, self._start_timeout)
        for member, frame in answers.items():
            member.made = unpacked(frame.message)
        if self._shares:
            losses += self._share(answers)
        return losses

    def share(self, num_rows: int) -> list[Loss]:
        """Let all workers see the memory, which has its size now; those that are started later see it, too."""
        first_rows = [
            member.first_env * num_rows // sum(one.num_envs for one in self.members) for member in self.members
        ]
        self._shares = [packed_for_worker((num_rows, first), "") for first in first_rows]
        return self._share(self.members)

    def _share(self, members: Iterable[Member]) -> list[Loss]:
        return self.ask({one: Frame(MEMORY, self._shares[one.number]) for one in members}, self._start_timeout)[1]

    def ask(self, told: Mapping[Member, Frame], seconds: float) -> tuple[dict[Member, Frame], list[Loss]]:
        """Tell workers something and wait for all answers, but no longer than so many seconds.

        Those that died, raised or did not answer have been ended when they are returned as lost.
        """
        deadline = time.monotonic() + seconds
        losses: list[Loss] = []
        waiting: list[Member] = []
        for member, frame in told.items():
            loss = self._tell(member, frame, deadline, seconds)
            if loss is None:
                waiting.append(member)
            else:
                losses.append(loss)
        answers, more = self._listen(waiting, deadline, seconds)
        return answers, losses + more

    def _tell(self, member: Member, frame: Frame, deadline: float, seconds: float) -> Loss | None:
        member.told = frame.kind
        try:
            if member.channel is None or member.is_gone:
                return self._died(member)
            member.is_busy = True
            member.channel.send(frame.kind, frame.message or None, deadline)
        except ChannelClosed:
            return self._died(member)
        except Overdue:
            return self._silent(member, seconds)

    def settle(self, seconds: float) -> None:
        """Take the late answers of workers that were told something when an error or Ctrl-C cut it short."""
        self._listen([member for member in self.members if member.is_busy], time.monotonic() + seconds, seconds)

    def _listen(
        self, waiting: Sequence[Member], deadline: float, seconds: float
    ) -> tuple[dict[Member, Frame], list[Loss]]:
        answers: dict[Member, Frame] = {}
        losses: list[Loss] = []
        left = dict.fromkeys(waiting)
        while left:
            ready = self._poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not ready:
                return answers, losses + [self._silent(member, seconds) for member in left]
            for descriptor, _ in ready:
                member = self._whose.get(descriptor)
                if member is None:
                    continue
                if member not in left:
                    self._poller.unregister(descriptor)
                    del self._whose[descriptor]
                    member.is_gone = True
                    continue
                found = self._heard(member, descriptor, deadline, seconds)
                if isinstance(found, Loss):
                    losses.append(found)
                else:
                    answers[member] = found
                del left[member]
        return answers, losses

    def _heard(self, member: Member, descriptor: int, deadline: float, seconds: float) -> Frame | Loss:
        """Read what a worker answers, now that one of its descriptors has become readable."""
        assert member.channel is not None
        by_ending = descriptor != member.channel.socket.fileno()
        try:
            frame = member.channel.receive(0.0 if by_ending else deadline)
        except ChannelClosed:
            return self._died(member)
        except Overdue:
            return self._died(member) if by_ending else self._silent(member, seconds)
        member.is_busy = False
        return self._raised(member, frame) if frame.kind == RAISED else frame

    def _died(self, member: Member) -> Loss:
        how, words = self.end(member)
        return Loss(member, member.told, how, words)

    def _silent(self, member: Member, seconds: float) -> Loss:
        words = member.words()
        self.end(member)
        return Loss(member, member.told, f"did not answer within {seconds:g} s and was ended", words)

    def _raised(self, member: Member, frame: Frame) -> Loss:
        trouble: Trouble = unpacked(frame.message)
        self.end(member)
        return Loss(member, member.told, "raised an error", trouble.traceback, trouble)

    def end(self, member: Member, patience: float = 0.0) -> tuple[str, str]:
        """End the process of one worker."""
        for descriptor in [one for one, whose in self._whose.items() if whose is member]:
            with suppress(KeyError):
                self._poller.unregister(descriptor)
            del self._whose[descriptor]
        return member.end(patience)

    def close(self) -> None:
        """Let all workers close their environments, and end those that do not; harmless when called twice."""
        if self._owner != os.getpid():
            return
        deadline = time.monotonic() + _GRACE
        for member in self.members:
            if member.channel is not None:
                with suppress(ChannelClosed, Overdue):
                    member.channel.send(CLOSE, None, deadline)
        for member in self.members:
            self.end(member, deadline - time.monotonic())
        self._launcher.close()
        self._close_memory()

    def forget(self) -> None:
        """Let go of all workers, in a process forked from the one that owns them: they live as long as that one."""
        for member in self.members:
            member.forget()
        self._launcher.forget()
        self._close_memory()

    def _close_memory(self) -> None:
        if self.memory >= 0:
            os.close(self.memory)
            self.memory = -1


_CREWS: weakref.WeakSet[Crew] = weakref.WeakSet()


def _forget_all() -> None:
    for crew in list(_CREWS):
        crew.forget()


os.register_at_fork(after_in_child=_forget_all)
