"""How good a policy is in a suite of cases, now or while training goes on."""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from twostep.evaluation.scores import SuiteScores
from twostep.evaluation.simulation import StoppedError, play_case
from twostep.policies.adapters import as_policy
from twostep.store import PolicyRecord, PolicyStore
from twostep.suites import HEURISTIC, SimulationCase, SimulationSuite

_LOG = logging.getLogger("twostep.evaluation")


class PolicyEvaluator:
    """Scores policies on a suite.

    >>> evaluator = PolicyEvaluator(SimulationSuite(cases={"balance/cartpole": SimulationCase(env="CartPole-v1")}))
    >>> scores = evaluator.evaluate(policy)
    >>> scores["balance/cartpole"], scores.cases["balance/cartpole"].interval

    Args:
        suite: What is played.
        store: Where the URIs of other players are looked up. Each is looked up once, so that later scores are of
            matches against the same players.
        device: Where policies compute that are loaded here: other players, records, URIs. None is the CPU.
    """

    def __init__(
        self,
        suite: SimulationSuite,
        store: PolicyStore | None = None,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        self.suite, self.store, self.device = suite, store or PolicyStore(), device
        self._players: dict[tuple[str, str], Any] = {}

    def evaluate(self, policy: Any, *, stopped: Callable[[], bool] = lambda: False) -> SuiteScores:
        """Play all cases; the same policy gets the same scores, unless a case runs out of time.

        Args:
            policy: A policy, any network that `as_policy` takes, a record of a store, or a URI or path.
            stopped: Asked before every step; StoppedError is raised where it says yes.
        """
        if isinstance(policy, (str, os.PathLike)):
            policy = self.store.policy(policy)
        if isinstance(policy, PolicyRecord):
            policy = policy.policy(self.device)
        cases = self.suite.resolved()
        opponents = {name: self._opponent(name, case) for name, case in cases.items()}
        scores = [
            play_case(
                name,
                case,
                policy,
                opponents[name],
                self.suite.seed_of(name),
                stopped=stopped,
            )
            for name, case in cases.items()
        ]
        return SuiteScores(self.suite.name, scores, self.suite.seed)

    def _opponent(self, name: str, case: SimulationCase) -> Any:
        """Return who plays the other agents of a case; None for the environment's own player."""
        if case.npc is None or case.npc == HEURISTIC:
            return None
        key = (case.npc, case.npc_selector or "latest")
        if key not in self._players:
            self._players[key] = self.store.policy(case.npc, case.npc_selector or "latest").policy(self.device)
        return self._players[key]


@dataclass(frozen=True)
class Evaluated:
    """A policy that was evaluated, as it was when it was handed in."""

    step: int
    scores: SuiteScores
    policy: Any


class BackgroundEvaluator:
    """Evaluates frozen copies of a policy while its training goes on, at most one at a time, in a thread.

    The copies compute on the CPU and leave a GPU to training. What fails is said once and changes nothing; scores are
    those that evaluating at once would have given.
    """

    def __init__(self, evaluator: PolicyEvaluator) -> None:
        self.evaluator = evaluator
        self.skipped = 0
        """How often there was nobody to evaluate, because the evaluation before was still under way."""
        self._thread: threading.Thread | None = None
        self._finished: Evaluated | None = None
        self._stop = threading.Event()
        self._failed = False

    def submit(self, policy: Any, step: int) -> bool:
        """Begin to evaluate the policy as it is now, unless an evaluation is under way or its result not taken yet."""
        if self._thread is not None:
            self.skipped += 1
            return False
        frozen = _frozen(policy)
        self._thread = threading.Thread(target=self._evaluate, args=(frozen, step), name="evaluation", daemon=True)
        self._thread.start()
        return True

    def result(self, *, wait: bool = False) -> Evaluated | None:
        """Return what has been evaluated since the last time, or nothing; with `wait`, when it is done."""
        if self._thread is None or (self._thread.is_alive() and not wait):
            return None
        self._thread.join()
        self._thread = None
        finished, self._finished = self._finished, None
        return finished

    def close(self) -> None:
        """Stop what is under way; its result is lost."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _evaluate(self, frozen: Any, step: int) -> None:
        try:
            scores = self.evaluator.evaluate(frozen, stopped=self._stop.is_set)
            self._finished = Evaluated(step, scores, frozen)
        except StoppedError:
            pass
        except Exception as error:  # whatever an environment raises: training must not end for it
            if not self._failed:
                _LOG.warning("training goes on without this evaluation: %s: %s", type(error).__name__, error)
            self._failed = True


def _frozen(policy: Any) -> Any:
    """Return a copy on the CPU that shares nothing and learns nothing."""
    twin = copy.deepcopy(as_policy(policy))
    twin.zero_grad(set_to_none=True)
    return twin.eval().requires_grad_(False).to("cpu")
