"""Settings as options of a script's own command line, and those of a run that goes on."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from twostep.config.loading import field_docs
from twostep.errors import ConfigError
from twostep.values import convert, write

SETTINGS_FILE = "config.json"
"""What a script was told, in the folder of its run; `metrics.jsonl` beside it tells that a run has begun there."""


def add_settings(parser: Any, defaults: Any, names: Iterable[str] | None = None) -> None:
    """Let a command line take settings of a dataclass, or those of `names`: `--name value` for each field.

    Values are read as everywhere (`--lr 3e-4`, `--target-kl none`); a truth value may do without one: `--clip-vloss`.
    """
    hints, docs = get_type_hints(type(defaults)), field_docs(type(defaults))
    for name in [field.name for field in fields(defaults)] if names is None else names:
        option, default = f"--{name.replace('_', '-')}", getattr(defaults, name)
        read: Callable[[str], Any] = partial(
            _read, name=name, annotation=hints[name], default=default, finite=name != "max_grad_norm"
        )
        flag = {"nargs": "?", "const": True} if hints[name] is bool else {}
        about = f"{docs[name]} [{write(default)}]".replace("%", "%%")
        parser.add_argument(option, type=read, default=default, metavar="X", help=about, **flag)


def _read(text: str, *, name: str, annotation: Any, default: Any, finite: bool) -> Any:
    try:
        return convert(name, text, annotation, default=default, finite=finite)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_run(parser: argparse.ArgumentParser, words: Sequence[str] | None, fixed: Iterable[str]) -> argparse.Namespace:
    """Read the command line of a script with `--run-dir` and `--resume`; a run that goes on keeps its settings.

    `--resume` names a checkpoint in the folder of a run, that folder, or `latest`, which is that of `--run-dir`. What
    the run was told is the default then, and what is `fixed` cannot change. Of what is returned, `run_dir` is its
    folder and `checkpoint` the one that was named, None for the newest.

    Raises:
        ConfigError: There is no run to go on with, or a new one would be mixed with another.
    """
    given = parser.parse_args(words)
    if given.resume is None:
        if (given.run_dir / SETTINGS_FILE).exists() or (given.run_dir / "metrics.jsonl").exists():
            raise ConfigError(f"{given.run_dir} holds a run: go on with --resume latest, or give another --run-dir.")
        return given
    start = given.run_dir if given.resume == "latest" else Path(given.resume)
    run_dir = next((one for one in (start, *list(start.parents)[:2]) if (one / SETTINGS_FILE).is_file()), None)
    if run_dir is None:
        raise ConfigError(f"--resume {given.resume}: {start} is in no run's folder. Leave --resume out to begin a run.")
    saved = _settings_in(run_dir)
    parser.set_defaults(**saved)
    going_on = parser.parse_args(words)
    for name in fixed:
        value = getattr(going_on, name)
        if name in saved and value != saved[name]:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option}={write(value)}, but this run has {write(saved[name])}, which cannot change on the way: "
                f"leave {option} out, or begin another run."
            )
    going_on.run_dir, going_on.checkpoint = run_dir, None if start == run_dir else start
    return going_on


def _settings_in(run_dir: Path) -> dict[str, Any]:
    try:
        saved = json.loads((run_dir / SETTINGS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{run_dir / SETTINGS_FILE} cannot be read: {error}. Begin another run.") from error
    return {name: value for name, value in saved.items() if name not in ("run_dir", "resume")}
