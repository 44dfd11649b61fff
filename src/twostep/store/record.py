"""One saved policy: what is known about it at once, and the policy itself when it is asked for."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import torch
from torch import Tensor

from twostep.checkpoint import load_manifest, load_state, pack, unpack
from twostep.errors import CheckpointError
from twostep.store.architecture import DESCRIPTION, TENSORS, Description, load_into, rebuilt, require_form

FILE, MEMORY, RUN, WANDB = "file://", "memory://", "run://", "wandb://"


@dataclass(frozen=True)
class Held:
    """A saved policy that lies in this process's memory."""

    description: Description
    tensors: Mapping[str, Tensor]

    @classmethod
    def copy_of(cls, description: Description, tensors: Mapping[str, Tensor]) -> Held:
        """Keep copies of tensors on the CPU, which nobody else can change."""
        return cls(copy.deepcopy(description), unpack(*pack(dict(tensors))))


@dataclass(frozen=True, eq=False)
class PolicyRecord:
    """A saved policy. Nothing is loaded before `policy` is called, and every call gives a policy of its own.

    >>> record = PolicyRecord("mine", "file:///runs/CartPole/checkpoint")
    >>> policy = record.policy()
    """

    name: str
    uri: str
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """What was said when it was saved: agent_step, epoch, score, eval_scores, train_time and whatever else."""
    held: Held | None = field(default=None, repr=False)
    """The policy itself, where it is in no folder."""

    @property
    def local_path(self) -> Path | None:
        """The folder that holds it; None where there is none on this machine."""
        return path_of(self.uri) if self.uri.startswith(FILE) else None

    @property
    def saved_at(self) -> int:
        """When it was saved, in nanoseconds since 1970."""
        return self.description()["saved_at"]

    def num_params(self) -> int:
        """Return how many numbers it has learned, without loading it."""
        return self.description()["num_params"]

    def key_and_version(self) -> tuple[str, int]:
        """Return the name, and which of its versions this is: that of the artifact, else its epoch, else 0."""
        _, found, version = self.uri.rpartition(":v")
        if self.uri.startswith(WANDB) and found and version.isdecimal():
            return self.name, int(version)
        return self.name, int(self.metadata.get("epoch") or 0)

    def description(self) -> Description:
        """Return how it is built, as plain JSON."""
        if self.held is not None:
            return self.held.description
        return read_description(self._folder())

    def policy(self, device: torch.device | str | None = None, *, into: Any = None) -> Any:
        """Return the policy as it was saved, on the CPU or a device of one's choice.

        An `ActorCritic` is built from its description. Any other network has to be built by whoever knows how, and is
        passed as `into`: it gets the saved tensors, and is returned.
        """
        description, tensors = self.loaded()
        if into is not None:
            load_into(into, description, tensors, self.uri)
            return into if device is None else into.to(device)
        policy = rebuilt(description, tensors, self.uri)
        return policy if device is None else policy.to(device)

    def loaded(self) -> tuple[Description, Mapping[str, Tensor]]:
        """Return the description and the tensors as they were saved, every byte checked."""
        if self.held is not None:
            return self.held.description, self.held.tensors
        folder = self._folder()
        state, manifest = load_state(folder)
        return description_in(manifest, folder), state[TENSORS]

    def _folder(self) -> Path:
        if self.local_path is None:
            raise CheckpointError(
                f"{self.uri} is in no folder that could be read: ask the store that it came from, "
                f"PolicyStore.load_from_uri({self.uri!r})."
            )
        return self.local_path


def read_description(folder: Path) -> Description:
    """Return the description of the policy that a folder holds, without reading its tensors."""
    return description_in(load_manifest(folder), folder)


def description_in(manifest: Mapping[str, Any], where: object) -> Description:
    """Return the description of a policy that a manifest holds."""
    if DESCRIPTION not in manifest:
        raise CheckpointError(
            f"{where} is a saved state without the description of a policy. Save policies with PolicyStore.save, or "
            "checkpoints with PPOTrainer.save_checkpoint."
        )
    require_form(manifest[DESCRIPTION], where)
    return manifest[DESCRIPTION]


def path_of(uri: str) -> Path:
    """Return the path that a `file://` URI means, absolute or from here."""
    return Path(unquote(uri.removeprefix(FILE)))
