"""Several processes that torchrun has started for one run: who has which environments, and whose folder it is."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from twostep.cli.locking import start_of
from twostep.cli.terrains import QUADRUPED
from twostep.config import TrainingConfig
from twostep.errors import ConfigError
from twostep.files import replace_text
from twostep.launch import launch
from twostep.vector.parts import usable_cores

LAUNCH_FILE = ".launch"
"""By whom the processes of a run were started last, so that those started in their place go on with it."""


def own_part(config: TrainingConfig) -> TrainingConfig:
    """Return the settings with this process's share of the environments: a configuration counts those of all."""
    started, env = launch(), config.env
    if env.num_envs < started.size:
        raise ConfigError(
            f"num_envs={env.num_envs} leaves some of {started.size} processes without an environment: give at least "
            f"one to each, --num_envs {started.size}, or start fewer processes."
        )
    workers = max(started.share(env.num_workers), min(1, env.num_workers))
    own = replace(config, env=replace(env, num_envs=started.share(env.num_envs), num_workers=workers))
    return cores_shared(own, started.local_size * max(1, workers))


def cores_shared(config: TrainingConfig, processes: int) -> TrainingConfig:
    """Return the settings of one of so many processes side by side: robots are not stepped on all cores by each."""
    env = config.env
    if env.id != QUADRUPED or env.kwargs.get("threads") or processes == 1:
        return config
    return replace(config, env=replace(env, kwargs={**env.kwargs, "threads": max(1, usable_cores() // processes)}))


@contextmanager
def joined(config: TrainingConfig) -> Generator[None]:
    """Join the other processes, if torchrun has started any, for as long as this is entered."""
    if launch().size == 1:
        yield
        return
    import torch

    from twostep.group import joined_group

    on_gpu = config.device.startswith("cuda") or (config.device == "auto" and torch.cuda.is_available())
    with joined_group("cuda" if on_gpu else "cpu", config.trainer.group_timeout):
        yield


def mark_launched(folder: Path) -> None:
    """Note in the folder of a run who started its processes."""
    if launch().size > 1:
        replace_text(folder / LAUNCH_FILE, json.dumps(_launcher()))


def launched_before(config: TrainingConfig) -> Path | None:
    """Return the folder of the run that torchrun, after a failure, starts these processes to go on with.

    The process that leads looks and tells the others: it noted who started it, and theirs may be on another machine.
    """
    if launch().size == 1:
        return None
    from twostep.group import present_group

    group = present_group()
    folder = group.tell(_noted_folder(config) if group.leads else "")[0]
    return Path(folder) if folder else None


def _noted_folder(config: TrainingConfig) -> str:
    if not launch().restarts:
        return ""
    files = Path(config.logging.run_dir).glob(f"*/{LAUNCH_FILE}")
    return next((str(file.parent) for file in files if json.loads(file.read_text()) == _launcher()), "")


def _launcher() -> list[str | int | None]:
    agent = os.getppid()
    return [os.environ.get("TORCHELASTIC_RUN_ID"), platform.node(), agent, start_of(agent)]
