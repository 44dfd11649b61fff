"""Values of settings: from text, YAML or Python to exactly the type a field declares, or one line saying why not."""

from __future__ import annotations

import math
import numbers
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import date
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from twostep.errors import ConfigError

NUMBER = re.compile(r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?")
"""Numbers as people write them, `3e-4` and `50_000` included."""

_WORDS: dict[str, Any] = {
    "none": None,
    "null": None,
    "~": None,
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
    "inf": math.inf,
    "+inf": math.inf,
    "-inf": -math.inf,
    ".inf": math.inf,
    "-.inf": -math.inf,
    "nan": math.nan,
    ".nan": math.nan,
}
_TYPES_IN_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_LONGEST_VALUE = 60


def convert(name: str, value: Any, annotation: Any, *, default: Any = "", finite: bool = True) -> Any:
    """Return `value` as the annotated type.

    Text is read the way a command line means it, so `"3e-4"` is a number where a number is due; a bool never passes
    for a number, and a list becomes the tuple a field declares.
    """
    candidate = parse_text(value) if isinstance(value, str) and not _takes_text(annotation) else value
    try:
        result = _adapter(annotation).validate_python(_plain(candidate, annotation), strict=True)
    except ValidationError:
        way_out = _way_out(value, annotation) or f": {write(default)} is the default."
        raise ConfigError(f"{name}={show(value)} must be {rule_for(annotation)}{way_out}") from None
    if finite and any(isinstance(number, float) and not math.isfinite(number) for number in _flat(result)):
        raise ConfigError(f"{name}={show(value)} must be finite: {write(default)} is the default.")
    return result


def settle(config: Any, *, infinite: tuple[str, ...] = ()) -> None:
    """Bring every field of a dataclass of settings to exactly the type it declares, or say in one line why not.

    What Python code passes is taken as it is: text is no number here. `infinite` names the fields that may be infinite.
    """
    hints = _hints(type(config))
    for declared in fields(config):
        name, annotation = declared.name, hints[declared.name]
        default = declared.default_factory() if declared.default_factory is not MISSING else declared.default
        if is_dataclass(annotation):  # a section, whose fields were settled when it was made
            continue
        value = _settled(name, getattr(config, name), annotation, default, name not in infinite)
        object.__setattr__(config, name, value)  # past what freezes the dataclass


def _settled(name: str, value: Any, annotation: Any, default: Any, finite: bool) -> Any:
    if get_origin(annotation) is dict:
        inner = get_args(annotation)[1]
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name}={show(value)} must be a mapping: {write(default) if default else '{}'}.")
        entries = cast("Mapping[str, Any]", value).items()
        return {key: _settled(f"{name}.{key}", one, inner, default, finite) for key, one in entries}
    if annotation is Any:
        return value
    if isinstance(value, str) and not _takes_text(annotation):
        raise ConfigError(f"{name}={show(value)} must be {rule_for(annotation)}, not text: take off the quotes.")
    return convert(name, value, annotation, default=default, finite=finite)


def parse_text(text: str) -> Any:
    """Read one word from a command line: a number, true, false, none, a list with commas, or itself."""
    stripped = text.strip()
    if "," in stripped or stripped[:1] in ("[", "("):
        return tuple(parse_text(part.strip()) for part in stripped.strip("[]()").split(",") if part.strip())
    if stripped.lower() in _WORDS:
        return _WORDS[stripped.lower()]
    if NUMBER.fullmatch(stripped):
        digits = stripped.replace("_", "")
        return int(digits) if re.fullmatch(r"[-+]?\d{1,4000}", digits) else float(digits)
    return text


def rule_for(annotation: Any) -> str:
    """Say in words what a field takes."""
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(annotation))
    if _is_union(annotation):
        return " or ".join(rule_for(member) for member in get_args(annotation))
    if annotation is type(None):
        return "none"
    if get_origin(annotation) is tuple:
        members = get_args(annotation)
        word = rule_for(members[0]).removeprefix("a ")
        plural = word if word == "text" else f"{word}s"
        return f"a list of {plural}" if members[-1] is Ellipsis else f"{len(members)} {plural}"
    return _TYPES_IN_WORDS.get(annotation, "a mapping")


def show(value: Any) -> str:
    """Write a value for an error message: on one line, and short even where the value is not."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def suggest(wrong: str, names: list[str]) -> str:
    """Return ` Did you mean 'x'?` for the nearest of `names`, or nothing when none is near."""
    nearest = get_close_matches(wrong.lower(), names, n=1, cutoff=0.6)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def write(value: Any) -> str:
    """Write a value the way a command line takes it."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(write(member) for member in cast("tuple[Any, ...]", value))
    return str(value) if value != "" else "empty"


def _way_out(value: Any, annotation: Any) -> str:
    choices = [choice for choice in _literals(annotation) if isinstance(choice, str)]
    if choices:
        return suggest(str(value), choices) and f".{suggest(str(value), choices)}"
    if _takes_text(annotation) and isinstance(value, (int, float, date)):
        return ": put it in quotes."
    if isinstance(value, float) and not value.is_integer() and math.isfinite(value):
        return f": {math.floor(value)}?"
    return ""


def _plain(value: Any, annotation: Any) -> Any:
    """Undo what strictness would refuse for no good reason: NumPy's numbers, `1e6` for an int, a list for a tuple."""
    if get_origin(annotation) is tuple and not isinstance(value, (list, tuple)):
        value = () if value is None else (value,)
    if isinstance(value, (list, tuple)):
        members = cast("list[Any] | tuple[Any, ...]", value)
        return tuple(_plain_number(member, annotation) for member in members)
    return _plain_number(value, annotation)


def _plain_number(value: Any, annotation: Any) -> Any:
    if isinstance(value, str) and not _mentions(annotation, str):
        value = value if get_origin(annotation) is Literal else parse_text(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return int(number) if _mentions(annotation, int) and number.is_integer() else number
    return value


def _mentions(annotation: Any, kind: type) -> bool:
    return annotation is kind or any(_mentions(member, kind) for member in get_args(annotation))


def _takes_text(annotation: Any) -> bool:
    members = get_args(annotation) if _is_union(annotation) else (annotation,)
    return any(member is str or get_origin(member) is Literal for member in members)


def _literals(annotation: Any) -> tuple[Any, ...]:
    members = get_args(annotation) if _is_union(annotation) else (annotation,)
    return tuple(choice for member in members if get_origin(member) is Literal for choice in get_args(member))


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _flat(value: Any) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


@cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)
