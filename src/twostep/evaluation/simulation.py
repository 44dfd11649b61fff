"""One case of a suite: the policy plays some rows of an environment, somebody else the others, episode by episode."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from twostep.errors import ConfigError, TwostepError
from twostep.evaluation.scores import CaseScores
from twostep.policies.playing import Player, to_numpy
from twostep.protocols import Step
from twostep.store.spaces import space_to_plain
from twostep.suites import HEURISTIC, SimulationCase
from twostep.tree import Tree, tree_map
from twostep.vector import make_env

Rows = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
Infos = Sequence[Mapping[str, Any]]

SUCCESS = ("won", "is_success", "success")
"""What an environment's last info may call a success."""


class StoppedError(Exception):
    """Nobody wants the scores any more."""


def play_case(
    name: str,
    case: SimulationCase,
    policy: Any,
    opponent: Any,
    seed: int,
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> CaseScores:
    """Play a case whose every setting is filled in; the same arguments give the same scores.

    Each environment plays a number of episodes that is fixed beforehand. Taking whichever end first would favour short
    ones.

    Args:
        opponent: The policy of the agents that `policy` does not play; None leaves them to the environment's own.
        stopped: Asked before every step; StoppedError is raised where it says yes.
    """
    started = time.perf_counter()
    deadline = started + (case.max_time_s or math.inf)
    with ExitStack() as stack:
        try:
            env, learns = _made(case, opponent)
            stack.callback(env.close)
            tally = _Tally(name, case, np.arange(env.num_rows).reshape(-1, len(learns)), learns)
            seats = [
                _Seat(stack.enter_context(Player(player, env.action_space, len(rows), own_seed)), rows)
                for player, rows, own_seed in _seated(env, case, tally, (policy, opponent), seed)
            ]
            _play(env, seats, tally, seed, deadline, stopped)
        except TwostepError as error:
            raise type(error)(f"{name}: {error}") from error
    return tally.finished(time.perf_counter() - started)


def _made(case: SimulationCase, opponent: Any) -> tuple[Any, Flags]:
    """Make the environments, with the rows of both sides where an opponent plays one; say which rows are the policy's.

    The answer has an entry for each agent of an environment.
    """
    env = _envs(case, case.agent_ids or None)
    own: tuple[Any, ...] = tuple(getattr(env, "agent_ids", ()))
    if opponent is None:
        return env, np.ones(max(1, len(own)), dtype=np.bool_)
    env.close()
    everybody: tuple[Any, ...] = tuple(getattr(env, "possible_agents", ()))
    if len(everybody) == len(own):
        whom = f"the agents {', '.join(map(str, everybody))}, all of them the policy's" if own else "a single agent"
        raise ConfigError(
            f"npc={case.npc!r} plays nobody: the environment has {whom}. Say npc={HEURISTIC!r} for this case, or name "
            "with agent_ids whom the policy plays."
        )
    both = _envs(case, everybody)
    return both, np.array([agent in own for agent in both.agent_ids])


def _envs(case: SimulationCase, agent_ids: tuple[Any, ...] | None) -> Any:
    assert case.episodes is not None
    assert case.num_envs is not None
    env = make_env(case.env, min(case.num_envs, case.episodes), agent_ids=agent_ids, **case.kwargs)
    if case.max_steps is not None and "indices" not in signature(env.reset).parameters:
        env.close()
        raise ConfigError(
            f"max_steps={case.max_steps} cannot cut the episodes of {type(env).__name__}, which begins them by itself. "
            "Leave max_steps out, and limit episodes by the environment's own arguments."
        )
    return env


def _seated(
    env: Any, case: SimulationCase, tally: _Tally, policies: tuple[Any, Any], seed: int
) -> Iterator[tuple[Any, Rows, int | None]]:
    """Say who plays which rows, and what the player draws actions from; None takes the most likely ones."""
    sampling = np.random.SeedSequence(seed).generate_state(2).tolist()
    for policy, rows, own_seed in zip(policies, (tally.rows_of(True), tally.rows_of(False)), sampling, strict=True):
        if len(rows):
            _require_fitting(policy, env)
            yield policy, rows, None if case.deterministic else own_seed


def _play(env: Any, seats: list[_Seat], tally: _Tally, seed: int, deadline: float, stopped: Callable[[], bool]) -> None:
    """Play until all episodes that are owed have ended, or the time is up."""
    step = env.reset(seed)
    tally.begin(step)
    while not tally.complete:
        if stopped():
            raise StoppedError
        if time.perf_counter() > deadline:
            tally.scores.out_of_time = True
            break
        step = env.step(_actions(seats, step))
        step = _cut(env, step, tally.count(step))
        tally.begin(step)


class _Seat(NamedTuple):
    """Who plays which rows."""

    player: Player
    rows: Rows


def _actions(seats: list[_Seat], step: Step) -> Tree:
    """Return one action per row."""
    if len(seats) == 1:
        return seats[0].player.act(step)
    chosen = [seat.player.act(_seen(step, seat.rows)) for seat in seats]
    order = np.argsort(np.concatenate([seat.rows for seat in seats]))
    return tree_map(lambda *leaves: np.concatenate(leaves)[order], *chosen)


def _seen(step: Step, rows: Rows) -> Step:
    """Return what some rows see of a step."""
    obs, starts, masks = (
        tree_map(lambda leaf: leaf[rows], tree) for tree in (step.obs, step.episode_starts, step.action_masks)
    )
    return Step(obs, starts, action_masks=masks)


def _cut(env: Any, step: Step, envs: list[int]) -> Step:
    """Begin new episodes in some environments; what began in others in the same step stays begun."""
    if not envs:
        return step
    begun = np.array(to_numpy(step.episode_starts))
    step = env.reset(indices=envs)
    step.episode_starts = to_numpy(step.episode_starts) | begun
    return step


class _Tally:
    """Counts the episodes that each environment owes."""

    def __init__(self, name: str, case: SimulationCase, rows: Rows, learns: Flags) -> None:
        assert case.episodes is not None
        self.scores = CaseScores(name)
        self._most = case.max_steps or math.inf
        self._rows, self._learns = rows, learns
        count = len(rows)
        self._owed = [case.episodes // count + (env < case.episodes % count) for env in range(count)]
        self._there = np.zeros(rows.shape, dtype=np.bool_)
        self._returns = np.zeros(rows.shape)
        self._steps = np.zeros(count, dtype=np.int64)
        self._infos: list[dict[int, Mapping[str, Any]]] = [{} for _ in range(count)]
        self._ended: list[list[tuple[float, int, float | None]]] = [[] for _ in range(count)]

    @property
    def complete(self) -> bool:
        return not any(self._owed)

    def rows_of(self, side: bool) -> Rows:
        """Return the rows of those who are scored, or of the others."""
        return self._rows[:, self._learns == side].ravel()

    def begin(self, step: Step) -> None:
        """Take note of which agents are there now."""
        self._there |= to_numpy(step.episode_starts).reshape(self._there.shape)

    def count(self, step: Step) -> list[int]:
        """Take in one step, and return in which environments an episode has to be cut; phantom steps count nothing."""
        shape = self._there.shape
        rewards, terminated, truncated = (
            to_numpy(part).reshape(shape) for part in (step.rewards, step.terminated, step.truncated)
        )
        valid = np.ones(shape, dtype=np.bool_) if step.valid is None else to_numpy(step.valid).reshape(shape)
        were_there = self._there.any(1)
        self._returns += np.where(valid, rewards, 0.0)
        self._steps += valid.any(1)
        self._there &= ~(terminated | truncated)
        for row, info in step.infos.items():
            env, agent = divmod(row, len(self._learns))
            self._infos[env][agent] = info
        over = were_there & ~self._there.any(1)
        overdue = were_there & ~over & (self._steps >= self._most)
        for env in np.flatnonzero(over | overdue).tolist():
            self._end(env, cut=bool(overdue[env]))
        return np.flatnonzero(overdue).tolist()

    def _end(self, env: int, *, cut: bool) -> None:
        if self._owed[env]:
            self._owed[env] -= 1
            self.scores.cut += cut
            told = self._infos[env].items()
            own, others = ([info for agent, info in told if self._learns[agent] == side] for side in (True, False))
            mean = float(self._returns[env][self._learns].mean())
            self._ended[env].append((mean, int(self._steps[env]), _result(own, others)))
        self._returns[env] = 0.0
        self._steps[env] = 0
        self._there[env] = False
        self._infos[env] = {}

    def finished(self, seconds: float) -> CaseScores:
        """Return what was counted. An episode of which nobody knows who won, among others, was not won."""
        for ret, length, result in (episode for env in self._ended for episode in env):
            self.scores.returns.append(ret)
            self.scores.lengths.append(length)
            self.scores.results.append(math.nan if result is None else result)
        if all(map(math.isnan, self.scores.results)):
            self.scores.results.clear()
        self.scores.results = [0.0 if math.isnan(result) else result for result in self.scores.results]
        self.scores.seconds = seconds
        return self.scores


def _result(own: Infos, others: Infos) -> float | None:
    """Return 1 for won, 0.5 for drawn, 0 for lost; None where no last info tells."""
    ours, theirs = ([info[name] for info in infos for name in SUCCESS if name in info] for infos in (own, others))
    if not ours and not theirs:
        return None
    if any(ours):
        return 1.0
    outcomes = [info["outcome"] for info in own if isinstance(info.get("outcome"), Mapping)]
    drawn = any(outcome.get("winner") == "draw" for outcome in outcomes)
    return 0.5 if drawn or (theirs and not any(theirs)) else 0.0


def _require_fitting(policy: Any, env: Any) -> None:
    """Refuse a policy that was built for other observations or actions, where it tells."""
    for what in ("observation_space", "action_space"):
        built_for, space = getattr(policy, what, None), getattr(env, what)
        if built_for is not None and _form(built_for, what) != _form(space, what):
            raise ConfigError(
                f"the policy was built for {what.replace('_', ' ')} {built_for}, but the environment has {space}. A "
                "suite's cases must have those of the policy's own environment."
            )


def _form(space: Any, what: str) -> Any:
    """Return what of a space a policy depends on: bounds of observations are none of it."""

    def without_bounds(plain: Any) -> Any:
        if isinstance(plain, list):
            return [without_bounds(part) for part in plain]
        if isinstance(plain, dict):
            return {name: without_bounds(part) for name, part in plain.items() if name not in ("low", "high")}
        return plain

    plain = space_to_plain(space)
    return plain if what == "action_space" else without_bounds(plain)
