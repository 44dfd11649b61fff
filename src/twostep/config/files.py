"""YAML files of settings: read without surprises, and every fault named on one line with its file and line."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, cast

import yaml

from twostep.config.loading import Source
from twostep.errors import ConfigError
from twostep.files import replace_text
from twostep.values import NUMBER, show

_MOST_BYTES = 1_000_000
_MOST_VALUES = 10_000
_MOST_LEVELS = 50


class _TooDeepError(Exception):
    """The file has more levels than any settings."""


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: `3e-4` is a number, which YAML 1.1 takes for text; and no deeper than settings are."""

    _level = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._level += 1
        if self._level > _MOST_LEVELS:
            raise _TooDeepError
        node = super().compose_node(parent, index)
        self._level -= 1
        return node


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"(?:{NUMBER.pattern})$"), list("-+.0123456789"))


_YAML_ONLY_LINE_BREAKS = ("\x85", "\u2028", "\u2029")
"""Characters that YAML takes for the end of a line, and text need not."""


class _Dumper(yaml.SafeDumper):
    """Quotes text that would otherwise be read as more than one line."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    quoted = any(mark in text for mark in _YAML_ONLY_LINE_BREAKS)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if quoted else None)


_Dumper.add_representer(str, _represent_text)


def read_yaml(path: str | os.PathLike[str], example: str = "env: {id: CartPole-v1}") -> tuple[dict[str, Any], Source]:
    """Return a file's mapping, and where each of its keys stands; `example` is the least that it must hold."""
    file = Path(path)
    text = _read_text(file)
    try:
        data, lines = _parse(text, file.name)
    except yaml.YAMLError as error:
        raise ConfigError(f"{file.name}{_fault(error)}") from None
    except _TooDeepError:
        raise ConfigError(f"{file.name}: nested too deeply: settings have few levels.") from None
    if data is None:
        raise ConfigError(f"{file.name} is empty: write at least {example!r}.")
    if not isinstance(data, dict):
        raise ConfigError(f"{file.name} holds {show(data)}, but must be a mapping such as {example!r}.")
    return cast("dict[str, Any]", data), Source(file.name, lines)


def write_yaml(data: dict[str, Any], path: str | os.PathLike[str], heading: str = "") -> None:
    """Write settings so that `read_yaml` reads the same."""
    try:
        text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    except yaml.YAMLError as error:
        value = error.args[-1]
        raise ConfigError(f"{show(value)} cannot be written to YAML: give text, numbers or lists of them.") from None
    replace_text(path, heading + text)


def _parse(text: str, name: str) -> tuple[Any, dict[tuple[str, ...], int]]:
    loader = _Loader(text)
    node = loader.get_single_node()
    lines = _lines_of_keys(node, name)
    try:
        return (None if node is None else loader.construct_document(node)), lines
    except ValueError as error:
        raise ConfigError(f"{name}: {error}: put that value in quotes.") from None


def _read_text(file: Path) -> str:
    try:
        size, is_folder, is_ordinary = file.stat().st_size, file.is_dir(), file.is_file()
        content = file.read_bytes() if is_ordinary and size <= _MOST_BYTES else b""
    except FileNotFoundError:
        raise ConfigError(f"{file} does not exist: check the path.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{show(str(file))} cannot be read: {reason}.") from None
    if is_folder:
        raise ConfigError(f"{file} is a folder: give a YAML file.")
    if not is_ordinary:
        raise ConfigError(f"{file} is no ordinary file: give a YAML file.")
    if size > _MOST_BYTES:
        raise ConfigError(f"{file} has {size:,} bytes, more than the {_MOST_BYTES:,} of any settings: wrong file?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from None


def _lines_of_keys(root: yaml.Node | None, name: str) -> dict[tuple[str, ...], int]:
    """Walk the document once: refuse duplicate keys, foreign tags and runaway references; note the lines."""
    lines: dict[tuple[str, ...], int] = {}
    pending: list[tuple[tuple[str, ...], yaml.Node | None]] = [((), root)]
    seen = 0
    while pending:
        path, node = pending.pop()
        seen += 1
        if seen > _MOST_VALUES:
            raise ConfigError(f"{name}: more than {_MOST_VALUES:,} values, or references in a circle: wrong file?")
        if len(path) > _MOST_LEVELS:
            raise ConfigError(f"{name}: nested too deeply, or references in a circle: settings have few levels.")
        if node is None:
            continue
        line = node.start_mark.line + 1
        if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.startswith("tag:yaml.org,2002:python"):
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            raise ConfigError(f"{name}:{line}: tag {show(tag)} is not allowed: write plain values.")
        if isinstance(node, yaml.SequenceNode):
            pending.extend((path, member) for member in node.value)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                inner = (*path, *str(key.value).split("."))
                if inner in lines and key.tag != "tag:yaml.org,2002:merge":
                    before = lines[inner]
                    here = key.start_mark.line + 1
                    raise ConfigError(f"{name}:{here}: key {key.value!r} is already on line {before}: keep one.")
                lines[inner] = key.start_mark.line + 1
                pending.extend(((inner, key), (inner, value)))
    return lines


def _fault(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f": not YAML: {' '.join(str(error).split())}."
    line, problem = error.problem_mark.line + 1, " ".join(str(error.problem).split())
    if "'\\t'" in problem:
        return f":{line}: a tab where YAML wants spaces: indent with spaces."
    return f":{line}: not YAML: {problem}. Check colons, quotes and indentation."
