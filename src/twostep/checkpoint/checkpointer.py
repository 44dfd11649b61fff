"""The checkpoints of a run: a folder each, named by step, of which the newest, the best and milestones are kept."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from twostep.checkpoint.files import NewerFormatError, aside_of, load_manifest, load_state, save_state
from twostep.checkpoint.packing import State
from twostep.checkpoint.provenance import provenance
from twostep.errors import CheckpointError, ConfigError, PolicyError

_LOG = logging.getLogger("twostep.checkpoint")
CHECKPOINTS = "checkpoints"
"""Where in the folder of a run its checkpoints lie."""
_LEFT, _REMOVED, _SAVING = "left", "removed", "saving"


class Policies(Protocol):
    """Where policies are saved: a `twostep.PolicyStore`."""

    def save(self, name: str, policy: Any, metadata: Mapping[str, Any] | None = None) -> Any:
        """Keep a policy and return its record."""
        ...

    def load_from_uri(self, uri: str) -> Any:
        """Return the record of a saved policy."""
        ...

    def add_to_wandb_run(self, record: Any, run: Any) -> Any:
        """Send a saved policy to Weights & Biases."""
        ...


class Loaded(NamedTuple):
    """A state and where it was read."""

    path: Path
    state: State
    manifest: dict[str, Any]


@dataclass
class Checkpoint:
    """What `save_trainer_state` was told."""

    agent_step: int
    epoch: int
    optimizer_state_dict: dict[str, Any]
    policy_uri: str | None = None
    """Where the policy is that `save_policy` had saved last."""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    """What else was handed to `save_trainer_state`, by name; handing it on does not nest it."""


class TrainingCheckpointer:
    """Saves states under the number of their step, keeps as many as wanted, and finds the newest that is whole.

    Args:
        checkpoint_dir: Where the checkpoints lie.
        policy_store: Where `save_policy` and `load_policy` keep policies.
        wandb_run: A run of Weights & Biases that policies are sent to as artifacts, too.
        keep_last: How many of the newest are kept.
        keep_every: The first at or after every multiple of so many steps is kept, too; 0 for none.
        config: Settings of the run, written into every manifest.
        prefix: What names begin with, before the step.

    The checkpoint with the highest `score` is always kept. A checkpoint is complete or not there: each is written
    beside its place, synced and renamed, and one that goes is renamed before it is deleted.
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        policy_store: Policies | None = None,
        wandb_run: Any = None,
        *,
        keep_last: int = 3,
        keep_every: int = 0,
        config: Mapping[str, Any] | None = None,
        prefix: str = "step_",
    ) -> None:
        if keep_last < 1 or keep_every < 0:
            raise ConfigError(
                f"keep_last={keep_last} must be 1 or more and keep_every={keep_every} 0 or more: 3 and 0 are usual."
            )
        self.folder, self.policy_store, self.wandb_run = Path(checkpoint_dir), policy_store, wandb_run
        self.keep_last, self.keep_every, self.prefix = keep_last, keep_every, prefix
        self._config = dict(config or {})
        self._name = re.compile(rf"\.?{re.escape(prefix)}(\d+)(\.replaced)?")
        self._scores: dict[int, float | None] = {}
        self._failed = False
        self._policy_uri: str | None = None

    # ------------------------------------------------------------------ whole states

    def save(
        self, step: int, state: State, manifest: Mapping[str, Any] | None = None, *, score: float | None = None
    ) -> Path:
        """Write a checkpoint, and then remove those that are not to be kept.

        Raises:
            CheckpointError: It cannot be written; those that were there are untouched.
        """
        about = {"step": step, "score": score, "config": self._config, "program": provenance(), **(manifest or {})}
        path = save_state(self.path(step), state, about)
        self._scores[step], self._failed = score, False
        self._rotate()
        return path

    def try_save(
        self, step: int, state: State, manifest: Mapping[str, Any] | None = None, *, score: float | None = None
    ) -> Path | None:
        """Save, or warn once until it works again and return None: a run does not end because its disk is full."""
        try:
            return self.save(step, state, manifest, score=score)
        except CheckpointError as error:
            if not self._failed:
                _LOG.warning("Training goes on without this checkpoint: %s", error)
            self._failed = True
            return None

    def load(self, step: int | None = None) -> Loaded:
        """Read the checkpoint of a step, or the newest; where that one is damaged, warn and read the next older one.

        Raises:
            CheckpointError: There is none that is whole, the one of `step` is not, or a newer twostep has written it.
        """
        if step is not None:
            return Loaded(self.path(step), *load_state(self.path(step)))
        problems: list[str] = []
        for number in reversed(self.steps()):
            try:
                loaded = Loaded(self.path(number), *load_state(self.path(number)))
            except NewerFormatError:
                raise
            except CheckpointError as error:
                problems.append(str(error))
                continue
            for problem in problems:
                _LOG.warning(
                    "%s Going on from %s.", problem.replace("Use an older checkpoint.", "").strip(), loaded.path
                )
            return loaded
        if problems:
            raise CheckpointError(f"None of the {len(problems)} checkpoints in {self.folder} is whole: {problems[0]}")
        raise CheckpointError(f"There is no checkpoint in {self.folder}: none was saved there.")

    def steps(self) -> list[int]:
        """List the steps of which there are checkpoints, whole or not, in order."""
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        matches = (self._name.fullmatch(name) for name in names)
        return sorted({int(found[1]) for found in matches if found and found[0].startswith(".") == bool(found[2])})

    def path(self, step: int) -> Path:
        """Return where the checkpoint of a step is, or would be."""
        padded = self.folder / f"{self.prefix}{step:012d}"
        plain = self.folder / f"{self.prefix}{step}"
        return plain if plain.is_dir() and not padded.is_dir() else padded

    def resume(self, trainer: Any, path: str | os.PathLike[str] | None = None) -> None:
        """Let a trainer go on from the newest checkpoint that is whole, or from the state at `path`.

        What was saved later than that is kept under other names.
        """
        trainer.load_state_dict(self.load().state if path is None else load_state(path)[0])
        self.leave_later(trainer.total_timesteps)

    def leave_later(self, step: int) -> list[Path]:
        """Rename the checkpoints after a step: a run that goes on from there would take them for its own."""
        left: list[Path] = []
        for number in self.steps():
            if number > step:
                path = self.path(number)
                target = _free(path.with_name(f"{path.name}.{_LEFT}"))
                with suppress(FileNotFoundError):  # another process that goes on from there was quicker
                    (path if path.exists() else aside_of(path)).rename(target)
                    left.append(target)
        return left

    def _rotate(self) -> None:
        try:
            self._sweep()
            kept = self._kept(self.steps())
            for step in self.steps():
                if step not in kept:
                    path = self.path(step)
                    going = path.with_name(f".{path.name}.{_REMOVED}")
                    path.rename(going)
                    shutil.rmtree(going)
        except OSError as error:
            _LOG.warning("Old checkpoints in %s could not be removed: %s", self.folder, error)

    def _kept(self, steps: list[int]) -> set[int]:
        kept = set(steps[-self.keep_last :])
        if self.keep_every:
            reached: dict[int, int] = {}
            for step in steps:
                reached.setdefault(step // self.keep_every, step)
            kept |= {step for multiple, step in reached.items() if multiple}
        scored = {step: score for step in steps if (score := self._score(step)) is not None}
        return kept | ({max(scored, key=lambda step: (scored[step], step))} if scored else set())

    def _score(self, step: int) -> float | None:
        if step not in self._scores:
            try:
                self._scores[step] = load_manifest(self.path(step)).get("score")
            except CheckpointError:
                self._scores[step] = None
        return self._scores[step]

    def _sweep(self) -> None:
        """Remove what processes that were killed have left halfway."""
        for name in os.listdir(self.folder):
            if name.startswith(f".{self.prefix}") and name.endswith((f".{_REMOVED}", f".{_SAVING}")):
                shutil.rmtree(self.folder / name)

    # ------------------------------------------------------------------ the parts of a loop of one's own

    def save_policy(self, policy: Any, epoch: int, metadata: Mapping[str, Any] | None = None) -> Any:
        """Save a policy in the store, and return its record; the next trainer state will name it."""
        record = self._store().save(f"epoch_{epoch:06d}", policy, {"epoch": epoch, **(metadata or {})})
        if self.wandb_run is not None:
            self._store().add_to_wandb_run(record, self.wandb_run)
        self._policy_uri = record.uri
        return record

    def save_trainer_state(
        self,
        agent_step: int,
        epoch: int,
        optimizer_state_dict: Mapping[str, Any],
        run_dir: str | os.PathLike[str] | None = None,
        **extra: Any,
    ) -> Path:
        """Save where a loop stands, with the place of the policy that was saved last, and whatever else it names.

        With `run_dir` it is saved among that run's checkpoints instead of here.
        """
        state = {
            "agent_step": agent_step,
            "epoch": epoch,
            "optimizer_state_dict": dict(optimizer_state_dict),
            "policy_uri": self._policy_uri,
            "extra": extra,
        }
        return self._in(run_dir).save(agent_step, state)

    def load_trainer_state(self, run_dir: str | os.PathLike[str] | None = None) -> Checkpoint | None:
        """Return what `save_trainer_state` was told last, or before that where it is damaged; None if nothing."""
        there = self._in(run_dir)
        return Checkpoint(**there.load().state) if there.steps() else None

    def load_policy(self, checkpoint: Checkpoint, env: Any = None) -> Any:
        """Return the record of the policy that belongs to a checkpoint; with `env`, only if it can act there.

        Raises:
            CheckpointError: None was saved before the trainer state: no other takes its place.
        """
        if checkpoint.policy_uri is None:
            raise CheckpointError(
                f"No policy was saved before the trainer state of step {checkpoint.agent_step}, so none belongs to it. "
                "Call save_policy before save_trainer_state."
            )
        record = self._store().load_from_uri(checkpoint.policy_uri)
        if env is not None:
            _require_fit(record, env)
        return record

    def _store(self) -> Policies:
        if self.policy_store is None:
            raise ConfigError("This checkpointer keeps no policies: pass policy_store=PolicyStore(folder) to it.")
        return self.policy_store

    def _in(self, run_dir: str | os.PathLike[str] | None) -> TrainingCheckpointer:
        folder = self.folder if run_dir is None else Path(run_dir) / CHECKPOINTS
        if folder.resolve() == self.folder.resolve():
            return self
        return TrainingCheckpointer(
            folder, keep_last=self.keep_last, keep_every=self.keep_every, config=self._config, prefix=self.prefix
        )


def _require_fit(record: Any, env: Any) -> None:
    try:
        policy = record.policy()
    except PolicyError:  # a network that only its owner can build, and so knows where it can act
        return
    for name in ("observation_space", "action_space"):
        own, there = getattr(policy, name), getattr(env, f"single_{name}", getattr(env, name, None))
        if there is not None and own != there:
            raise CheckpointError(
                f"The policy of {record.uri} is made for {name} {own}, but the environment has {there}. Take it to the "
                "kind of environment that it learned in."
            )


def _free(path: Path) -> Path:
    """Return a name like this one that nothing has yet."""
    taken = (path, *(path.with_name(f"{path.name}{number}") for number in range(2, 10_000)))
    return next(one for one in taken if not one.exists())
