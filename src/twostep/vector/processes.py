"""Environments in worker processes, stepped as one, that survive the death of any of these processes."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, cast, overload

import numpy as np

from twostep.errors import EnvError, StateError
from twostep.protocols import Step
from twostep.seeds import Seeds, resets
from twostep.tree import Tree, tree_leaves, tree_map
from twostep.vector.agents import AgentId, OpponentMaker
from twostep.vector.channels import Frame, packed_for_worker, unpacked
from twostep.vector.crew import Crew
from twostep.vector.failures import error_of, raised_error, worker_name
from twostep.vector.launching import StartMethod
from twostep.vector.ledger import Ledger
from twostep.vector.members import Loss, Member
from twostep.vector.named import NamedReset, Names
from twostep.vector.parts import env_sources, first_envs, one_kind, own_seed, require_limits
from twostep.vector.recovery import Recovery
from twostep.vector.shared import ActionWriter, SharedRows, bytes_needed, mapped
from twostep.vector.snapshots import require_begun, states_of
from twostep.vector.tasks import require_envs
from twostep.vector.worker import ABSENT, CALL, ENDED, KEEP, MASKED, RESET, STEP, TAKE_UP, Made, Setup, Trouble


class VectorEnv:
    """Environments in worker processes as one `RowEnv`, row for row the same as in this process.

    Args:
        num_envs: Number of environments.
        env_cfg: A function that makes one, also a lambda or one of the main module; a config with `make()`, or with
            `make_rows(num_envs, ...)` for many at once; a Gymnasium id; or a list of `num_envs` of these.
        num_workers: Number of processes, each with a part of the environments; None for as many as there are cores.
            More can help where steps are long and of uneven length.
        seed: What the first `reset` without a seed uses; None takes the seed of a config that has one.
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
        agent_ids: AgentId | Sequence[AgentId] | None = None,
        opponent: OpponentMaker | None = None,
        step_timeout: float = 60.0,
        start_timeout: float = 300.0,
        start_method: StartMethod = "spawn",
        restarts: int = 0,
        check: bool = True,
    ) -> None:
        require_limits(step_timeout, start_timeout, restarts)
        sources, firsts = env_sources(num_envs, env_cfg), first_envs(num_envs, num_workers)
        self.num_envs = num_envs
        self._seed = own_seed(env_cfg) if seed is None else seed
        self._step_timeout = step_timeout
        setups = [
            Setup(sources[first:last], first, agent_ids, opponent, check and first == 0)
            for first, last in zip(firsts, [*firsts[1:], num_envs], strict=True)
        ]
        self._crew = Crew(setups, start_method, start_timeout)
        self._finalizer = weakref.finalize(self, self._crew.close)
        try:
            self._raise_any(self._crew.start(self._crew.members))
            self._allocate(one_kind(self._crew.members), restarts)
        except BaseException:
            self.close()
            raise

    def _allocate(self, made: Made, restarts: int) -> None:
        self.observation_space, self.action_space, self.rows_per_env, self.agent_ids, self.possible_agents = made[:5]
        self._takes_tasks, self.spec_name = made.takes_tasks, made.name
        self.num_rows = self.num_envs * self.rows_per_env
        spaces = self.observation_space, self.action_space
        os.ftruncate(self._crew.memory, bytes_needed(*spaces, self.num_rows))
        self._rows = SharedRows.over(mapped(self._crew.memory), *spaces, self.num_rows)
        self._rows.working_on.fill(-1)
        for mask in tree_leaves(self._rows.masks):
            mask.fill(True)
        self._raise_any(self._crew.share(self.num_rows))
        self._writer = ActionWriter(self.action_space, self._rows.actions)
        self._names = Names(self.num_envs, self.agent_ids, self.action_space)
        self._ledger = Ledger(self.num_envs, self._rows)
        self._recovery = Recovery(self._crew, self._ledger, self._rows, restarts, self._step_timeout)
        self._has_begun = self._is_running = self._is_masked = False

    @property
    def failures(self) -> int:
        """How many times a worker has failed so far."""
        return self._recovery.failures

    @overload
    def reset(self, seed: Seeds | None = None, indices: Sequence[int] | None = None) -> Step: ...

    @overload
    def reset(self, *, seeds: Seeds, indices: Sequence[int] | None = None) -> NamedReset: ...

    def reset(
        self,
        seed: Seeds | None = None,
        indices: Sequence[int] | None = None,
        *,
        seeds: Seeds | None = None,
    ) -> Step | NamedReset:
        """Start every environment anew, or those of `indices`; a seed, or one for each, decides all that follows.

        With `seeds` the answer comes as lists of dicts (`twostep.vector.named`). After an error this starts workers
        anew that are gone.
        """
        self._require_open()
        if indices is not None and not self._is_running:
            raise EnvError("reset was called with indices before all environments have begun. Call reset() first.")
        if seed is not None and seeds is not None:
            raise EnvError(
                "reset was given both seed and seeds, which say the same. Keep one: seeds for lists of dicts."
            )
        seed = seed if seeds is None else seeds
        if seed is None and not self._has_begun:
            seed = self._seed if self._seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
        chosen = dict(resets(seed, self.num_envs, indices))
        self._is_running = False
        self._crew.settle(self._step_timeout)
        self._ledger.note_seeds(chosen)
        self._begin(chosen)
        step = self._begun()
        return step if seeds is None else self._names.begun(step, list(chosen))

    def _begin(self, chosen: Mapping[int, int | None]) -> None:
        """Begin new episodes of the chosen environments, in new processes where the old ones are gone."""
        self._rows.episode_starts.fill(False)
        told: dict[Member, Frame] = {}
        for member, envs in self._parts(chosen).items():
            seeds = [chosen[member.first_env + env] for env in envs]
            indices = None if len(chosen) == self.num_envs else envs
            tasks = self._ledger.tasks_of(member.first_env, member.first_env + member.num_envs)
            message = (None if None in seeds else seeds, indices, tasks)
            told[member] = Frame(RESET, packed_for_worker(message, "Seeds or tasks"))
        losses = self._recovery.start([member for member in told if member.channel is None])
        lost = {loss.member for loss in losses}
        told = {member: frame for member, frame in told.items() if member not in lost}
        answers, more = self._crew.ask(told, self._step_timeout)
        answers |= self._recovery.replace(losses + more)
        self._is_masked |= any(frame.kind & MASKED for frame in answers.values())

    def _begun(self) -> Step:
        """Return what a reset has led to."""
        rows = self._rows
        for member in self._crew.members:
            if member.was_replaced:
                rows.episode_starts[self._rows_of(member)] = True
                member.was_replaced = False
        self._ledger.note_episodes()
        self._has_begun = self._is_running = True
        masks = rows.masks if self._is_masked else None
        self._last = Step(rows.obs, rows.episode_starts, action_masks=masks, present=rows.present)
        return self._last

    def step(self, actions: Tree) -> Any:
        """Take one action per row and return a `Step`; rows that end start anew at once, listed in `final_rows`.

        A list of dicts of actions by agent, one per environment, is answered by five such lists
        (`twostep.vector.named`).
        """
        self._require_open()
        if not self._is_running:
            raise EnvError("step was called before reset, or after an error. Call reset first.")
        if not isinstance(actions, list) or not isinstance(next(iter(actions), None), Mapping):
            return self._step(actions)
        self._names.note(self._last)
        row_actions = self._names.row_actions(cast("list[Mapping[Any, Any]]", actions))
        return self._names.stepped(self._step(row_actions))

    def _step(self, actions: Tree) -> Step:
        self._writer.write(actions)
        self._is_running = False
        told = {member: _STEP for member in self._crew.members if not member.was_replaced}
        if self._ledger.untold:
            told = {member: self._with_tasks(member) for member in told}
        answers, losses = self._crew.ask(told, self._step_timeout)
        self._ledger.note_step()
        found = 0
        infos: dict[int, dict[str, Any]] = {}
        for member, (kind, message) in answers.items():
            member.failures_in_a_row = 0
            found |= kind
            if message:
                first = member.first_env * self.rows_per_env
                infos |= {first + row: info for row, info in unpacked(message).items()}
        if losses:
            self._recovery.replace(losses)
        self._last = self._stepped(found, infos)
        self._is_running = True
        return self._last

    def _with_tasks(self, member: Member) -> Frame:
        """Return the order to step, with the tasks that a worker has not been told yet."""
        tasks = self._ledger.untold_tasks(member.first_env, member.first_env + member.num_envs)
        return Frame(STEP, packed_for_worker(tasks, "A task")) if tasks else _STEP

    def _stepped(self, found: int, infos: dict[int, dict[str, Any]]) -> Step:
        rows = self._rows
        broken = [member for member in self._crew.members if member.was_replaced]
        for member in broken:
            self._break_off(member)
        step = Step(rows.obs, rows.episode_starts, rows.rewards, rows.terminated, rows.truncated, infos=infos)
        step.present = rows.present
        if self._is_masked:
            step.action_masks = rows.masks
        if found & ABSENT or broken:
            step.valid = rows.valid
        if found & ENDED:
            step.final_rows = np.flatnonzero(rows.final)
            step.final_obs = tree_map(lambda leaf: leaf[step.final_rows], rows.final_obs)
        if found & ENDED or broken:
            self._ledger.note_episodes()
        return step

    def _break_off(self, member: Member) -> None:
        """Let a step say that it could not be finished in the rows of one worker, whose new episodes have begun."""
        rows, part = self._rows, self._rows_of(member)
        rows.rewards[part] = 0.0
        for flags in (rows.terminated, rows.valid, rows.final):
            flags[part] = False
        for flags in (rows.truncated, rows.episode_starts):
            flags[part] = True
        member.was_replaced = False

    def assign(self, tasks: Mapping[int, Any]) -> None:
        """Give environments, by number, what they play from their next episodes on (`twostep.vector.tasks`).

        They are told with the next step or reset, and again where their worker has been replaced.
        """
        if not self._takes_tasks:
            raise EnvError(f"{self.spec_name} steps all its environments as one and takes no tasks for single ones.")
        require_envs(tasks, self.num_envs)
        self._ledger.note_tasks(tasks)

    @property
    def pids(self) -> list[int | None]:
        """The process of each worker; None for one that is gone."""
        return [member.pid for member in self._crew.members]

    def call(self, name: str, *args: Any, indices: Sequence[int] | None = None) -> list[Any]:
        """Call the method `name` of every environment, or of those of `indices`, or read the attribute `name`."""
        self._require_open()
        self._crew.settle(self._step_timeout)
        chosen = [index for index, _ in resets(None, self.num_envs, indices)]
        parts = self._parts(chosen)
        what = f"The arguments of {name}"
        told = {member: Frame(CALL, packed_for_worker((name, args, envs), what)) for member, envs in parts.items()}
        results: dict[int, Any] = {}
        while told:
            answers, losses = self._crew.ask(told, self._step_timeout)
            for member, frame in answers.items():
                found: list[Any] | Trouble = unpacked(frame.message)
                if isinstance(found, Trouble):
                    raise raised_error(found, f"{worker_name(member)}, in a call of {name}.")
                results |= {member.first_env + env: value for env, value in zip(parts[member], found, strict=True)}
            self._recovery.replace(losses)
            told = {loss.member: told[loss.member] for loss in losses}
        self._ledger.calls |= {(env, name): args for env, value in results.items() if args and value is None}
        return [results[env] for env in chosen]

    def state_dict(self) -> dict[str, Any]:
        """Return where every environment stands in its episode; `twostep.vector.snapshots` says which ones can tell."""
        self._require_open()
        require_begun(self._is_running)
        self._crew.settle(self._step_timeout)
        answers, losses = self._crew.ask(dict.fromkeys(self._crew.members, Frame(KEEP)), self._step_timeout)
        self._recovery.replace(losses)
        if any(member.was_replaced for member in self._crew.members):
            raise StateError("A worker has just failed, so there is no whole state to keep. Ask after the next step.")
        found: list[Any] = [unpacked(answers[member].message) for member in self._crew.members]
        for member, part in zip(self._crew.members, found, strict=True):
            if isinstance(part, Trouble):
                raise StateError(f"{worker_name(member)}: {part.summary.partition(': ')[2]}")
        return {"envs": [one for part in found for one in part["envs"]], "ledger": self._ledger.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken, here or in one process; for `step` with rows of actions."""
        kept = states_of(state, self.num_envs)
        self.reset()
        told: dict[Member, Frame] = {}
        for member in self._crew.members:
            part = {"envs": kept[member.first_env : member.first_env + member.num_envs]}
            told[member] = Frame(TAKE_UP, packed_for_worker(part, "The state"))
        self._is_running = False
        self._raise_any(self._crew.ask(told, self._step_timeout)[1])
        self._is_running = True
        if "ledger" in state:
            self._ledger.load_state_dict(state["ledger"])

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
            first = min(losses, key=lambda loss: loss.member.number)
            raise error_of(first, "", "Mend what makes the environments.")

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
