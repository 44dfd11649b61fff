"""What happens when workers fail: their processes are replaced, or the failure is raised."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from twostep.vector.channels import Frame, packed_for_worker, unpacked
from twostep.vector.crew import Crew
from twostep.vector.failures import error_of, summary
from twostep.vector.ledger import Ledger
from twostep.vector.members import Loss, Member
from twostep.vector.shared import SharedRows
from twostep.vector.worker import CALL, RESET, STEP, Trouble

logger = logging.getLogger("twostep.vector")
_MAY_RESTART = ", or let its episodes be broken off and the run go on, with restarts=5"


class Recovery:
    """Replaces lost workers, as often in a row as is allowed."""

    def __init__(self, crew: Crew, ledger: Ledger, rows: SharedRows, restarts: int, step_timeout: float) -> None:
        self.failures = 0
        self._crew, self._ledger, self._rows = crew, ledger, rows
        self._restarts, self._step_timeout = restarts, step_timeout

    def start(self, members: Sequence[Member]) -> list[Loss]:
        """Start the processes of workers, and repeat there what their environments had been told."""
        losses = self._crew.start(members)
        lost = {loss.member for loss in losses}
        for member in members:
            if member not in lost:
                losses += self._repeat_calls(member)
        return losses

    def _repeat_calls(self, member: Member) -> list[Loss]:
        for (env, name), args in self._ledger.calls.items():
            index = env - member.first_env
            if 0 <= index < member.num_envs:
                call = Frame(CALL, packed_for_worker((name, args, [index]), f"A call of {name}"))
                answers, losses = self._crew.ask({member: call}, self._step_timeout)
                found = [unpacked(frame.message) for frame in answers.values()]
                losses += [self._crew.give_up(member, one) for one in found if isinstance(one, Trouble)]
                if losses:
                    return losses
        return []

    def replace(self, losses: list[Loss]) -> dict[Member, Frame]:
        """Start the processes of lost workers anew, with new episodes, or raise what happened.

        Returns what each replaced worker answered to its reset.
        """
        answers: dict[Member, Frame] = {}
        while losses:
            for loss in losses:
                self._count(loss)
            time.sleep(max(_back_off(loss.member.failures_in_a_row) for loss in losses))
            members = [loss.member for loss in losses]
            losses = self.start(members)
            lost = {loss.member for loss in losses}
            told = {one: Frame(RESET, self._new_seeds(one)) for one in members if one not in lost}
            begun, more = self._crew.ask(told, self._step_timeout)
            answers |= begun
            losses += more
        for member in answers:
            member.was_replaced = True
        return answers

    def _new_seeds(self, member: Member) -> bytes:
        first, last = member.first_env, member.first_env + member.num_envs
        tasks = self._ledger.tasks_of(first, last)
        return packed_for_worker((self._ledger.next_seeds(slice(first, last)), None, tasks), "Seeds or tasks")

    def _count(self, loss: Loss) -> None:
        """Take note of a failure, and raise it where it is one too many."""
        member = loss.member
        self.failures += 1
        member.failures_in_a_row += 1
        in_a_row = f"failure {member.failures_in_a_row} in a row, with restarts={self._restarts}"
        if member.failures_in_a_row > self._restarts:
            way_out = f"This was {in_a_row}. Mend the environment{'' if self._restarts else _MAY_RESTART}."
            raise error_of(loss, self._place(loss), way_out)
        words = f"\n{loss.words}" if loss.words and member.failures_in_a_row == 1 else ""  # once is enough
        logger.warning("%s%s. It starts anew (%s).%s", summary(loss), self._place(loss), in_a_row, words)

    def _place(self, loss: Loss) -> str:
        """Say which environment a worker was at, where it has noted that and its error does not say it."""
        member = loss.member
        rows_per_env = len(self._rows.rewards) // len(self._ledger.seeds)
        at = int(self._rows.working_on[member.first_env * rows_per_env])
        says_it = loss.trouble is not None and not loss.trouble.ends_processes
        if says_it or loss.told not in (STEP, RESET) or not 0 <= at < member.num_envs:
            return ""
        return f", at {self._ledger.place(member.first_env + at, 'step' if loss.told == STEP else 'reset')}"


def _back_off(failures_in_a_row: int) -> float:
    """Return how many seconds to wait before a worker starts anew: none at first, then ever longer."""
    return min(0.05 * 2 ** (failures_in_a_row - 2), 2.0) if failures_in_a_row > 1 else 0.0
