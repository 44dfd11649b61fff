"""The tuned settings that ship with twostep: one YAML file per task, in `twostep/configs`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import as_file, files
from typing import Any

from twostep.config.tree import TrainingConfig


@cache
def shipped_configs() -> dict[str, str]:
    """Return the environment id of every shipped file by the file's name without `.yaml`."""
    names = sorted(file.name for file in (files("twostep") / "configs").iterdir())
    tasks = [name.removesuffix(".yaml") for name in names if name.endswith(".yaml")]
    return {task: _read(task, {}).env.id for task in tasks}


def shipped_config(task: str, changes: Mapping[str, Any] | None = None) -> TrainingConfig | None:
    """Return the settings shipped under a file's name or else for an environment's id, or None where there are none."""
    shipped = shipped_configs()
    name = task if task in shipped else next((name for name, env_id in shipped.items() if env_id == task), None)
    return None if name is None else _read(name, changes or {})


def _read(name: str, changes: Mapping[str, Any]) -> TrainingConfig:
    with as_file(files("twostep") / "configs" / f"{name}.yaml") as path:
        return TrainingConfig.from_yaml(path, changes)
