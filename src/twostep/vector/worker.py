"""What a worker process of `VectorEnv` does: it steps one group of environments, as often as it is told to.

A worker is started with four descriptors: its end of a socket pair, a pipe that closes when its parent ends, a file for
its last words, and memory that it shares with its parent. It answers every frame (`channels.Frame`) with one frame, in
this order and never unasked:

| frame | message | answer | message of the answer |
|---|---|---|---|
| `MAKE` | `Setup`: functions that make environments | `DONE` | `Made`: spaces and agents |
| `MEMORY`, once the parent knows the size | rows in all, first row of this worker | `DONE` | |
| `STEP`; actions are in shared memory | tasks to assign, if any | `DONE` + what is there | infos of ended episodes |
| `RESET` | `(seed, indices)` as `RowEnv` groups take them, and tasks to assign before | `DONE` + what is there | |
| `CALL` | `(name, args, indices)` | `DONE` | list of results, or the `Trouble` that the call raised |
| `KEEP` | | `DONE` | `state_dict()` of its group, or the `Trouble` that this raised |
| `TAKE_UP` | what `KEEP` answered | `DONE` | |
| `CLOSE` | | none: it closes the environments and exits | |

What `STEP` and `RESET` find goes into shared memory; the bits added to `DONE` say what the parent must look at there:
`ENDED` (rows with a last observation), `ABSENT` (rows that are not valid), `MASKED` (masks). Where anything raises, the
answer to any frame is `RAISED` with a `Trouble`. Environments, rows and indices count from 0 in each worker.
"""

from __future__ import annotations

import os
import signal
import socket
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from twostep.protocols import Step
from twostep.tree import Tree, tree_leaves
from twostep.vector.channels import Channel, ChannelClosed, packed_for_parent, packed_for_worker, unpacked
from twostep.vector.endings import end_with, keep_last_words
from twostep.vector.groups import make_group
from twostep.vector.places import count_envs_from
from twostep.vector.shared import SharedRows, mapped

MAKE, MEMORY, STEP, RESET, CALL, KEEP, TAKE_UP, CLOSE = range(1, 9)
DONE, ENDED, ABSENT, MASKED, RAISED = 0, 1, 2, 4, 64


@dataclass(frozen=True)
class Setup:
    """What makes the environments of one worker."""

    factories: list[Any]
    first_env: int
    agent_ids: Any
    opponent: Any
    check: bool


class Made(NamedTuple):
    """What the environments of a worker are like."""

    observation_space: Any
    action_space: Any
    rows_per_env: int
    agent_ids: tuple[Any, ...]
    possible_agents: tuple[Any, ...]
    takes_tasks: bool
    name: str


class Trouble(NamedTuple):
    """What was raised: packed on its own, because it may not come through, and in words, which always do."""

    error: bytes | None
    summary: str
    traceback: str
    ends_processes: bool
    """It was SystemExit or its like, to which nobody adds the place."""


class Group(Protocol):
    """Environments stepped in one process (`twostep.vector.groups`)."""

    num_rows: int
    observation_space: Any
    action_space: Any
    rows_per_env: int
    agent_ids: tuple[Any, ...]
    possible_agents: tuple[Any, ...]
    working_on: Any
    """Where a group notes, as `working_on[0]`, which environment it is stepping; shared with the parent."""

    def reset(self, seed: Any = None, indices: Any = None) -> Step:
        """Begin episodes."""
        ...

    def step(self, actions: Tree) -> Step:
        """Take one action per row."""
        ...

    def assign(self, tasks: Mapping[int, Any]) -> None:
        """Give environments their next tasks; groups that `Made.takes_tasks` says no of need not have it."""
        ...

    def call(self, name: str, *args: Any, indices: Any = None) -> list[Any]:
        """Call a method of environments."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return where every environment stands."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        ...

    def close(self) -> None:
        """Close the environments."""
        ...


class Worker:
    """Answers one parent until it says `CLOSE` or is gone."""

    group: Group
    rows: SharedRows

    def __init__(self, channel: Channel, memory: int) -> None:
        self._channel, self._memory = channel, memory
        self._close: Callable[[], None] = lambda: None
        self._answers: dict[int, Callable[[bytes], tuple[int, bytes | None]]] = {
            MAKE: self._make,
            MEMORY: self._share,
            STEP: self._step,
            RESET: self._reset,
            CALL: self._call,
            KEEP: self._keep,
            TAKE_UP: self._take_up,
        }

    def run(self) -> None:
        """Answer, one frame after the other."""
        channel, answers = self._channel, self._answers
        while True:
            kind, message = channel.receive()
            if kind == CLOSE:
                break
            try:
                kind, reply = answers[kind](message)
            except BaseException as error:  # also SystemExit: what an environment does must not look like our own end
                kind, reply = RAISED, _trouble(error)
            channel.send(kind, reply)
        self._close()

    def _make(self, message: bytes) -> tuple[int, bytes]:
        setup: Setup = unpacked(message)
        count_envs_from(setup.first_env)
        self.group = _group(setup)
        group = self.group
        self._close = group.close
        made = Made(
            group.observation_space,
            group.action_space,
            group.rows_per_env,
            group.agent_ids,
            group.possible_agents,
            hasattr(group, "assign"),
            getattr(group, "spec_name", type(group).__name__),
        )
        return DONE, packed_for_parent(made, "The spaces of the environments")

    def _share(self, message: bytes) -> tuple[int, None]:
        group = self.group
        num_rows, first_row = unpacked(message)
        rows = SharedRows.over(mapped(self._memory), group.observation_space, group.action_space, num_rows)
        self.rows = rows.rows(first_row, first_row + group.num_rows)
        group.working_on = self.rows.working_on.data
        group.working_on[0] = -1
        self._show_obs = _copier(self.rows.obs)
        self._show_masks = _copier(self.rows.masks)
        return DONE, None

    def _reset(self, message: bytes) -> tuple[int, None]:
        seed, indices, tasks = unpacked(message)
        if tasks:
            self.group.assign(tasks)
        step = self.group.reset(seed, indices)
        self.rows.working_on[0] = -1
        return self._show(step), None

    def _step(self, message: bytes) -> tuple[int, bytes | None]:
        rows = self.rows
        if message:
            self.group.assign(unpacked(message))
        step = self.group.step(rows.actions)
        rows.working_on[0] = -1
        rows.rewards[...] = step.rewards
        rows.terminated[...] = step.terminated
        rows.truncated[...] = step.truncated
        found = self._show(step)
        if step.valid is None:
            rows.valid.fill(True)
        else:
            rows.valid[...] = step.valid
            found |= ABSENT
        rows.final.fill(False)
        if step.final_rows is not None and len(step.final_rows):
            rows.final[step.final_rows] = True
            for shown, leaf in zip(tree_leaves(rows.final_obs), tree_leaves(step.final_obs), strict=True):
                shown[step.final_rows] = leaf
            found |= ENDED
        return found, packed_for_parent(step.infos, "The info of an ended episode") if step.infos else None

    def _show(self, step: Step) -> int:
        """Let the parent see what every answer holds, and say whether there are masks."""
        self._show_obs(step.obs)
        self.rows.episode_starts[...] = step.episode_starts
        self.rows.present[...] = True if step.present is None else step.present
        if step.action_masks is None:
            return DONE
        self._show_masks(step.action_masks)
        return MASKED

    def _call(self, message: bytes) -> tuple[int, bytes]:
        name, args, indices = unpacked(message)
        try:
            return DONE, packed_for_parent(self.group.call(name, *args, indices=indices), f"What {name} returned")
        except Exception as error:
            return DONE, _trouble(error)

    def _keep(self, _: bytes) -> tuple[int, bytes]:
        try:
            return DONE, packed_for_parent(self.group.state_dict(), "The state of the environments")
        except Exception as error:
            return DONE, _trouble(error)

    def _take_up(self, message: bytes) -> tuple[int, None]:
        self.group.load_state_dict(unpacked(message))
        self.rows.working_on[0] = -1
        return DONE, None


def _group(setup: Setup) -> Group:
    first = setup.factories[0]
    if setup.opponent is None and hasattr(first, "make_rows") and all(one is first for one in setup.factories):
        return first.make_rows(len(setup.factories), agent_ids=setup.agent_ids)
    return make_group(setup.factories, agent_ids=setup.agent_ids, opponent=setup.opponent, check=setup.check)


def _copier(memory: Tree) -> Callable[[Tree], None]:
    """Return the function that copies a tree into `memory`."""
    if isinstance(memory, np.ndarray):
        return lambda tree: memory.__setitem__(..., tree)
    leaves = tree_leaves(memory)

    def copy(tree: Tree) -> None:
        for kept, leaf in zip(leaves, tree_leaves(tree), strict=True):
            kept[...] = leaf

    return copy


def _trouble(error: BaseException) -> bytes:
    words = "".join(traceback.format_exception(error)).rstrip()
    try:
        sent = packed_for_worker(error, "The error")
    except Exception:
        sent = None
    summary = "".join(traceback.format_exception_only(error)).rstrip()
    return packed_for_parent(Trouble(sent, summary, words, not isinstance(error, Exception)), "The error")


def serve(end: int, lifeline: int, words: int, memory: int) -> None:
    """Be a worker, with these descriptors, until the parent closes it or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    for descriptor in (end, lifeline, words, memory):
        os.set_inheritable(descriptor, False)
    end_with(lifeline)
    keep_last_words(words)
    try:
        with socket.socket(fileno=end) as own_end:
            Worker(Channel(own_end), memory).run()
    except ChannelClosed:
        os._exit(1)
