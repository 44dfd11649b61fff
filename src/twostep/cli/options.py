"""From the words of a command line to settings: every setting is an option, by any of its names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

from twostep.config import VOCABULARY, UnknownSettingError
from twostep.config.loading import Source
from twostep.errors import ConfigError
from twostep.values import convert, parse_text, show, suggest

_COUNTS = ("episodes", "inputs", "trials", "workers", "seeds")
"""Options of which there must be one at least."""


class UsageError(ConfigError):
    """Words that make no command."""


@dataclass(frozen=True)
class EvaluationRequest:
    """What `twostep eval` was asked for; None means as the run was configured."""

    run: str = "runs"
    episodes: int | None = None
    sample: bool = False
    seed: int | None = None
    device: str | None = None
    suite: str | None = None
    out: str | None = None


@dataclass(frozen=True)
class PlayRequest:
    """What `twostep play` was asked for; None means as the run was configured, or beside what was given."""

    what: str = EvaluationRequest.run
    out: str | None = None
    episodes: int | None = None
    seed: int | None = None
    animation: bool = True
    device: str | None = None


@dataclass(frozen=True)
class InspectRequest:
    """What `twostep inspect` was asked for; without `out` the picture goes beside the rollout."""

    what: str = EvaluationRequest.run
    out: str | None = None
    plot: bool = True


@dataclass(frozen=True)
class ExportRequest:
    """What `twostep export` was asked for; without `out` the file goes into the run's folder."""

    what: str = EvaluationRequest.run
    out: str | None = None
    masks: bool = False
    inputs: int = 1_000


@dataclass(frozen=True)
class TuneRequest:
    """What `twostep tune` was asked for; without `out` the study's folder is named by what is trained."""

    task: str
    changes: dict[str, Any]
    space: str = "lr,clip,ent,bptt"
    trials: int | None = None
    workers: int = 1
    out: str | None = None
    study: dict[str, Any] = field(default_factory=dict[str, Any])
    """What makes it another study: grid, seeds, metric, pruner."""


def parse_train(words: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the environment or YAML file, and the changed settings by dotted name."""
    tasks, changes = _parse_settings(words)
    if not tasks or not tasks[0]:
        raise UsageError("train needs an environment or a YAML file, such as 'twostep train CartPole-v1'.")
    return tasks[0], changes


def parse_resume(words: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the run's folder, or that of the newest run, and the changed settings by dotted name."""
    runs, changes = _parse_settings(words)
    return (runs[0] if runs else EvaluationRequest.run), changes


def _parse_settings(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    tasks: list[str] = []
    changes: dict[str, Any] = {}
    remaining = iter(_Words(words))
    for word in remaining:
        if not word.startswith("--"):
            tasks.append(word)
            continue
        option, given = _split(word)
        path, value = _setting(option, given, remaining)
        name = ".".join(path)
        if name in changes:
            raise UsageError(f"--{name} is given twice, with {show(changes[name])} and {show(value)}: keep one.")
        changes[name] = value
    if wrong := [task for task in tasks if task.startswith("-")]:
        raise UsageError(f"{show(wrong[0])} is no option: options begin with two hyphens, such as --lr 1e-3.")
    if len(tasks) > 1:
        raise UsageError(f"{show(tasks[1])} is one word too many after {show(tasks[0])}: options begin with --.")
    return tasks, changes


def parse_eval(words: list[str]) -> EvaluationRequest:
    """Read what to evaluate, and how."""
    kinds: dict[str, Any] = {"episodes": int, "sample": bool, "seed": int, "device": str, "suite": str, "out": str}
    runs, asked = _parse_request(words, "eval", kinds)
    if "out" in asked and "suite" not in asked:
        raise UsageError("--out is where the results of a suite go: add --suite FILE, or leave --out out.")
    return EvaluationRequest(**{"run": runs[0]} if runs else {}, **asked)


def parse_play(words: list[str]) -> PlayRequest:
    """Read what to show, and how."""
    kinds: dict[str, Any] = {"out": str, "episodes": int, "seed": int, "animation": bool, "device": str}
    shown, asked = _parse_request(words, "play", kinds)
    return PlayRequest(**{"what": shown[0]} if shown else {}, **asked)


def parse_inspect(words: list[str]) -> InspectRequest:
    """Read what to look at."""
    shown, asked = _parse_request(words, "inspect", {"out": str, "plot": bool})
    return InspectRequest(**{"what": shown[0]} if shown else {}, **asked)


def parse_export(words: list[str]) -> ExportRequest:
    """Read what to write as a file for other programs, and where."""
    given, asked = _parse_request(words, "export", {"out": str, "masks": bool, "inputs": int})
    return ExportRequest(**{"what": given[0]} if given else {}, **asked)


def parse_tune(words: list[str]) -> TuneRequest:
    """Read what to search, how, and the settings that all trials share."""
    study = {"grid": bool, "seeds": int, "metric": str, "pruner": str}
    kinds = {"space": str, "trials": int, "workers": int, "out": str, **study}
    own, others = _divided(words, kinds)
    _, asked = _parse_request(own, "tune", kinds)
    tasks, changes = _parse_settings(others)
    if not tasks:
        raise UsageError("tune needs an environment or a YAML file, such as 'twostep tune CartPole-v1 --space lr,ent'.")
    about = {name: asked.pop(name) for name in study if name in asked}
    return TuneRequest(tasks[0], changes, **asked, study=about)


def _divided(words: list[str], kinds: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Part the words of a command's own options from all others."""
    own: list[str] = []
    others: list[str] = []
    remaining = _Words(words)
    for word in remaining:
        name, equals, _ = word.removeprefix("--").partition("=")
        mine = word.startswith("--") and name in kinds
        (own if mine else others).append(word)
        if mine and not equals and kinds[name] is not bool and not remaining.peek().startswith("--"):
            own.append(next(remaining, ""))
    return own, others


def _parse_request(words: list[str], command: str, kinds: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the words that are no options, at most one, and the options; `--no_NAME` switches off."""
    others: list[str] = []
    asked: dict[str, Any] = {}
    remaining = iter(_Words(words))
    for word in remaining:
        if not word.startswith("--"):
            others.append(word)
            continue
        option, given = _split(word)
        if given is None and kinds.get(option.removeprefix("no_")) is bool and option not in kinds:
            option, given = option.removeprefix("no_"), "false"
        if option not in kinds:
            near = suggest(option, list(kinds)).replace("'", "--", 1).replace("'", "")
            raise UsageError(f"--{option} is no option of {command}.{near} Options: --{', --'.join(kinds)}.")
        if option in asked:
            raise UsageError(f"--{option} is given twice: keep one.")
        text = _value(option, given, remaining, flag=kinds[option] is bool)
        asked[option] = convert(f"--{option}", text, kinds[option], default="20")
        least = int(option in _COUNTS)
        if kinds[option] is int and asked[option] < least:
            raise UsageError(f"--{option}={asked[option]} must be {least} or more: 20 is usual.")
    if len(others) > 1:
        raise UsageError(f"{show(others[1])} is one word too many after {show(others[0])}: give one run.")
    if wrong := [word for word in others if word.startswith("-")]:
        raise UsageError(f"{show(wrong[0])} is no option: options begin with two hyphens, such as --episodes 10.")
    return others, asked


class _Words:
    """The words still to be read, with a look at the next one."""

    def __init__(self, words: list[str]) -> None:
        self._words, self._next = words, 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._next == len(self._words):
            raise StopIteration
        self._next += 1
        return self._words[self._next - 1]

    def peek(self) -> str:
        """Return the next word, or an empty one."""
        return self._words[self._next] if self._next < len(self._words) else ""


def _split(word: str) -> tuple[str, str | None]:
    option, equals, value = word[2:].partition("=")
    if not option:
        raise UsageError(f"{show(word)} is no option: write --name value, such as --lr 1e-3.")
    return option.replace("-", "_") if "kwargs" not in option else option, value if equals else None


def _setting(option: str, given: str | None, remaining: Iterator[str]) -> tuple[tuple[str, ...], Any]:
    if given is None and option.startswith("no_"):
        path = _known(option.removeprefix("no_"), option)
        if _is_flag(path):
            return path, False
        raise UsageError(f"--{option} is no option: --{'.'.join(path)} takes a value.")
    path = _known(option, option)
    if (VOCABULARY.holds_settings(path) and path[0] not in VOCABULARY.short_forms) or (
        len(path) > 1 and path[-1] == "kwargs"
    ):
        raise UsageError(f"--{option} is a group: write --{'.'.join(path)}.NAME value for one of its settings.")
    text = _value(option, given, remaining, flag=_is_flag(path))
    return path, parse_text(text) if path[:2] == ("env", "kwargs") else text


def _known(name: str, option: str) -> tuple[str, ...]:
    try:
        return VOCABULARY.resolve(tuple(name.split(".")), Source())
    except UnknownSettingError as error:
        message = re.sub(r"'([^']*)'", r"--\1", str(error).partition(" is no setting.")[2])
        raise UsageError(f"--{option} is no option.{message}") from None


def _is_flag(path: tuple[str, ...]) -> bool:
    annotation = VOCABULARY.fields[path].annotation if path in VOCABULARY.fields else None
    return annotation is bool or bool in get_args(annotation)


def _value(option: str, given: str | None, remaining: Any, *, flag: bool) -> str:
    if given is not None:
        return given
    following = remaining.peek()
    if flag:
        is_answer = following.lower() in ("true", "false", "yes", "no", "on", "off", "none")
        return next(remaining) if is_answer else "true"
    if not following or following.startswith("--"):
        raise UsageError(f"--{option} needs a value, such as --{option}=VALUE; 'twostep train --help' lists all.")
    return next(remaining)
