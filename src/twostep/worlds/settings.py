"""What the settings of all worlds share: reading them from mappings, and refusing what cannot work in one sentence."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from twostep.errors import ConfigError

KINDS: dict[type, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int, np.integer)),
    float: ("a finite number", (int, float, np.integer, np.floating)),
}
"""What a setting must be, by the type of its default."""


class _Dataclass(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


Settings = TypeVar("Settings", bound=_Dataclass)


def settings_from(kind: type[Settings], values: Mapping[str, Any], world: str, prefix: str = "") -> Settings:
    """Make a dataclass of settings from a mapping; names that it does not have are refused.

    A name may be dotted, as command lines have it: `rewards.zone` is `zone` of the settings `rewards`.
    """
    values = _nested(values)
    names = [known.name for known in fields(kind)]
    for name in values:
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"Did you mean {prefix}{close[0]}?" if close else f"Settings are {', '.join(names)}."
            raise ConfigError(f"{prefix}{name} is no setting of {world}. {hint}")
    return kind(**values)


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted names into mappings."""
    nested = {name: value for name, value in values.items() if "." not in name}
    for name, value in values.items():
        first, dot, rest = name.partition(".")
        if dot:
            nested[first] = {**nested.get(first, {}), rest: value}
    return nested


def check_kinds(settings: Any) -> None:
    """Refuse what is no number, or no finite one, where one belongs, before anything is compared with it."""
    for setting in fields(settings):
        value, default = getattr(settings, setting.name), setting.default
        if type(default) not in KINDS:
            continue
        kind, types = KINDS[type(default)]
        fits = isinstance(value, types) and (type(value) is bool) == (bool in types)
        if not fits or not math.isfinite(value):
            raise ConfigError(f"{setting.name}={value!r} must be {kind}: {default} is the default.")


def require(settings: Any, name: str, holds: bool, rule: str, way_out: str) -> None:
    """Refuse a setting's value for which something does not hold."""
    if not holds:
        raise ConfigError(f"{name}={getattr(settings, name)!r} must be {rule}: {way_out}.")
