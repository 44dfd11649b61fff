"""States on the disk: whole or refused, in folders that rotate, and never a pickle."""

from twostep.checkpoint.checkpointer import CHECKPOINTS, Checkpoint, Loaded, TrainingCheckpointer
from twostep.checkpoint.files import (
    FORMAT_VERSION,
    LARGEST_MANIFEST,
    MANIFEST_FILE,
    TENSORS_FILE,
    NewerFormatError,
    load_manifest,
    load_state,
    save_state,
)
from twostep.checkpoint.generators import (
    generator_state,
    process_generators,
    restore_generator,
    restore_process_generators,
    seed_from,
)
from twostep.checkpoint.packing import State, from_bytes, pack, to_bytes, unpack

__all__ = [
    "CHECKPOINTS",
    "FORMAT_VERSION",
    "LARGEST_MANIFEST",
    "MANIFEST_FILE",
    "TENSORS_FILE",
    "Checkpoint",
    "Loaded",
    "NewerFormatError",
    "State",
    "TrainingCheckpointer",
    "from_bytes",
    "generator_state",
    "load_manifest",
    "load_state",
    "pack",
    "process_generators",
    "restore_generator",
    "restore_process_generators",
    "save_state",
    "seed_from",
    "to_bytes",
    "unpack",
]
