"""The one type that both phases share: what an agent saw, did and received, time first, rows second.

Legend: T steps, B rows (one agent slot of one environment each), L steps per sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from twostep.advantages import gae
from twostep.columns import BELONGS_TO, FLAGS, NUMBERS, PORTABLE_NAMES, TREES, marks_of, require_memory, restored
from twostep.errors import RolloutError
from twostep.sequences import Minibatch, Sequences
from twostep.tree import Tree, tree_items, tree_leaves, tree_map, tree_structure

Device = torch.device | str
TASK_KEY = "task"
"""Under which the info of an episode holds what it played, where a curriculum decided it."""


@dataclass
class Episode:
    """An episode that ended inside a rollout."""

    ret: float
    """Sum of its raw rewards, undiscounted."""
    length: int
    row: int
    step: int
    """Step of the rollout at which it ended."""
    info: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the environment said at its end, where that is a number, a text or a truth value."""

    @property
    def task(self) -> str | None:
        """Id of the task that it played; None without a curriculum."""
        return self.info.get(TASK_KEY)

    def to_dict(self) -> dict[str, Any]:
        """Return plain containers that `Episode(**...)` gives back."""
        return {**vars(self), "info": dict(self.info)}


@dataclass(eq=False)
class RolloutBuffer:
    """One rollout; see `docs/architecture.md` for the table of fields."""

    obs: Tree
    """`[T, B, ...]`: what the policy saw before acting, raw."""
    actions: Tree
    """`[T, B, ...]`: as sampled, before clipping or squashing."""
    logprobs: Tensor
    values: Tensor
    """`[T, B]`: what the critic said of `obs`, in raw units."""
    rewards: Tensor
    next_values: Tensor
    """`[T, B]`: value of the state that the action truly led to, also where the environment then reset."""
    terminated: Tensor
    """`[T, B]` bool: the action ended the episode."""
    truncated: Tensor
    """`[T, B]` bool: the episode was only cut here."""
    episode_starts: Tensor
    """`[T, B]` bool: `obs[t]` is the first of its episode; memory is forgotten before it."""
    valid: Tensor
    """`[T, B]` bool: an agent was there and its action counted."""
    states: Tree = ()
    """`[ceil(T / L), B, ...]`: memory entering each sequence."""
    sequence_length: int = 1
    """L."""
    action_masks: Tree = None
    """`[T, B, n]` bool: what was allowed."""
    context: dict[str, Tensor] | None = None
    """`[T, B, ...]` by keyword: what else the policy was conditioned on."""
    advantages: Tensor | None = None
    """`[T, B]`, raw scale, once computed."""
    returns: Tensor | None = None
    episodes: list[Episode] = field(default_factory=list[Episode])
    policy_version: int | None = None
    """Which policy acted; None when unknown."""
    position: int = 0
    """Where `add` writes next."""
    _room_for_context: dict[str, Tensor] | None = field(default=None, init=False, repr=False)
    """The memory of a context that `create` was told of; a collector puts one in its place that is held once."""

    @classmethod
    def create(
        cls,
        num_steps: int,
        num_agents: int,
        obs_dim: int | Tree,
        action_dim: int | Tree,
        device: Device = "cpu",
        *,
        state: Tree = (),
        sequence_length: int = 1,
        action_masks: Tree = None,
        context: Mapping[str, Tensor] | None = None,
    ) -> RolloutBuffer:
        """Preallocate everything.

        Observations and actions are described by a number of floats or by a tree of tensors like one step's
        `[B, ...]`; 0 action floats mean one integer per row. `state`, `action_masks` and `context` are trees like one
        step's, too.
        """
        obs, actions = _example(obs_dim, num_agents), _example(action_dim, num_agents)
        sequences = -(-num_steps // sequence_length)
        per_step = [leaf for tree in (obs, actions, action_masks, context) for leaf in tree_leaves(tree)]
        require_memory(num_steps, num_agents, device, per_step, sequences, tree_leaves(state))

        def steps_of(leaf: Tensor, steps: int = num_steps) -> Tensor:
            return torch.zeros((steps, *leaf.shape), dtype=leaf.dtype, device=device)

        rows = (num_steps, num_agents)
        columns: dict[str, Any] = {name: torch.zeros(rows, device=device) for name in NUMBERS}
        columns |= {name: torch.zeros(rows, dtype=torch.bool, device=device) for name in FLAGS}
        buffer = cls(
            obs=tree_map(steps_of, obs),
            actions=tree_map(steps_of, actions),
            valid=torch.ones(rows, dtype=torch.bool, device=device),
            states=tree_map(lambda leaf: steps_of(leaf, sequences), state),
            sequence_length=sequence_length,
            action_masks=tree_map(lambda leaf: steps_of(leaf).fill_(1), action_masks),
            **columns,
        )
        buffer.context = buffer._room_for_context = tree_map(steps_of, context)
        return buffer

    @property
    def num_steps(self) -> int:
        """T."""
        return self.rewards.shape[0]

    @property
    def num_rows(self) -> int:
        """B."""
        return self.rewards.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the data lies."""
        return self.rewards.device

    @property
    def dones(self) -> Tensor:
        """`[T, B]`: whether an episode ended just before step t, which is also where `obs[t]` starts a new one.

        Writing into it writes `episode_starts`.
        """
        return self.episode_starts

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors; what is the same at every step (context) is held once."""
        return sum(_nbytes(leaf) for _, leaf in _tensors(self))

    def add(
        self,
        obs: Tree,
        action: Tree,
        reward: Any,
        value: Any,
        log_prob: Any,
        done: Any,
        hidden_state: Tree = None,
        *,
        truncated: Any = False,
        final_value: Any = 0.0,
        action_mask: Tree = None,
        context: Mapping[str, Any] | None = None,
        valid: Any = True,
    ) -> None:
        """Store a copy of one step of every row; steps that are never added do not count.

        `done` says that this action ended the episode, `truncated` that it was cut, in a state worth `final_value`.
        `hidden_state` is the memory before the step; only what enters a sequence is kept. `context` is what else the
        policy was conditioned on, of which the buffer must know since it was created.
        """
        t = self.position
        if t >= self.num_steps:
            raise RolloutError(f"The buffer holds num_steps={self.num_steps} steps and is full. Call reset() first.")
        if t == 0:
            self.valid.fill_(False)
        columns = {"obs": obs, "actions": action, "rewards": reward, "values": value, "logprobs": log_prob}
        columns |= {"next_values": final_value, "terminated": done, "truncated": truncated, "valid": valid}
        for name, column in columns.items():
            _write(getattr(self, name), t, column, name)
        self.terminated[t] &= ~self.truncated[t]
        for step in range(max(t - 1, 0), t + 1):  # until the next value is known, the last one stands for it
            self.next_values[step] = torch.where(self.truncated[step], self.next_values[step], self.values[t])
        if t + 1 < self.num_steps:
            self.episode_starts[t + 1] = self._ended(t)
        if action_mask is not None:
            _write(self.action_masks, t, action_mask, "action_masks")
        if context is not None or self._room_for_context is not None:
            _write(self._room_for_context, t, context, "context")
        if t % self.sequence_length == 0 and tree_leaves(self.states):
            if hidden_state is None:
                raise RolloutError(f"Step {t} begins a sequence, so it needs the memory before it: pass hidden_state=.")
            _write(self.states, t // self.sequence_length, hidden_state, "states")
        self.position += 1

    def reset(self) -> None:
        """Start filling anew; what was stored is overwritten step by step."""
        if self.position:
            self.episode_starts[0] = self._ended(self.position - 1)
        self.position = 0
        self.advantages = self.returns = self.policy_version = None
        self.context = self._room_for_context
        self.episodes = []
        self.valid.fill_(True)
        tree_map(lambda leaf: leaf.fill_(1), self.action_masks)

    def compute_gae(
        self,
        next_value: Tensor | None = None,
        next_done: Tensor | None = None,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
    ) -> None:
        """Compute `advantages` and `returns` in place.

        A collected rollout knows the value of every next state. For one filled by hand, `next_value` is the value of
        the state after the last step and `next_done` whether that step ended the episode.
        """
        if next_value is not None:
            self._complete(next_value, next_done)
        elif self.position and not bool(self._ended(self.position - 1).all()):
            raise RolloutError(
                f"Step {self.position - 1} is the last one added and its episodes go on, so advantages need the value "
                "of the state it led to: compute_gae(next_value=...)."
            )
        self.advantages, self.returns = gae(
            self.rewards,
            self.values,
            self.next_values,
            self.terminated,
            self.truncated,
            gamma=gamma,
            gae_lambda=gae_lambda,
            valid=self.valid,
        )

    def _ended(self, t: int) -> Tensor:
        return self.terminated[t] | self.truncated[t]

    def _complete(self, next_value: Tensor, next_done: Tensor | None) -> None:
        """Derive what a collector would have stored from values and start-of-step flags."""
        if not self.num_steps:
            return
        cut, last = self.truncated, (self.position or self.num_steps) - 1
        after = torch.cat((self.values[1:], self.values[-1:]))
        _write(after, last, next_value, "next_value")
        self.next_values.copy_(torch.where(cut, self.next_values, after))
        self.terminated[:last] = self.episode_starts[1 : last + 1] & ~cut[:last]
        if next_done is not None:
            _write(self.terminated, last, next_done, "next_done")
            self.terminated[last] &= ~cut[last]

    def get(self, batch_size: int | None = None, bptt_length: int | None = None) -> Any:
        """Return the portable dict, or iterate once over shuffled minibatches of `batch_size` sequences.

        `bptt_length` must be the length at which memory was stored.
        """
        if batch_size is None:
            return self.to_dict()
        if bptt_length is not None and bptt_length != self.sequence_length and tree_leaves(self.states):
            raise RolloutError(
                f"bptt_length={bptt_length}, but memory was stored every sequence_length={self.sequence_length} steps. "
                "Collect with the length you want to learn with."
            )
        if bptt_length is not None and not tree_leaves(self.states):
            return replace(self, sequence_length=bptt_length)._minibatches(batch_size)
        return self._minibatches(batch_size)

    def _minibatches(self, batch_size: int) -> Iterator[Minibatch]:
        if self.advantages is None or self.returns is None:
            raise RolloutError("Advantages are missing. Call compute_gae(...) before get(batch_size).")
        sequences = Sequences(self, self.advantages, self.returns)
        return sequences.epoch(max(1, -(-len(sequences) // batch_size)))

    def to(self, device: Device) -> RolloutBuffer:
        """Return this rollout on `device`: itself when it already is there."""
        if self.device == torch.device(device):
            return self
        moved = {name: tree_map(lambda leaf: leaf.to(device), getattr(self, name)) for name in TREES}
        return RolloutBuffer(
            **moved,
            sequence_length=self.sequence_length,
            episodes=self.episodes,
            policy_version=self.policy_version,
            position=self.position,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the portable form: tensors with time and rows joined, plain containers, nothing else.

        `torch.save` and a plain `torch.load` keep it; `from_dict` restores the shape. The tensors are the
        rollout's own.
        """
        data: dict[str, Any] = {}
        for name in TREES:
            tree = getattr(self, name)
            if tree is None or (name == "states" and not tree_leaves(tree)):
                continue
            data[PORTABLE_NAMES.get(name, name)] = tree_map(lambda leaf: leaf.flatten(0, 1), tree)
        data["dones"] = (self.terminated | self.truncated).flatten()
        data["shape"] = [self.num_steps, self.num_rows]
        data["sequence_length"] = self.sequence_length
        if self.advantages is not None:
            data[BELONGS_TO] = marks_of(vars(self))
        data["policy_version"] = self.policy_version
        data["episodes"] = [episode.to_dict() for episode in self.episodes]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RolloutBuffer:
        """Restore a rollout from `to_dict`, or from any dict with at least the five columns that learning needs.

        Without `shape`, entries are the transitions of one row in time order. Without `next_values`, the states that
        cuts and the last step led to are unknown: they are valued like the states before them. Advantages are dropped
        where rewards, values or ends have changed since `to_dict`, unless they were changed too.
        """
        fields = restored(data)
        return cls(**fields, episodes=[Episode(**episode) for episode in data.get("episodes", ())])


def _example(description: int | Tree, rows: int) -> Tree:
    if isinstance(description, int):
        return torch.zeros(rows, description) if description else torch.zeros(rows, dtype=torch.int64)
    return description


def _write(target: Tree, t: int, value: Tree, name: str) -> None:
    """Copy one step's `[B, ...]` into `target[t]`; one number may stand for all rows, and sizes of 1 may be missing."""

    def write(leaf: Tensor, new: Any) -> None:
        new, kept = torch.as_tensor(new, device=leaf.device).detach(), leaf[t]
        if new.dim() and [size for size in new.shape if size != 1] != [size for size in kept.shape if size != 1]:
            raise RolloutError(f"{name} of step {t} has shape {tuple(new.shape)}; it must be {tuple(kept.shape)}.")
        kept.copy_(new.reshape(kept.shape) if new.dim() else new)

    if tree_structure(target) != tree_structure(value):
        raise RolloutError(
            f"{name} of step {t} is {tree_structure(value)}, but the buffer was created for {tree_structure(target)}. "
            "Describe every part when creating the buffer."
        )
    tree_map(write, target, value)


def _nbytes(leaf: Tensor) -> int:
    sizes = [size for size, stride in zip(leaf.shape, leaf.stride(), strict=True) if stride]
    return math.prod(sizes) * leaf.element_size()


def _tensors(rollout: RolloutBuffer) -> Iterator[tuple[str, Tensor]]:
    for name in TREES:
        yield from tree_items(getattr(rollout, name), name)
