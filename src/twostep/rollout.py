"""The one type that both phases share: what an agent saw, did and received, time first, rows second.

Legend: T steps, B rows (one agent slot of one environment each), L steps per sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from twostep.learn.advantages import gae
from twostep.errors import RolloutError
from twostep.sequences import Minibatch, Sequences
from twostep.tree import Tree, tree_items, tree_leaves, tree_map, tree_structure

Device = torch.device | str


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


@dataclass
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
    ) -> RolloutBuffer:
        """Preallocate everything.

        Observations and actions are described by a number of floats or by a tree of tensors like one step's
        `[B, ...]`; 0 action floats mean one integer per row. `state` and `action_masks` are trees like one step's, too.
        """

        def steps_of(leaf: Tensor, steps: int = num_steps) -> Tensor:
            return torch.zeros((steps, *leaf.shape), dtype=leaf.dtype, device=device)

        rows = (num_steps, num_agents)
        flags = {name: torch.zeros(rows, dtype=torch.bool, device=device) for name in _FLAGS}
        numbers = {name: torch.zeros(rows, device=device) for name in _NUMBERS}
        sequences = -(-num_steps // sequence_length)
        return cls(
            obs=tree_map(steps_of, _example(obs_dim, num_agents)),
            actions=tree_map(steps_of, _example(action_dim, num_agents)),
            valid=torch.ones(rows, dtype=torch.bool, device=device),
            states=tree_map(lambda leaf: steps_of(leaf, sequences), state),
            sequence_length=sequence_length,
            action_masks=tree_map(steps_of, action_masks),
            **numbers,
            **flags,
        )

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
        """Bytes of all tensors."""
        return sum(leaf.numel() * leaf.element_size() for _, leaf in _tensors(self))

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
        action_mask: Tree = None,
        valid: Any = True,
    ) -> None:
        """Store one step of every row; `done` says that this action ended the episode, `truncated` that it was cut.

        `hidden_state` is the memory before the step; only what enters a sequence is kept.
        """
        t = self.position
        if t >= self.num_steps:
            raise RolloutError(f"The buffer holds num_steps={self.num_steps} steps and is full. Call reset() first.")
        _write(self.obs, t, obs)
        _write(self.actions, t, action)
        for name, value_now in (("rewards", reward), ("values", value), ("logprobs", log_prob), ("valid", valid)):
            _write(getattr(self, name), t, value_now)
        cut = torch.as_tensor(truncated, device=self.device)
        ended = torch.as_tensor(done, device=self.device).bool()
        _write(self.truncated, t, cut)
        _write(self.terminated, t, ended & ~cut)
        if t + 1 < self.num_steps:
            _write(self.episode_starts, t + 1, ended | cut)
        if action_mask is not None and self.action_masks is not None:
            _write(self.action_masks, t, action_mask)
        if hidden_state is not None and t % self.sequence_length == 0:
            _write(self.states, t // self.sequence_length, hidden_state)
        self.position += 1

    def reset(self) -> None:
        """Start filling anew; what was stored is overwritten step by step."""
        self.position = 0
        self.advantages = self.returns = None
        self.episodes = []
        self.valid.fill_(True)

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

    def _complete(self, next_value: Tensor, next_done: Tensor | None) -> None:
        """Derive what a collector would have stored from values and start-of-step flags."""
        cut = self.truncated
        self.next_values[:-1].copy_(torch.where(cut[:-1], self.next_values[:-1], self.values[1:]))
        self.next_values[-1].copy_(torch.where(cut[-1], self.next_values[-1], next_value.to(self.device)))
        self.terminated[:-1].copy_(self.episode_starts[1:] & ~cut[:-1])
        if next_done is not None:
            self.terminated[-1].copy_(next_done.to(self.device).bool() & ~cut[-1])

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
            self.sequence_length = bptt_length
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
        moved = {name: tree_map(lambda leaf: leaf.to(device), getattr(self, name)) for name in _TREES}
        return RolloutBuffer(
            **moved,
            sequence_length=self.sequence_length,
            episodes=self.episodes,
            policy_version=self.policy_version,
            position=self.position,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the portable form: tensors with time and rows joined, plain containers, nothing else.

        `torch.save` and a plain `torch.load` keep it; `from_dict` restores the shape. The tensors are the rollout's own.
        """
        data: dict[str, Any] = {}
        for name in _TREES:
            tree = getattr(self, name)
            if tree is None or (name == "states" and not tree_leaves(tree)):
                continue
            data[PORTABLE_NAMES.get(name, name)] = tree_map(lambda leaf: leaf.flatten(0, 1), tree)
        data["dones"] = (self.terminated | self.truncated).flatten()
        data["shape"] = [self.num_steps, self.num_rows]
        data["sequence_length"] = self.sequence_length
        data["policy_version"] = self.policy_version
        data["episodes"] = [asdict(episode) for episode in self.episodes]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RolloutBuffer:
        """Restore a rollout from `to_dict`, or from any dict with at least the six columns that learning needs.

        Without `shape`, every entry is one transition of a row of its own in time order.
        """
        known = {SHORT_NAMES.get(name, name): value for name, value in data.items()}
        missing = [name for name in ("obs", "actions", "logprobs", "values", "rewards") if name not in known]
        if missing:
            raise RolloutError(
                f"Rollout data lacks {', '.join(PORTABLE_NAMES.get(name, name) for name in missing)}; it has "
                f"{', '.join(sorted(map(str, data)))}. Use the dict that collect_rollouts or to_dict gives."
            )
        total = known["rewards"].numel()
        steps, rows = known.get("shape", (total, 1))
        if steps * rows != total:
            raise RolloutError(f"shape={[steps, rows]} does not fit {total} rewards; it must be [steps, rows].")
        return cls(**_restored(known, int(steps), int(rows)))


_NUMBERS = ("logprobs", "values", "rewards", "next_values")
_FLAGS = ("terminated", "truncated", "episode_starts")
_TREES = (
    *("obs", "actions", *_NUMBERS, *_FLAGS, "valid"),
    *("states", "action_masks", "context", "advantages", "returns"),
)
PORTABLE_NAMES = {"obs": "observations", "logprobs": "log_probs"}
SHORT_NAMES = {long: short for short, long in PORTABLE_NAMES.items()}


def _example(description: int | Tree, rows: int) -> Tree:
    if isinstance(description, int):
        return torch.zeros(rows, description) if description else torch.zeros(rows, dtype=torch.int64)
    return description


def _write(target: Tree, t: int, value: Tree) -> None:
    def write(leaf: Tensor, new: Any) -> None:
        new = torch.as_tensor(new, device=leaf.device)
        leaf[t].copy_(new.reshape(leaf[t].shape) if new.numel() == leaf[t].numel() else new)

    tree_map(write, target, value)


def _tensors(rollout: RolloutBuffer) -> Iterator[tuple[str, Tensor]]:
    for name in _TREES:
        yield from tree_items(getattr(rollout, name), name)


def _restored(known: Mapping[str, Any], steps: int, rows: int) -> dict[str, Any]:
    """Bring columns back to `[T, B, ...]` and fill in what a foreign dict does not have."""
    length = int(known.get("sequence_length", 1))
    sequences = -(-steps // length)

    def shaped(name: str) -> Tree:
        first = sequences if name == "states" else steps
        try:
            return tree_map(lambda leaf: torch.as_tensor(leaf).reshape(first, rows, *leaf.shape[1:]), known[name])
        except RuntimeError as error:
            raise RolloutError(f"{name} does not have {steps * rows} entries like the rewards: {error}") from error

    fields: dict[str, Any] = {name: shaped(name) for name in _TREES if known.get(name) is not None}
    for name in ("rewards", "logprobs", "values", "next_values", "advantages", "returns", *_FLAGS, "valid"):
        if name in fields and fields[name].dim() != 2:
            fields[name] = fields[name].reshape(steps, rows)
    device = fields["rewards"].device
    _derive_flags(fields, known, steps, rows)
    fields.setdefault("valid", torch.ones(steps, rows, dtype=torch.bool, device=device))
    if "next_values" not in fields:
        after_last = torch.zeros_like(fields["values"][:1])
        fields["next_values"] = torch.cat((fields["values"][1:], after_last)) if steps else fields["values"].clone()
    episodes = [Episode(**episode) for episode in known.get("episodes", ())]
    version = known.get("policy_version")
    return {**fields, "sequence_length": length, "episodes": episodes, "policy_version": version}


def _derive_flags(fields: dict[str, Any], known: Mapping[str, Any], steps: int, rows: int) -> None:
    """Complete the flags: `dones` are ends of the step, not told apart, so they count as terminations."""
    none = torch.zeros(steps, rows, dtype=torch.bool, device=fields["rewards"].device)
    fields.setdefault("truncated", none.clone())
    if "terminated" not in fields:
        dones = torch.as_tensor(known["dones"]).reshape(steps, rows).bool() if "dones" in known else none.clone()
        fields["terminated"] = dones & ~fields["truncated"]
    if "episode_starts" not in fields:
        starts = torch.ones_like(none)
        starts[1:] = (fields["terminated"] | fields["truncated"])[:-1]
        fields["episode_starts"] = starts


def same_structure(rollouts: list[RolloutBuffer]) -> None:
    """Raise where rollouts cannot be joined, naming the first thing that differs."""
    first = rollouts[0]
    for number, other in enumerate(rollouts[1:], start=1):
        for name in ("obs", "actions", "states", "action_masks", "context"):
            mine, theirs = getattr(first, name), getattr(other, name)
            if tree_structure(mine) != tree_structure(theirs):
                raise RolloutError(
                    f"Rollout {number} has {name} {tree_structure(theirs)}, rollout 0 has {tree_structure(mine)}. "
                    "Only rollouts of one kind of environment and policy can be joined."
                )
            for (path, a), (_, b) in zip(tree_items(mine, name), tree_items(theirs, name), strict=True):
                if a.shape[2:] != b.shape[2:] or a.dtype != b.dtype:
                    raise RolloutError(
                        f"Rollout {number} has {path} of {tuple(b.shape[2:])} {b.dtype} per step, rollout 0 of "
                        f"{tuple(a.shape[2:])} {a.dtype}. Only rollouts of one kind of environment can be joined."
                    )
        if first.sequence_length != other.sequence_length:
            raise RolloutError(
                f"Rollout {number} stores memory every {other.sequence_length} steps, rollout 0 every "
                f"{first.sequence_length}. Collect both with one bptt_length."
            )
