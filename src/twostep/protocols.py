"""The architecture on one page: what a policy and an environment are to everything else.

Shapes are time first, rows second: `[T, B, ...]`. A row is one agent slot of one environment. Trees (`twostep.tree`)
are dicts or tuples of arrays or tensors; every leaf carries the leading dimensions named here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from twostep.tree import Tree

if TYPE_CHECKING:
    import torch


class Distribution(Protocol):
    """What a policy says about the next action, for any leading shape."""

    def sample(self, generator: torch.Generator | None = None) -> Tree:
        """Draw actions as the policy means them, before any squashing or clipping."""
        ...

    def mode(self) -> Tree:
        """Return the most likely actions."""
        ...

    def log_prob(self, actions: Tree) -> torch.Tensor:
        """Return the log-probability of whole actions: one number per row."""
        ...

    def entropy(self) -> torch.Tensor:
        """Return the entropy of whole actions: one number per row."""
        ...


class PolicyOutput(NamedTuple):
    """One call of a policy over `[T, B]` observations."""

    distribution: Distribution
    values: torch.Tensor
    """`[T, B]`, in raw reward units."""
    state: Tree
    """Memory after the last step, each leaf `[B, ...]`; `()` without memory."""


@runtime_checkable
class Policy(Protocol):
    """One function, called with one step while acting and with whole sequences while learning."""

    def __call__(self, obs: Tree, state: Tree, episode_starts: torch.Tensor, **conditions: Any) -> PolicyOutput:
        """Map observations `[T, B, ...]` and the memory before them to distributions and values.

        Memory is forgotten wherever `episode_starts` (`[T, B]`, bool) says that an observation is its episode's first.
        `conditions` holds what else the rollout stored, each only where present: `action_masks`, and what its context
        names, under those names.
        """
        ...

    def initial_state(self, batch: int) -> Tree:
        """Return the memory of `batch` rows that have seen nothing."""
        ...

    def to_env(self, actions: Tree) -> Tree:
        """Turn sampled actions into what the environment takes: squashed, scaled, clipped."""
        ...


@dataclass(slots=True)
class Step:
    """What an environment says after a reset or a step. Leaves are numpy arrays (or tensors on the env's device).

    Arrays may be the environment's own memory, overwritten by its next step: whoever keeps one copies it.
    """

    obs: Tree
    """`[B, ...]`: what to act on next; already the first observation of the next episode where one ended."""
    episode_starts: Any
    """`[B]` bool: `obs` is the first of its episode."""
    rewards: Any = None
    """`[B]` float32, of the action just taken; None after a reset."""
    terminated: Any = None
    """`[B]` bool: the action ended the episode."""
    truncated: Any = None
    """`[B]` bool: the episode was only cut here."""
    valid: Any = None
    """`[B]` bool, or None for all: False where the action was ignored (a phantom step, an agent that is gone)."""
    final_rows: Any = None
    """`[M]` int: rows whose episode ended in this step and whose `obs` is already the next episode's; None for none."""
    final_obs: Tree = None
    """`[M, ...]`: the observation that the action of each such row truly led to."""
    action_masks: Tree = None
    """`[B, n]` bool: which of the next actions are allowed; None where every action always is."""
    infos: dict[int, dict[str, Any]] = field(default_factory=dict)
    """For rows whose episode ended: the environment's own last info."""
    present: Any = None
    """`[B]` bool, or None for all: an agent is there to take the next action; where none is, `obs` shows nothing."""


class RowEnv(Protocol):
    """Many environments stepped as one. `vector/` and `tensors.py` adapt every other kind to this.

    One that is `Stateful`, too, lets a resumed run go on in the middle of its episodes; without that they begin anew.
    One with `episode_statistics` names numbers of its episodes' last infos whose means are logged as metrics.
    """

    num_rows: int
    observation_space: Any
    """The Gymnasium space of one row."""
    action_space: Any
    """The Gymnasium space of one row."""

    def reset(self, seed: int | None = None) -> Step:
        """Start every row anew; a seed makes all that follows repeatable."""
        ...

    def step(self, actions: Tree) -> Step:
        """Take one action per row, `[B, ...]`."""
        ...

    def close(self) -> None:
        """Free everything; harmless when called twice."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """Anything that a checkpoint must hold: also an environment, or a vector of them, that can go on mid-episode.

    An environment has been reset before its `load_state_dict` is called, and raises `StateError` where it has no state
    to give. Its `np_random` is kept for it.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return plain containers, numbers, strings, tensors and arrays, none of which changes later."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        ...


class Curriculum(Protocol):
    """Decides what is played next, by how it went before. Subclasses may leave out what is not `...` here."""

    def get_task(self) -> Task:
        """Return what the next episode is to be."""
        ...

    def complete_task(self, id: str, score: float) -> None:
        """Take in how an episode of a task went."""
        ...

    def set_progress(self, progress: float) -> None:
        """Take note of which part of all training is done, 0 to 1; most have no use for it."""
        return

    def set_running(self, running: Mapping[str, int]) -> None:
        """Take note of how many episodes of each task have been drawn and not completed, over all processes."""
        return

    def metrics(self) -> dict[str, float]:
        """Return what there is to log."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return plain containers, numbers and strings."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        ...


class Task:
    """What an environment is to play, and whom to tell how it went."""

    def __init__(self, id: str, env_cfg: Any, curriculum: Curriculum) -> None:
        self._id, self._env_cfg, self._curriculum = id, env_cfg, curriculum

    def id(self) -> str:
        """Return what the curriculum knows it by, unique there."""
        return self._id

    def name(self) -> str:
        """Return what people call it."""
        return self._id

    def short_name(self) -> str:
        """Return the last part of a name of several, such as `maze` of `navigation/maze`."""
        return self._id.rpartition("/")[2]

    def env_cfg(self) -> Any:
        """Return what the environment is told, see `twostep.vector.tasks`: options of its reset, as a rule."""
        return self._env_cfg

    def complete(self, score: float) -> None:
        """Tell the curriculum how an episode of it went."""
        self._curriculum.complete_task(self._id, score)


class Sink(Protocol):
    """Somewhere metrics go; called from a thread of its own unless it has `immediate = True`."""

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Write one row."""
        ...

    def close(self) -> None:
        """Write what is left; harmless when called twice."""
        ...
