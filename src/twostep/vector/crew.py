"""The worker processes of one `VectorEnv`: started, asked, listened to, and ended."""

from __future__ import annotations

import os
import select
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from twostep.vector.channels import ChannelClosed, Frame, Overdue, packed_for_worker, unpacked
from twostep.vector.endings import wait_for_words
from twostep.vector.launching import launcher
from twostep.vector.members import Loss, Member
from twostep.vector.shared import nameless_file
from twostep.vector.worker import CLOSE, MAKE, MEMORY, RAISED, Setup, Trouble

_GRACE = 5.0
_LAST_MOMENTS = 1.0


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
        losses: list[Loss] = []
        told: dict[Member, Frame] = {}
        try:
            for member in members:
                told[member] = Frame(MAKE, member.setup)
                losses += self._launch(member)
            lost = {loss.member for loss in losses}
            answers, more = self.ask({one: told[one] for one in told if one not in lost}, self._start_timeout)
            for member, frame in answers.items():
                member.made = unpacked(frame.message)
            return losses + more + (self._share(answers) if self._shares else [])
        except BaseException:  # also Ctrl-C: a worker that is half made would be taken for one that is ready
            for member in told:
                self.end(member)
            raise

    def _launch(self, member: Member) -> list[Loss]:
        try:
            member.start(self._launcher, self.memory)
        except OSError as error:
            return [Loss(member, MAKE, f"could not be started ({error})", "")]
        for descriptor in member.descriptors:
            self._poller.register(descriptor, select.POLLIN)
            self._whose[descriptor] = member
        return []

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
            return self._silent([member], seconds)[0]

    def settle(self, seconds: float) -> None:
        """Take the late answers of workers that were told something when an error or Ctrl-C cut it short."""
        self._listen([member for member in self.members if member.is_busy], time.monotonic() + seconds, seconds)

    def _listen(
        self, waiting: Sequence[Member], deadline: float, seconds: float
    ) -> tuple[dict[Member, Frame], list[Loss]]:
        answers: dict[Member, Frame] = {}
        losses: list[Loss] = []
        for member, found in self._heard_of(waiting, deadline, seconds):
            if isinstance(found, Loss):
                losses.append(found)
            else:
                answers[member] = found
        return answers, losses

    def _heard_of(
        self, waiting: Sequence[Member], deadline: float, seconds: float
    ) -> Iterator[tuple[Member, Frame | Loss]]:
        """Yield what becomes of each worker that was told something."""
        left = dict.fromkeys(waiting)
        for member in waiting:
            found = self._heard(member)
            if found is None:
                break  # one that takes its time: from here on all are watched at once
            del left[member]
            yield member, found
        while left:
            ready = self._poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not ready:
                yield from zip(left, self._silent(left, seconds), strict=True)
                return
            for descriptor, _ in ready:
                member = self._whose.get(descriptor)
                if member in left:
                    found = self._heard(member) or self._cut_short(member, descriptor, deadline, seconds)
                    if found is not None:
                        del left[member]
                        yield member, found
                elif member is not None:
                    self._poller.unregister(descriptor)
                    del self._whose[descriptor]
                    member.is_gone = True

    def _heard(self, member: Member) -> Frame | Loss | None:
        """Return what a worker answers, or None where it is not whole yet."""
        assert member.channel is not None
        try:
            frame = member.channel.receive_soon()
        except ChannelClosed:
            return self._died(member)
        if frame is None:
            return None
        member.is_busy = False
        return self._raised(member, frame) if frame.kind == RAISED else frame

    def _cut_short(self, member: Member, descriptor: int, deadline: float, seconds: float) -> Frame | Loss | None:
        """Deal with a worker of whose answer there is only a part, or nothing though it has ended."""
        assert member.channel is not None
        if descriptor != member.channel.socket.fileno():
            return self._died(member)
        return None if time.monotonic() < deadline else self._silent([member], seconds)[0]

    def _died(self, member: Member) -> Loss:
        by_itself = member.has_ended(_LAST_MOMENTS)  # its sockets close a little before it ends
        how, words = self.end(member)
        return Loss(member, member.told, how if by_itself else "closed its connection and was ended", words)

    def _silent(self, members: Iterable[Member], seconds: float) -> list[Loss]:
        silent = list(members)
        wait_for_words([member.ask_for_words() for member in silent])
        reason = f"did not answer within {seconds:g} s and was ended"
        return [Loss(member, member.told, reason, self.end(member)[1]) for member in silent]

    def _raised(self, member: Member, frame: Frame) -> Loss:
        return self.give_up(member, unpacked(frame.message))

    def give_up(self, member: Member, trouble: Trouble) -> Loss:
        """End a worker that has raised something: nobody knows what state its environments are in."""
        self.end(member)
        return Loss(member, member.told, "raised an error", trouble.traceback, trouble)

    def end(self, member: Member, patience: float = 0.0) -> tuple[str, str]:
        """End the process of one worker."""
        for descriptor in [one for one, whose in self._whose.items() if whose is member]:
            with suppress(KeyError):
                self._poller.unregister(descriptor)
            del self._whose[descriptor]
        member.is_busy = False
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
