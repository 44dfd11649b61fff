"""Learning in matches against past selves: some rows are shown to the collector, frozen opponents play the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from twostep.checkpoint import generator_state, restore_generator
from twostep.collect.league import League, Member
from twostep.errors import ConfigError, EnvError, StateError
from twostep.policies.playing import choose, device_of, to_numpy
from twostep.protocols import Step
from twostep.seeds import Seeds
from twostep.tree import Tree, tree_map, tree_stack
from twostep.vector.agents import chosen_agents

Infos = Sequence[Mapping[str, Any]]
Rows = npt.NDArray[np.intp]
Score = Callable[[Infos, Infos], float | None]
"""From the last infos of the learners and of the others to how the match went, see `won_or_drawn`."""


def won_or_drawn(learners: Infos, others: Infos) -> float | None:
    """Return 1 where a learner's info says `won`, 0 where another's does, 0.5 for neither; None where none says it."""
    if not any("won" in info for info in (*learners, *others)):
        return None
    if any(info.get("won") for info in learners):
        return 1.0
    return 0.0 if any(info.get("won") for info in others) else 0.5


class SelfPlay:
    """An environment of teams as a `RowEnv` of the learners' rows; members of a league play the other rows.

    Every environment draws its opponent at the start of every match, so a rollout meets many. An opponent acts by
    chance, as it did when it learned, with memory of its own that it forgets at the start of a match.

    Args:
        env: A group of environments whose rows stand for agents of both sides, such as
            `SkirmishRows(config, 16, agent_ids="*")`.
        league: Who plays against the learners, and where results are written down.
        learners: Whose rows are shown, by ids or patterns.
        heuristic: A function that returns what the scripted player would do next in every row of `env`; None calls
            each environment's `scripted_actions()`, which answers for all possible agents.
        score: How a match that has ended went, for the league's results.
        seed: Decides opponents and their actions, until `reset` is given a seed; None draws one.
    """

    def __init__(
        self,
        env: Any,
        league: League,
        learners: str | Sequence[str] = "blue_*",
        *,
        heuristic: Callable[[], Tree] | None = None,
        score: Score = won_or_drawn,
        seed: int | None = None,
    ) -> None:
        self.env, self.league, self._score, self._seed = env, league, score, seed
        self._heuristic = heuristic or _scripted_by(env)
        self.possible_agents = env.possible_agents
        chosen = chosen_agents(env.agent_ids, learners)
        self.agent_ids = tuple(agent for agent in env.agent_ids if agent in chosen)
        if len(self.agent_ids) == len(env.agent_ids):
            raise ConfigError(
                f"learners={learners!r} covers all {len(env.agent_ids)} agents that the environment's rows stand for, "
                "so there is nobody to play against. Make it with the rows of both sides, such as agent_ids='*'."
            )
        self.num_envs, self.rows_per_env = env.num_envs, len(self.agent_ids)
        self.num_rows = self.num_envs * self.rows_per_env
        self.observation_space, self.action_space = env.observation_space, env.action_space
        learns = np.array([agent in chosen for agent in env.agent_ids])
        rows = np.arange(env.num_rows).reshape(self.num_envs, -1)
        self._learner_rows, self._other_rows = rows[:, learns], rows[:, ~learns]  # [envs, agents]
        self._place = np.full(env.num_rows, -1)
        self._place[self._learner_rows.ravel()] = np.arange(self.num_rows)
        self.opponents: list[Member] = []
        """Whom each environment's learners play against now."""
        self._seen: Step | None = None
        self._memory: Tree = ()

    def reset(self, seed: Seeds | None = None, indices: Sequence[int] | None = None) -> Step:
        """Begin all matches anew, or those of `indices`, each with an opponent newly drawn."""
        step = self.env.reset(seed) if indices is None else self.env.reset(seed, indices)
        if self._seen is None or (seed is not None and indices is None):
            self._begin(self._seed if seed is None else seed)
        self._meet(self._begun(step))
        self._seen = step
        return self._shown(step)

    def _begin(self, seed: Seeds | None) -> None:
        """Let everything random depend on a seed, and make room for memory where the policy is by now."""
        drawing, acting = np.random.SeedSequence(seed).spawn(2)
        self._random = np.random.default_rng(drawing)
        self._device = device_of(self.league.policy)
        self._generator = torch.Generator(self._device).manual_seed(int(acting.generate_state(1)[0]))
        self.opponents = [self.league.heuristic] * self.num_envs
        with torch.inference_mode():
            self._memory = self.league.policy.initial_state(self._other_rows.size)

    def step(self, actions: Tree) -> Step:
        """Let the learners act, `[B, ...]`, and their opponents with them."""
        if self._seen is None:
            raise EnvError("step was called before reset: no match has begun. Call reset first.")
        step = self.env.step(self._everybody(actions))
        opponents = [member.name for member in self.opponents]
        begun = self._begun(step)
        for env in begun:
            self._write_down(env, step)
        self._meet(begun)
        self._seen = step
        shown = self._shown(step)
        for row, info in shown.infos.items():
            shown.infos[row] = {**info, "opponent": opponents[row // self.rows_per_env]}
        return shown

    def _begun(self, step: Step) -> list[int]:
        """Return which environments begin a match in this step."""
        starts = to_numpy(step.episode_starts).reshape(self.num_envs, -1)
        return np.flatnonzero(starts.all(1)).tolist()

    def _meet(self, envs: list[int]) -> None:
        for env, member in zip(envs, self.league.draw(len(envs), self._random), strict=True):
            self.opponents[env] = member
            if member.policy is not None:
                member.policy.to(self._device)

    def _write_down(self, env: int, step: Step) -> None:
        """Give the result of a match to the league."""
        own, others = (
            [step.infos[row] for row in rows[env].tolist() if row in step.infos]
            for rows in (self._learner_rows, self._other_rows)
        )
        score = self._score(own, others)
        if score is not None:
            self.opponents[env].results.add(score)

    def _everybody(self, actions: Tree) -> Tree:
        """Return one action per row of the environment."""
        own = tree_map(np.asarray, actions)
        everybody = tree_map(lambda leaf: np.zeros((self.env.num_rows, *leaf.shape[1:]), leaf.dtype), own)
        _put(everybody, self._learner_rows.ravel(), own)
        for member, envs in self._played().items():
            rows = self._other_rows[envs].ravel()
            if member.policy is None:
                scripted = self._heuristic()
                _put(everybody, rows, tree_map(lambda leaf, rows=rows: leaf[rows], scripted))
            else:
                places = np.arange(self._other_rows.size).reshape(self._other_rows.shape)[envs].ravel()
                _put(everybody, rows, self._chosen(member, rows, torch.as_tensor(places, device=self._device)))
        return everybody

    def _played(self) -> dict[Member, list[int]]:
        """Return the environments in which each opponent plays."""
        played: dict[Member, list[int]] = {}
        for env, member in enumerate(self.opponents):
            played.setdefault(member, []).append(env)
        return played

    @torch.inference_mode()
    def _chosen(self, member: Member, rows: Rows, places: torch.Tensor) -> Tree:
        """Return what a frozen policy does in `rows`, whose memory is at `places`."""
        seen = self._seen
        assert seen is not None
        own = Step(*_taken(rows, seen.obs, seen.episode_starts), action_masks=_taken(rows, seen.action_masks)[0])
        memory = tree_map(lambda leaf: leaf[places], self._memory)
        actions, memory = choose(member.policy, own, memory, self._generator, self._device)
        tree_map(lambda kept, new: kept.index_copy_(0, places, new), self._memory, memory)
        return tree_map(to_numpy, actions)

    def _shown(self, step: Step) -> Step:
        """Return a step as the learners see it."""
        obs, starts, rewards, terminated, truncated, valid, masks, present = _taken(
            self._learner_rows.ravel(),
            step.obs,
            step.episode_starts,
            step.rewards,
            step.terminated,
            step.truncated,
            step.valid,
            step.action_masks,
            step.present,
        )
        shown = Step(obs, starts, rewards, terminated, truncated, valid, action_masks=masks, present=present)
        if step.final_rows is not None:
            places = self._place[to_numpy(step.final_rows)]
            own = places >= 0
            if own.any():
                shown.final_rows, shown.final_obs = places[own], tree_map(lambda leaf: leaf[own], step.final_obs)
        shown.infos = {int(self._place[row]): info for row, info in step.infos.items() if self._place[row] >= 0}
        return shown

    def assign(self, tasks: Mapping[int, Any]) -> None:
        """Give environments, by number, what they play from their next episodes on."""
        self.env.assign(tasks)

    def state_dict(self) -> dict[str, Any]:
        """Return where all matches stand, with copies of the opponents that have left the league since they began."""
        seen = self._seen
        if seen is None:
            raise StateError("No match has begun, so there is no state to keep. Call reset first.")
        members = [self.league.heuristic, *self.league.members]
        left = [member for member in dict.fromkeys(self.opponents) if member not in members]
        return {
            "env": self.env.state_dict(),
            "seen": [tree_map(np.array, part) for part in (seen.obs, seen.episode_starts, seen.action_masks)],
            "memory": tree_map(torch.clone, self._memory),
            "opponents": [[*members, *left].index(member) for member in self.opponents],
            "left": [member.state_dict() for member in left],
            "random": generator_state(self._random),
            "generator": generator_state(self._generator),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken, with a league that has been restored before."""
        left = [self.league.restored(kept) for kept in state["left"]]
        members = [self.league.heuristic, *self.league.members, *left]
        if max(state["opponents"]) >= len(members):
            raise StateError(
                "The state is of matches against a league that had more members. Restore the league first."
            )
        self._begin(0)
        self.env.load_state_dict(state["env"])
        self._seen = Step(*state["seen"][:2], action_masks=state["seen"][2])
        self._memory = tree_map(lambda leaf: leaf.to(self._device), state["memory"])
        self.opponents = [members[at] for at in state["opponents"]]
        for member in self._played():
            if member.policy is not None:
                member.policy.to(self._device)
        restore_generator(self._random, state["random"])
        restore_generator(self._generator, state["generator"])

    def call(self, name: str, *args: Any, indices: Sequence[int] | None = None) -> list[Any]:
        """Call a method of each environment, or read an attribute."""
        return self.env.call(name, *args, indices=indices)

    def close(self) -> None:
        """Close the environments."""
        self.env.close()


def _taken(rows: Rows, *trees: Tree) -> list[Tree]:
    return [tree_map(lambda leaf: leaf[rows], tree) for tree in trees]


def _put(everybody: Tree, rows: Rows, actions: Tree) -> None:
    def put(kept: npt.NDArray[Any], new: npt.NDArray[Any]) -> None:
        kept[rows] = new

    tree_map(put, everybody, actions)


def _scripted_by(env: Any) -> Callable[[], Tree]:
    """Return the function that asks each environment what its scripted player would do."""
    agents = [env.possible_agents.index(agent) for agent in env.agent_ids]

    def in_rows(leaf: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return leaf[:, agents].reshape(env.num_rows, *leaf.shape[2:])  # from [envs, possible agents, ...]

    def ask() -> Tree:
        try:
            answers = env.call("scripted_actions")
        except AttributeError as error:
            raise EnvError(
                f"Nobody plays against the learners: the league has no copy yet, or met its heuristic, but {error}. "
                "Give the environment a method scripted_actions() with an action for each of its possible agents, pass "
                "heuristic= to SelfPlay, or let a copy join first and set heuristic_share=0."
            ) from error
        return tree_map(in_rows, tree_stack(np.stack, answers))

    return ask
