"""Phase one: a policy acts in an environment for T steps, and everything is written down once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from twostep.checkpoint import generator_state, restore_generator, seed_from
from twostep.collect.acting import Actor
from twostep.collect.episodes import EpisodeTracker
from twostep.collect.faults import check_masks, find_fault, leave_out
from twostep.collect.forgetting import forget
from twostep.collect.recording import Recording
from twostep.collect.running import kept, taken_up
from twostep.collect.tasks import Score, TaskRows
from twostep.environments import adapted
from twostep.errors import NumericsError, RolloutError
from twostep.group import ALONE, Group
from twostep.policies.adapters import as_policy, memory_from, memory_to
from twostep.policies.fitting import require_keyword, require_spaces
from twostep.protocols import Curriculum, Step
from twostep.rollout import RolloutBuffer
from twostep.runtime import fast_products, suitable_threads
from twostep.tree import Tree, tree_items, tree_leaves, tree_map, tree_stack, tree_structure

OnNonfinite = Literal["stop", "skip", "reset"]
_ATTEMPTS = 5
"""How often a rollout is begun where numbers that are not finite cut it short."""
_LOG = logging.getLogger("twostep.collect")


class RolloutCollector:
    """Steps all rows together; carries observation, memory and running episodes from one rollout to the next."""

    def __init__(
        self,
        vecenv: Any,
        policy: Any,
        experience: RolloutBuffer | None = None,
        device: torch.device | str | None = None,
        *,
        num_steps: int | None = None,
        bptt_length: int = 16,
        seed: int | None = None,
        env_seed: int | None = None,
        curriculum: Curriculum | None = None,
        task_score: str | Score = "return",
        group: Group = ALONE,
    ) -> None:
        """Fill `experience` again and again, or a new rollout of `num_steps` each time when there is none.

        `vecenv` is whatever `PPOTrainer` takes: a Gymnasium environment or vector, a simulator of tensors, a `RowEnv`.
        `seed` draws the actions, `env_seed` starts the environment; without it the environment's own seed does.
        Every episode plays a task of `curriculum`, which is told at the end of each rollout how its episodes went:
        their return, the number that their last info holds under the name `task_score`, or what this function says.
        Curricula of several processes are told of the episodes of all `group`.
        """
        self.vecenv, self.experience = adapted(vecenv), experience
        self.statistics: tuple[str, ...] = tuple(getattr(self.vecenv, "episode_statistics", ()))
        """Names of numbers in the last infos of episodes that the environment wants to be seen while training."""
        self.tasks = None if curriculum is None else TaskRows(self.vecenv, curriculum, task_score, group)
        self._stepped = self.vecenv if self.tasks is None else self.tasks
        self.policy = as_policy(policy, self.vecenv.action_space)
        require_spaces(self.policy, self.vecenv.observation_space, self.vecenv.action_space)
        parameter = next(self.policy.parameters(), torch.empty(0))
        self.device = torch.device(device) if device is not None else parameter.device
        self.num_steps = experience.num_steps if experience is not None else num_steps
        self.bptt_length, self.env_seed = bptt_length, env_seed
        self.generator = torch.Generator(self.device)
        if seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(seed)
        self.actor = Actor(self.policy, self.generator)
        self.state: Tree = ()
        self.step: Step | None = None
        self.tracker = EpisodeTracker(self.vecenv.num_rows)
        self._row_actions: Tree = None
        self.on_nonfinite: OnNonfinite = "stop"
        """What becomes of rows in which a number was not finite, see `PPOConfig.on_nonfinite`."""
        self.restart_reason = ""
        """Why episodes had to begin anew when a state was last kept or taken up; empty where they did not."""

    def reset(self) -> None:
        """Start every row anew at the next collection, with empty memory."""
        self.step = None

    def set_memory(self, state: Tree) -> None:
        """Let the next rollout begin with this memory instead of the one carried on."""
        if self.step is None:
            self.begin(self.env_seed)
        self.state = memory_from(self.policy, state)

    def memory(self) -> Tree:
        """Return a copy of the memory after the last step."""
        return memory_to(self.policy, tree_map(lambda leaf: leaf.clone(), self.state))

    def begin(self, seed: int | None = None) -> None:
        """Start every row anew at once, with empty memory; without a seed environments go on with their randomness."""
        self.step = self._stepped.reset(seed)
        self.state = self.policy.initial_state(self.vecenv.num_rows)
        self.tracker.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return where collection stands: random numbers, running episodes, memory, and the environments themselves.

        Where these have no state to give, `restart_reason` says why, and the next rollout after loading begins new
        episodes, from seeds that follow from this state.
        """
        running, self.restart_reason = kept(self)
        return {"generator": generator_state(self.generator), "acting": self.actor.state_dict(), "running": running}

    def load_state_dict(self, state: dict[str, Any], *, same_episodes: bool = True) -> None:
        """Go on exactly where `state_dict` was taken; without `same_episodes`, or where rows differ, in new ones."""
        restore_generator(self.generator, state["generator"])
        self.actor.load_state_dict(state["acting"])
        self.reset()
        self.restart_reason = taken_up(self, state["running"]) if same_episodes else "the environments are not the same"
        if self.restart_reason:
            self.reset()
            if self.env_seed is not None:
                self.env_seed = seed_from(state["generator"]) % 2**32

    def collect(self) -> tuple[dict[str, float], int]:
        """Fill the experience and return statistics of the episodes that ended, and the number of agent steps."""
        rollout = self.rollout()
        returns = [episode.ret for episode in rollout.episodes]
        lengths = [float(episode.length) for episode in rollout.episodes]
        stats = {"episodes": float(len(returns))}
        if returns:
            stats |= {"mean_reward": float(np.mean(returns)), "mean_length": float(np.mean(lengths))}
        return stats, int(rollout.valid.sum())

    def rollout(self, num_steps: int | None = None, context: Mapping[str, Tensor] | None = None) -> RolloutBuffer:
        """Collect one rollout.

        `context` conditions the policy and is kept with the data: tensors `[B, ...]` or `[1, ...]` by keyword. After an
        error in the middle, whatever its cause, the next rollout starts every row anew.
        """
        rollout, attempt = None, 0
        while rollout is None:
            attempt += 1
            rollout = self._attempt(num_steps, context, last=attempt == _ATTEMPTS)
        return rollout

    def _attempt(
        self, num_steps: int | None, context: Mapping[str, Tensor] | None, *, last: bool
    ) -> RolloutBuffer | None:
        """Collect one rollout; None where numbers that are not finite cut it short and another may be begun."""
        try:
            with suitable_threads(self.policy, self.device):
                return self._rollout(num_steps, context)
        except NumericsError as error:
            self.reset()
            if last or self.on_nonfinite == "stop":
                raise
            _LOG.warning("%s Every row begins anew.", error)
            return None
        except BaseException:
            self.reset()
            raise

    def _rollout(self, num_steps: int | None, context: Mapping[str, Tensor] | None) -> RolloutBuffer:
        steps = num_steps if num_steps is not None else self.num_steps
        if not isinstance(steps, int) or steps < 1:
            raise RolloutError(
                f"num_steps={steps!r} must be an int, 1 or more: pass it, or an experience buffer to fill."
            )
        if self.step is None:
            self.begin(self.env_seed)
        assert self.step is not None
        conditions = self._conditions(context)
        with torch.no_grad():
            recording = Recording(self._buffer(steps, self.step, conditions), self.step)
        self.actor.begin()
        fast = fast_products(self.vecenv.num_rows, self.device)
        with torch.inference_mode(), fast:
            self._act_for(steps, recording, conditions)
            columns = recording.finish()
            self._value_next_states(recording, conditions)
        rollout = recording.rollout
        if recording.tensors_given:  # masks that come as arrays were looked at when they came
            check_masks(rollout, self.vecenv.action_space)
        fault = find_fault(rollout, self.vecenv)
        if fault is not None:
            if self.on_nonfinite == "stop":
                raise NumericsError(fault.message)
            leave_out(rollout, columns, fault.rows)
        rollout.policy_version = self.policy.version
        rollout.episodes = self.tracker.episodes(columns, recording.infos)
        if fault is not None:
            forget(self, fault)
        if self.tasks is not None:
            self.tasks.complete(rollout.episodes)
        return rollout

    def _act_for(self, steps: int, recording: Recording, conditions: dict[str, Tensor]) -> None:
        """Act for so many steps; what fails because a policy was shown no number is told as that."""
        t = 0
        try:
            for t in range(steps):
                self._act(recording, t, conditions)
        except Exception as error:
            fault = find_fault(recording.rollout, self.vecenv, t + 1)
            if fault is None or isinstance(error, NumericsError):
                raise
            raise NumericsError(fault.message) from error

    def _act(self, recording: Recording, t: int, conditions: dict[str, Tensor]) -> None:
        assert self.step is not None
        rollout = recording.rollout
        obs, starts, masks = recording.before(t, self.step)
        if t % rollout.sequence_length == 0:
            _keep_state(rollout, t // rollout.sequence_length, self.state)
        if masks is not None:
            conditions = {**conditions, "action_masks": masks}
        acted = self.actor(obs, self.state, starts, conditions)
        recording.acted(acted)
        self.state = acted.state
        self.step = self._stepped.step(recording.outward(acted.outward))
        recording.after(t, self.step, self.state)

    def _value_next_states(self, recording: Recording, conditions: dict[str, Tensor]) -> None:
        """Value every next state: most were acted from; the last ones and those behind a cut take one forward."""
        assert self.step is not None
        rollout, rows = recording.rollout, self.vecenv.num_rows
        observations = [_tensors(self.step.obs, rollout.obs)]
        states = [self.state]
        cut_steps: list[int] = []
        cut_rows: list[int] = []
        for cut in recording.cuts:
            observations.append(_tensors(cut.final_obs, rollout.obs))
            states.append(cut.state)
            cut_steps += [cut.step] * len(cut.rows)
            cut_rows += cut.rows.tolist()
        joined = tree_stack(lambda leaves: torch.cat(leaves)[None], observations)
        starts = torch.zeros(1, rows + len(cut_rows), dtype=torch.bool, device=self.device)
        starts[0, :rows] = torch.as_tensor(self.step.episode_starts, device=self.device)
        index = torch.tensor([*range(rows), *cut_rows], device=self.device)
        there = {name: leaf[:, index] for name, leaf in conditions.items()}
        values = self.policy(joined, tree_stack(torch.cat, states), starts, **there).values[0]
        rollout.next_values[:-1] = rollout.values[1:]
        rollout.next_values[-1] = values[:rows]
        if cut_rows:
            rollout.next_values[cut_steps, cut_rows] = values[rows:]

    def _conditions(self, context: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """Return the context as `[1, B, ...]`."""
        rows = self.vecenv.num_rows
        conditions: dict[str, Tensor] = {}
        for name, given in (context or {}).items():
            require_keyword(self.policy, name)
            leaf = _context_tensor(name, given)
            if leaf.dim() == 0 or leaf.shape[0] not in (1, rows):
                raise RolloutError(
                    f"{name} has shape {tuple(leaf.shape)}; its first dimension must be {rows}, one entry per row, "
                    "or 1, the same for all."
                )
            conditions[name] = leaf.to(self.device).expand(rows, *leaf.shape[1:])[None]
        return conditions

    @torch.no_grad()
    def make_experience(self, num_steps: int) -> RolloutBuffer:
        """Return an empty rollout of the form that this policy and environment give, to be filled as `experience`."""
        if self.step is None:
            self.begin(self.env_seed)
        assert self.step is not None
        return self._created(num_steps, self._parts(self.step, {}))

    def _buffer(self, steps: int, step: Step, conditions: dict[str, Tensor]) -> RolloutBuffer:
        """Return the experience to fill, or a new rollout."""
        rollout, parts = self.experience, self._parts(step, conditions)
        if rollout is None or steps != rollout.num_steps:
            rollout = self._created(steps, parts)
        else:
            _require_rows(rollout, self.vecenv.num_rows)
            for name, tree in parts.items():
                _require_room(rollout, name, tree)
        rollout.reset()
        if rollout.context is not None:
            _require_room(rollout, "context", {name: leaf[0] for name, leaf in conditions.items()} or None)
        if conditions:
            rollout.context = {name: leaf.expand(steps, *leaf.shape[1:]) for name, leaf in conditions.items()}
        return rollout

    def _parts(self, step: Step, conditions: dict[str, Tensor]) -> dict[str, Tree]:
        """Return what one step of this policy and environment looks like, by the names under which it is kept."""
        obs = tree_map(lambda leaf: _storable(torch.as_tensor(leaf, device=self.device)), step.obs)
        masks = tree_map(lambda leaf: torch.as_tensor(leaf, device=self.device).bool(), step.action_masks)
        if self._row_actions is None:
            self._row_actions = self._sampled(obs, masks, step, conditions)
        return {"obs": obs, "actions": self._row_actions, "states": self.state, "action_masks": masks}

    def _created(self, steps: int, parts: dict[str, Tree]) -> RolloutBuffer:
        return RolloutBuffer.create(
            steps,
            self.vecenv.num_rows,
            parts["obs"],
            parts["actions"],
            self.device,
            state=parts["states"],
            sequence_length=min(self.bptt_length, steps) if tree_leaves(parts["states"]) else 1,
            action_masks=parts["action_masks"],
        )

    def _sampled(self, obs: Tree, masks: Tree, step: Step, conditions: dict[str, Tensor]) -> Tree:
        """Return actions that go nowhere, to learn what form they have."""
        starts = torch.as_tensor(step.episode_starts, device=self.device)[None]
        given = conditions if masks is None else {**conditions, "action_masks": tree_map(_one_step, masks)}
        unused = torch.Generator(self.device).manual_seed(0)
        output = self.policy(tree_map(_one_step, obs), self.state, starts, **given)
        return tree_map(_first, output.distribution.sample(unused))


def _context_tensor(name: str, given: Any) -> Tensor:
    try:
        return _storable(torch.as_tensor(given))
    except (TypeError, ValueError, RuntimeError) as error:
        raise RolloutError(
            f"{name} is {type(given).__name__}; context must be a tensor or an array of numbers."
        ) from error


_CREATED_BY = {
    "obs": "obs_dim=, a number of floats or observations of all rows",
    "actions": "action_dim=, a number of floats, 0 for one integer per row, or actions of all rows",
    "states": "state=policy.initial_state(num_agents)",
    "action_masks": "action_masks=, masks of all rows",
    "context": "context=, what conditions the policy in all rows",
}
"""How `RolloutBuffer.create` is told of each part."""


def _require_rows(experience: RolloutBuffer, rows: int) -> None:
    if experience.num_rows != rows:
        raise RolloutError(
            f"The experience has {experience.num_rows} rows, but the environment has {rows}. "
            f"Create it with num_agents={rows}."
        )


def _require_room(experience: RolloutBuffer, name: str, given: Tree) -> None:
    """Refuse a buffer in which something that this policy and environment give would have no place, or a wrong one."""
    kept = getattr(experience, name)
    wrong = ""
    if tree_structure(kept) != tree_structure(given):
        wrong = f"{name} as {tree_structure(kept)}, but collecting gives {tree_structure(given)}"
    else:
        for (path, room), (_, leaf) in zip(tree_items(kept, name), tree_items(given, name), strict=True):
            if room.shape[2:] != leaf.shape[1:] or not torch.can_cast(leaf.dtype, room.dtype):
                wrong = f"{path} as {_form(room[0])}, but collecting gives {_form(leaf)}"
                break
    if wrong:
        raise RolloutError(f"The experience holds {wrong}. Tell RolloutBuffer.create of it: {_CREATED_BY[name]}.")


def _form(leaf: Tensor) -> str:
    return f"{str(leaf.dtype).removeprefix('torch.')} of shape {list(leaf.shape[1:])} per row"


def _first(leaf: Tensor) -> Tensor:
    return leaf[0]


def _one_step(leaf: Tensor) -> Tensor:
    return leaf[None]


def _storable(leaf: Tensor) -> Tensor:
    """Keep doubles and halves as the single precision that networks take."""
    return leaf.float() if leaf.is_floating_point() else leaf


def _tensors(tree: Tree, like: Tree) -> Tree:
    return tree_map(lambda leaf, kept: torch.as_tensor(leaf, device=kept.device).to(kept.dtype), tree, like)


def _keep_state(rollout: RolloutBuffer, at: int, state: Tree) -> None:
    tree_map(lambda kept, now: kept[at].copy_(now), rollout.states, state)
