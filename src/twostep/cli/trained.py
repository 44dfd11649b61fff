"""An agent that was trained: that of a run, or any saved policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from twostep.cli.runs import CHECKPOINTS, CONFIG_FILE, find_run, require_checkpoint
from twostep.cli.training import load_newest
from twostep.config import TrainingConfig
from twostep.errors import ConfigError
from twostep.learn.settings import ImitationConfig

if TYPE_CHECKING:
    from twostep.store import PolicyRecord
    from twostep.trainer import PPOTrainer


def names_policy(where: str) -> bool:
    """Tell whether `where` is one saved policy rather than a run: a URI, or the folder of a saved state."""
    from twostep.checkpoint import MANIFEST_FILE

    return "://" in where or (Path(where) / MANIFEST_FILE).is_file()


def find_policy(where: str) -> tuple[Path | None, PolicyRecord]:
    """Return a saved policy, or that of a run's newest checkpoint, and the folder of the run that it belongs to."""
    from twostep.store import PolicyStore

    if not names_policy(where):
        folder = find_run(where)
        require_checkpoint(folder)
        return folder, PolicyStore().policy(folder / CHECKPOINTS)
    record = PolicyStore().policy(where)
    parents = record.local_path.parents[:2] if record.local_path is not None else ()
    return next((parent for parent in parents if (parent / CONFIG_FILE).is_file()), None), record


@dataclass(frozen=True)
class Trained:
    """An agent in the environment that it was trained in: the one of a run, or one of its saved policies."""

    folder: Path
    record: PolicyRecord | None

    @classmethod
    def found(cls, where: str) -> Trained:
        """Find it by a run's folder, a folder of runs, or a saved policy's folder or URI."""
        if not names_policy(where):
            folder = find_run(where)
            require_checkpoint(folder)
            return cls(folder, None)
        folder, record = find_policy(where)
        if folder is None:
            raise ConfigError(
                f"{where} is in no run's folder, so there is no {CONFIG_FILE} that says what to play: score it with "
                "'twostep eval --suite FILE', or give a run's folder."
            )
        return cls(folder, record)

    def config(self) -> TrainingConfig:
        """Return the settings that it was trained with, without a teacher: it acts alone now."""
        return replace(TrainingConfig.from_yaml(self.folder / CONFIG_FILE), imitation=ImitationConfig())

    @property
    def teacher(self) -> str:
        """Name of the teacher whom it imitated; empty for one that learned by rewards."""
        return TrainingConfig.from_yaml(self.folder / CONFIG_FILE).imitation.teacher

    def load_into(self, trainer: PPOTrainer) -> None:
        """Let the trainer's policy be this agent."""
        if self.record is None:
            load_newest(trainer, self.folder)
        else:
            self.record.policy(into=trainer.policy)

    def __str__(self) -> str:
        return str(self.folder if self.record is None else self.record.local_path)
