"""Policies as artifacts of Weights & Biases, where it is installed."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twostep.checkpoint import load_state, save_state
from twostep.errors import CheckpointError, ConfigError
from twostep.store.architecture import DESCRIPTION, TENSORS
from twostep.store.record import WANDB, Held, description_in

if TYPE_CHECKING:
    from twostep.store.record import PolicyRecord

KIND = "policy"
"""The type of artifact that policies have."""


def held_artifact(uri: str) -> tuple[Held, str]:
    """Fetch the policy that a `wandb://` URI names into memory, checked like any saved state; and its name."""
    path = uri.removeprefix(WANDB)
    wandb = _wandb()
    with tempfile.TemporaryDirectory() as folder:
        try:
            wandb.Api().artifact(path).download(root=folder)
        except Exception as error:  # whatever a network and a foreign library raise
            raise CheckpointError(
                f"{uri} cannot be fetched: {type(error).__name__}: {error}. It must be "
                f"{WANDB}ENTITY/PROJECT/NAME:VERSION, with 'wandb login' done before."
            ) from error
        state, manifest = load_state(folder)
        held = Held(description_in(manifest, uri), state[TENSORS])
    return held, path.rpartition("/")[2].partition(":")[0]


def log_artifact(record: PolicyRecord, run: Any) -> Any:
    """Send a record's policy to a run."""
    artifact = _wandb().Artifact(record.name, type=KIND, metadata=record.metadata)
    with tempfile.TemporaryDirectory() as folder:
        description, tensors = record.loaded()
        copy = save_state(Path(folder) / record.name, {TENSORS: dict(tensors)}, {DESCRIPTION: description})
        artifact.add_dir(str(copy))
    run.log_artifact(artifact)
    return artifact


def _wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise ConfigError(
            f"{WANDB} needs the package wandb: pip install wandb, or keep policies in folders with file://."
        ) from error
