"""Environments in worker processes, stepped as one, that survive the death of any of these processes."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from twostep.errors import EnvError
from twostep.protocols import Step
from twostep.tree import Tree, tree_leaves, tree_map
from twostep.vector.channels import Frame, packed_for_worker, unpacked
from twostep.vector.crew import Crew, Loss, Member
from twostep.vector.failures import error_of, raised_error, summary, worker_name
from twostep.vector.launching import StartMethod
from twostep.vector.shared import ActionWriter, SharedRows, bytes_needed, mapped
from twostep.vector.spaces import resets
from twostep.vector.worker import ABSENT, CALL, ENDED, MASKED, RESET, STEP, Made, Setup, Trouble

logger = logging.getLogger(__name__)


class VectorEnv:
    """Environments in worker processes as one `RowEnv`, row for row the same as in this process.

    Args:
        num_envs: Number of environments.
        env_cfg: A function that makes one, also a lambda or one of the main module; a config with `make()`, or with
            `make_rows(num_envs, ...)` for many at once; a Gymnasium id; or a list of `num_envs` of these.
        num_workers: Number of processes, each with a part of the environments; None for as many as there are cores.
        seed: What the first `reset` without a seed uses.
        agent_ids: In environments of many agents, whom the rows stand for (`AgentsVectorEnv`).
        opponent: A function that makes who plays the others.
        step_timeout: Seconds that a step, a reset or a call may take; a worker that takes longer has failed.
        start_timeout: Seconds that making the environments may take.
        start_method: `"spawn"` starts new interpreters, `"forkserver"` forks one that has Gymnasium loaded: many
            workers start sooner, and failed ones are replaced in milliseconds. Neither runs the main module again.
        restarts: How often in a row a worker may fail (die, hang or raise) and be replaced; 0 raises at once.
        check: Whether the first environment goes through `check_env`.

    Where a worker fails and is replaced, the step that it could not finish is `truncated` and not `valid` in all its
    rows, which count nowhere and have no last observation; `obs` is the first of new episodes, with new seeds that
    follow from the old ones. Calls that returned nothing, such as `call("set_task", 3)`, are repeated first. Each
    failure is logged as a warning and counted in `failures`.

    What `reset` and `step` return is this object's memory, overwritten by the next call; only `final_obs` is fresh. For
    lists of dicts by agent instead of rows, see `twostep.vector.named`.
    """

    def __init__(
        self,
        num_envs: int,
        env_cfg: Any,
        *,
        num_workers: int | None = None,
        seed: int | None = None,
        agent_ids: Any = None,
        opponent: Any = None,
        step_timeout: float = 60.0,
        start_timeout: float = 300.0,
        start_method: StartMethod = "spawn",
        restarts: int = 0,
        check: bool = True,
    ) -> None:
        sources = _sources(num_envs, env_cfg)
        self.num_envs = num_envs
        self.failures = 0
        self._seed, self._step_timeout, self._restarts = seed, step_timeout, restarts
        firsts = _firsts(num_envs, num_workers)
        setups = [
            Setup(sources[first:last], first, agent_ids, opponent, check and first == 0)
            for first, last in zip(firsts, [*firsts[1:], num_envs], strict=True)
        ]
        self._crew = Crew(setups, start_method, start_timeout)
        self._finalizer = weakref.finalize(self, self._crew.close)
        try:
            self._raise_any(self._crew.start(self._crew.members))
            self._allocate(_one_kind(self._crew.members))
        except BaseException:
            self.close()
            raise

    def _allocate(self, made: Made) -> None:
        self.observation_space, self.action_space = made.observation_space, made.action_space
        self.rows_per_env, self.agent_ids, self.possible_agents = (
            made.rows_per_env,
            made.agent_ids,
            made.possible_agents,
        )
        self.spec_name = made.name
        self.num_rows = self.num_envs * self.rows_per_env
        os.ftruncate(self._crew.memory, bytes_needed(self.observation_space, self.action_space, self.num_rows))
        memory = mapped(self._crew.memory)
        self._rows = SharedRows.over(memory, self.observation_space, self.action_space, self.num_rows)
        self._rows.working_on.fill(-1)
        for mask in tree_leaves(self._rows.masks):
            mask.fill(True)
        self._raise_any(self._crew.share(self.num_rows))
        self._writer = ActionWriter(self.action_space, self._rows.actions)
        self._is_running = self._is_masked = False
        self._num_steps = 0
        self._seeds: list[int] = []
        self._episodes = np.zeros(self.num_envs, dtype=np.int64)
        self._began = np.zeros(self.num_envs, dtype=np.int64)
        self._calls: dict[tuple[int, str], tuple[Any, ...]] = {}

    def reset(self, seed: int | Sequence[int] | None = None, indices: Sequence[int] | None = None) -> Step:
        """Start every environment anew, or those of `indices`; a seed, or one for each, decides all that follows.

        After an error this starts workers anew that are gone.
        """
        self._require_open()
        if indices is not None and not self._is_running:
            raise EnvError("reset was called with indices before all environments have begun. Call reset() first.")
        if seed is None and not self._seeds:
            seed = self._seed if self._seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
        chosen = dict(resets(seed, self.num_envs, indices))
        self._is_running = False
        self._seeds = self._seeds or [0] * self.num_envs
        self._seeds = [known if chosen.get(env) is None else chosen[env] for env, known in enumerate(self._seeds)]
        self._crew.settle(self._step_timeout)
        self._rows.episode_starts.fill(False)
        self._reset(chosen)
        return self._begun()

    def _reset(self, chosen: Mapping[int, int | None]) -> None:
        """Begin new episodes of the chosen environments, in new processes where the old ones are gone."""
        told: dict[Member, Frame] = {}
        for member, envs in self._parts(chosen).items():
            seeds = [chosen[member.first_env + env] for env in envs]
            indices = None if len(chosen) == self.num_envs else envs
            told[member] = Frame(RESET, packed_for_worker((None if None in seeds else seeds, indices), "Seeds"))
        gone = [member for member in told if member.channel is None]
        losses = self._start(gone)
        lost = {loss.member for loss in losses}
        answers, more = self._crew.ask({one: told[one] for one in told if one not in lost}, self._step_timeout)
        self._is_masked = any(frame.kind & MASKED for frame in answers.values())
        self._replace(losses + more)

    def _begun(self) -> Step:
        """Return what a reset has led to."""
        rows = self._rows
        for member in self._crew.members:
            if member.was_replaced:
                rows.episode_starts[self._rows_of(member)] = True
                member.was_replaced = False
        self._note_episodes()
        self._is_running = True
        return Step(rows.obs, rows.episode_starts, action_masks=rows.masks if self._is_masked else None)

    def step(self, actions: Tree) -> Step:
        """Take one action per row; rows that end start anew at once and are listed in `final_rows`."""
        self._require_open()
        if not self._is_running:
            raise EnvError("step was called before reset, or after an error. Call reset first.")
        self._writer.write(actions)
        self._is_running = False
        told = {member: _STEP for member in self._crew.members if not member.was_replaced}
        answers, losses = self._crew.ask(told, self._step_timeout)
        self._num_steps += 1
        found = 0
        infos: dict[int, dict[str, Any]] = {}
        for member, (kind, message) in answers.items():
            member.failures_in_a_row = 0
            found |= kind
            if message:
                first = member.first_env * self.rows_per_env
                infos |= {first + row: info for row, info in unpacked(message).items()}
        if losses:
            self._replace(losses)
        step = self._stepped(found, infos)
        self._is_running = True
        return step

    def _stepped(self, found: int, infos: dict[int, dict[str, Any]]) -> Step:
        rows = self._rows
        broken = [member for member in self._crew.members if member.was_replaced]
        for member in broken:
            self._break_off(member)
        step = Step(rows.obs, rows.episode_starts, rows.rewards, rows.terminated, rows.truncated, infos=infos)
        if self._is_masked:
            step.action_masks = rows.masks
        if found & ABSENT or broken:
            step.valid = rows.valid
        if found & ENDED:
            step.final_rows = np.flatnonzero(rows.final)
            step.final_obs = tree_map(lambda leaf: leaf[step.final_rows], rows.final_obs)
        if found & ENDED or broken:
            self._note_episodes()
        return step

    def _break_off(self, member: Member) -> None:
        """Let a step say that it could not be finished in the rows of one worker, whose new episodes have begun."""
        rows, part = self._rows, self._rows_of(member)
        rows.rewards[part] = 0.0
        for flags, value in (
            (rows.terminated, False),
            (rows.truncated, True),
            (rows.valid, False),
            (rows.final, False),
            (rows.episode_starts, True),
        ):
            flags[part] = value
        member.was_replaced = False

    def _replace(self, losses: list[Loss]) -> None:
        """Start the processes of lost workers anew, with new episodes, or raise what happened."""
        while losses:
            for loss in losses:
                self._count(loss)
            time.sleep(max(_back_off(loss.member.failures_in_a_row) for loss in losses))
            members = [loss.member for loss in losses]
            losses = self._start(members)
            lost = {loss.member for loss in losses}
            told = {one: Frame(RESET, self._new_seeds(one)) for one in members if one not in lost}
            answers, more = self._crew.ask(told, self._step_timeout)
            losses += more
            for member, frame in answers.items():
                member.was_replaced = True
                self._is_masked |= bool(frame.kind & MASKED)

    def _start(self, members: list[Member]) -> list[Loss]:
        """Start processes and repeat there what the environments had been told."""
        losses = self._crew.start(members)
        for (env, name), args in list(self._calls.items()):
            lost = {loss.member for loss in losses}
            member = next((one for one in members if 0 <= env - one.first_env < one.num_envs), None)
            if member is not None and member not in lost:
                message = packed_for_worker((name, args, [env - member.first_env]), "A call")
                losses += self._crew.ask({member: Frame(CALL, message)}, self._step_timeout)[1]
        return losses

    def _new_seeds(self, member: Member) -> bytes:
        """Derive the seeds of a replaced worker's next episodes, and remember them."""
        part = slice(member.first_env, member.first_env + member.num_envs)
        states = (np.random.SeedSequence((seed, self.failures)).generate_state(1) for seed in self._seeds[part])
        self._seeds[part] = [int(state[0] >> 1) for state in states]
        return packed_for_worker((self._seeds[part], None), "Seeds")

    def _count(self, loss: Loss) -> None:
        """Take note of a failure, and raise it where it is one too many."""
        member = loss.member
        self.failures += 1
        member.failures_in_a_row += 1
        in_a_row = f"failure {member.failures_in_a_row} in a row, restarts={self._restarts}"
        if member.failures_in_a_row > self._restarts:
            way_out = f"This was {in_a_row}: mend the environment" + ("." if self._restarts else _MAY_RESTART)
            raise error_of(loss, self._place(loss), way_out)
        logger.warning("%s%s; it starts anew (%s).", summary(loss), self._place(loss), in_a_row)

    def _place(self, loss: Loss) -> str:
        """Say which environment a worker was at, as far as that is known here."""
        member = loss.member
        at = int(self._rows.working_on[member.first_env * self.rows_per_env])
        if loss.trouble is not None or loss.told not in (STEP, RESET) or not 0 <= at < member.num_envs:
            return ""
        env = member.first_env + at
        part = slice(env * self.rows_per_env, (env + 1) * self.rows_per_env)
        action = tree_map(lambda leaf: leaf[part].tolist(), self._rows.actions)
        doing = f", action {action}" if loss.told == STEP else ""
        steps = self._num_steps - self._began[env]
        return f", at env {env} (seed {self._seeds[env]}), episode {self._episodes[env]}, step {steps} of it{doing}"

    def _note_episodes(self) -> None:
        begun = self._rows.episode_starts.reshape(self.num_envs, -1).all(1)
        self._episodes[begun] += 1
        self._began[begun] = self._num_steps

    def call(self, name: str, *args: Any, indices: Sequence[int] | None = None) -> list[Any]:
        """Call the method `name` of every environment, or of those of `indices`, or read the attribute `name`."""
        self._require_open()
        self._crew.settle(self._step_timeout)
        chosen = [index for index, _ in resets(None, self.num_envs, indices)]
        parts = self._parts(chosen)
        told = {
            one: Frame(CALL, packed_for_worker((name, args, envs), f"Arguments of {name}"))
            for one, envs in parts.items()
        }
        results: dict[int, Any] = {}
        while told:
            answers, losses = self._crew.ask(told, self._step_timeout)
            for member, frame in answers.items():
                found: list[Any] | Trouble = unpacked(frame.message)
                if isinstance(found, Trouble):
                    raise raised_error(found, f"{worker_name(member)}, which was called for {name!r}.")
                results |= {member.first_env + env: value for env, value in zip(parts[member], found, strict=True)}
            self._replace(losses)
            told = {loss.member: told[loss.member] for loss in losses}
        self._calls |= {(env, name): args for env, value in results.items() if args and value is None}
        return [results[env] for env in chosen]

    def _parts(self, envs: Sequence[int] | Mapping[int, Any]) -> dict[Member, list[int]]:
        """Return which workers have some of these environments, and which these are, counted within each."""
        parts: dict[Member, list[int]] = {}
        for env in envs:
            member = next(one for one in reversed(self._crew.members) if one.first_env <= env)
            parts.setdefault(member, []).append(env - member.first_env)
        return parts

    def _rows_of(self, member: Member) -> slice:
        first = member.first_env * self.rows_per_env
        return slice(first, first + member.num_envs * self.rows_per_env)

    def _raise_any(self, losses: list[Loss]) -> None:
        if losses:
            raise error_of(losses[0], "", "Mend what makes the environments.")

    def _require_open(self) -> None:
        if not self._crew.is_ours:
            raise EnvError("This VectorEnv is closed, or was made in another process. Make a new one.")

    def close(self) -> None:
        """Close the environments and end the workers, also hanging ones; harmless when called twice."""
        self._finalizer()

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_STEP = Frame(STEP)
_MAY_RESTART = ", or let its episodes be broken off and the run go on with restarts=5."


def _sources(num_envs: int, env_cfg: Any) -> list[Any]:
    """Return what makes each environment."""
    if num_envs < 1:
        raise EnvError(f"num_envs={num_envs}, but must be 1 or more. Use num_envs=1 for a single environment.")
    if isinstance(env_cfg, Sequence) and not isinstance(env_cfg, str):
        if len(env_cfg) != num_envs:
            raise EnvError(
                f"{len(env_cfg)} environments were listed, but num_envs={num_envs}. Make the two agree, or pass one "
                f"function, which is called once per environment."
            )
        return list(env_cfg)
    return [env_cfg] * num_envs


def _firsts(num_envs: int, num_workers: int | None) -> list[int]:
    """Return the first environment of each worker: parts as equal as can be."""
    if num_workers is not None and not 1 <= num_workers <= num_envs:
        raise EnvError(
            f"num_workers={num_workers}, but must be between 1 and num_envs={num_envs}. None takes one per core."
        )
    workers = min(num_envs, _usable_cores()) if num_workers is None else num_workers
    return [number * num_envs // workers for number in range(workers)]


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _one_kind(members: Sequence[Member]) -> Made:
    """Refuse workers whose environments differ from those of the first."""
    first = members[0].made
    assert first is not None
    for member in members:
        assert member.made is not None
        for name, value, expected in zip(Made._fields[:-1], member.made, first, strict=False):
            if value != expected:
                raise EnvError(
                    f"{worker_name(member)} has {name} {value}, but env 0 has {expected}: all must have the same. "
                    f"Make them with the same arguments, or pad them to one space by a wrapper."
                )
    return first


def _back_off(failures_in_a_row: int) -> float:
    """Return how many seconds to wait before a worker starts anew: none at first, then ever longer."""
    return min(0.05 * 2 ** (failures_in_a_row - 2), 2.0) if failures_in_a_row > 1 else 0.0
