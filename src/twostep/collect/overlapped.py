"""Collecting from several environments at once, and while the learner learns: copies of the policy act in threads.

Nothing is shared between threads but finished rollouts: each collector has an environment, a copy of the policy and a
generator of random numbers of its own, so what is collected does not depend on who is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np
import torch

from twostep.collect.collector import RolloutCollector
from twostep.environments import adapted
from twostep.errors import EnvError
from twostep.experience import combine_rollouts
from twostep.policies.adapters import as_policy
from twostep.policies.copies import frozen_copy
from twostep.rollout import RolloutBuffer
from twostep.runtime import one_kernel


class CollectorTeam:
    """Collects from several environments at the same time, and joins their rollouts along rows.

    The policy itself is only read, before the first step: it may learn, and move to another device, meanwhile. One
    environment's rows follow those of the one before. A context manager, which waits for its threads; environments
    stay open.
    """

    def __init__(
        self,
        vecenvs: Sequence[Any],
        policy: Any,
        num_steps: int,
        device: torch.device | str = "cpu",
        *,
        bptt_length: int = 16,
        seed: int | None = None,
    ) -> None:
        """Take environments as `PPOTrainer` takes them. `device` is where the copies act.

        `seed` grows into a seed for the actions and one for the environment of each collector.
        """
        if not vecenvs:
            raise EnvError("vecenvs=[] leaves nothing to collect from. Pass at least one environment.")
        envs = [adapted(vecenv) for vecenv in vecenvs]
        self.policy = as_policy(policy, envs[0].action_space)
        seeds = [part.generate_state(2) for part in np.random.SeedSequence(seed).spawn(len(envs))]
        self.collectors = [
            RolloutCollector(
                env,
                frozen_copy(self.policy).to(device),
                device=device,
                num_steps=num_steps,
                bptt_length=bptt_length,
                seed=int(drawn[0]),
                env_seed=None if seed is None else int(drawn[1]),
            )
            for env, drawn in zip(envs, seeds, strict=True)
        ]
        self._open = ExitStack()
        self._open.enter_context(one_kernel())
        self._threads = self._open.enter_context(ThreadPoolExecutor(len(envs), thread_name_prefix="collect"))

    def rollout(self) -> RolloutBuffer:
        """Collect with the policy as it is now."""
        return self.begin()()

    def begin(self) -> Callable[[], RolloutBuffer]:
        """Begin to collect with the policy as it is now; calling what is returned waits for the rollout.

        What fails in one environment is raised there, once all are done.
        """
        for collector in self.collectors:
            collector.policy.load_state_dict(self.policy.state_dict())
            collector.policy.version = self.policy.version
        running = [self._threads.submit(collector.rollout) for collector in self.collectors]

        def finish() -> RolloutBuffer:
            wait(running)
            return combine_rollouts(future.result() for future in running)

        return finish

    def close(self) -> None:
        """Wait for what was begun, and end the threads; harmless when called twice."""
        self._open.close()

    def __enter__(self) -> CollectorTeam:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OverlappedCollector:
    """Collects the next rollout while the learner learns from this one.

    So every rollout but the first was collected by the policy before its last update. Its log-probabilities are those
    of the policy that acted, hence PPO's ratio is right; `lag` says how many updates lie between, and the metrics
    `approx_kl` and `clipfrac` how far they went. What is collected does not depend on how long learning takes.
    """

    def __init__(self, team: CollectorTeam) -> None:
        self.team = team
        self.lag = 0
        self._finish: Callable[[], RolloutBuffer] | None = None

    def rollout(self) -> RolloutBuffer:
        """Wait for the rollout that was begun by the last call, and begin the next one with the policy as it is now."""
        finish, self._finish = self._finish or self.team.begin(), None
        rollout = finish()
        self.lag = self.team.policy.version - rollout.policy_version
        self._finish = self.team.begin()
        return rollout
