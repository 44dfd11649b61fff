"""The folder of a run: what is in it, how it is made, how it is found again."""

from __future__ import annotations

import os
import re
from datetime import datetime
from pathlib import Path

from twostep.config import TrainingConfig
from twostep.errors import ConfigError
from twostep.values import show

CONFIG_FILE = "config.yaml"
METRICS_FILE = "metrics.jsonl"
CSV_FILE = "metrics.csv"
CURVE_FILE = "learning_curve.png"
CHECKPOINTS = "checkpoints"
ROLLOUTS = "rollouts"
_CHECKPOINT = re.compile(r"step_(\d+)")


def make_run_folder(config: TrainingConfig, command: str) -> Path:
    """Make a new folder named by experiment and time, and write the effective settings into it."""
    name = re.sub(r"[^\w.-]+", "-", config.experiment_name or config.env.id).strip("-.") or "run"
    stem = f"{name}-{datetime.now():%Y-%m-%d-%H%M%S}"
    parent = Path(config.logging.run_dir)
    for suffix in ("", *(f"-{count}" for count in range(2, 1000))):
        folder = parent / f"{stem}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError as error:
            if not folder.is_dir():
                raise ConfigError(f"run_dir={show(str(parent))} is a file: choose a folder with --run_dir.") from error
            continue
        except OSError as error:
            raise ConfigError(f"run_dir={show(str(parent))} cannot be made: {error.strerror}.") from error
        config.save_yaml(folder / CONFIG_FILE, command)
        return folder
    raise ConfigError(f"{parent} holds a thousand runs of this second: choose another folder with --run_dir.")


def require_checkpoint(folder: Path) -> None:
    """Refuse the folder of a run that saved nothing yet."""
    names = os.listdir(folder / CHECKPOINTS) if (folder / CHECKPOINTS).is_dir() else []
    if not any(_CHECKPOINT.search(name) for name in names):
        raise ConfigError(f"{folder} holds no checkpoint: it was stopped before one was saved. Train again.")


def find_checkpoint(where: str) -> tuple[Path, int | None]:
    """Return the run's folder and the step that `where` names: a checkpoint in it, or a run, as `find_run` finds it."""
    path = Path(where)
    named = _CHECKPOINT.fullmatch(path.name)
    if named and path.is_dir() and (path.parent.parent / CONFIG_FILE).is_file():
        return path.parent.parent, int(named[1])
    folder = find_run(where)
    require_checkpoint(folder)
    return folder, None


def find_run(where: str) -> Path:
    """Return the run's folder that `where` is, or the newest run anywhere inside it."""
    folder = Path(where)
    if (folder / CONFIG_FILE).is_file():
        return folder
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {show(where)}: give a run's folder; 'twostep train' says where it is.")
    configs = [*folder.glob(f"*/{CONFIG_FILE}"), *folder.glob(f"*/*/{CONFIG_FILE}")]
    if not configs:
        raise ConfigError(f"{show(where)} holds no run: no {CONFIG_FILE} in it. Train one with 'twostep train'.")
    return max(configs, key=lambda file: (file.stat().st_mtime_ns, str(file))).parent
