"""From what people write (nested, flat, dotted, with old names) to the fields of a tree of dataclasses."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, cast, get_args, get_origin, get_type_hints

from twostep.errors import ConfigError
from twostep.values import convert, show, suggest

Path = tuple[str, ...]


class UnknownSettingError(ConfigError, TypeError):
    """A name that no setting has; a TypeError too, as for any unknown keyword."""


@dataclass(frozen=True)
class Source:
    """Where settings were written, for messages that say it."""

    name: str = ""
    lines: Mapping[Path, int] = field(default_factory=dict[Path, int])

    def inside(self, above: Path) -> Source:
        """Return where the settings under a key were written."""
        depth = len(above)
        return Source(self.name, {path[depth:]: line for path, line in self.lines.items() if path[:depth] == above})

    def at(self, written: Path) -> str:
        """Return `file.yaml:7: ` for a key, as near as it is known."""
        if not self.name:
            return ""
        known = [written[:length] for length in range(len(written), -1, -1) if written[:length] in self.lines]
        return f"{self.name}:{self.lines[known[0]]}: " if known else f"{self.name}: "


@dataclass(frozen=True)
class Entry:
    """One value as somebody wrote it."""

    value: Any
    written: Path
    source: Source


@dataclass(frozen=True)
class Field:
    """One setting: what it takes, what it is by itself, and what it means."""

    path: Path
    annotation: Any
    default: Any
    doc: str

    @property
    def name(self) -> str:
        """The dotted name."""
        return ".".join(self.path)


@dataclass(frozen=True)
class Vocabulary:
    """The names that lead to fields: their own, and every other in use."""

    root: type
    aliases: Mapping[str, str]
    """Other names of settings, plain or dotted, to dotted names."""
    sections: Mapping[str, str]
    """Names of sections, their own included, to dotted names."""
    short_forms: Mapping[str, str]
    """Sections that may be given as one text, to the setting which that text then is."""
    only_dotted: frozenset[str]
    """Names that say too little without their section."""
    derived: frozenset[Path]
    """Paths of no field, from which one is computed."""
    infinite: frozenset[Path]
    """Settings that may be infinite."""

    @property
    def fields(self) -> dict[Path, Field]:
        """Every setting by its path."""
        return field_table(self.root)

    def has_free_keys(self, path: Path) -> bool:
        """Tell whether a setting holds keys of the user's own."""
        return path in self.fields and get_origin(self.fields[path].annotation) is dict

    def holds_settings(self, path: Path) -> bool:
        """Tell whether a path is a section, or a setting with free keys."""
        return ".".join(path) in self.sections.values() or self.has_free_keys(path)

    def resolve(self, written: Path, source: Source) -> Path:
        """Return the path of the setting or section that `written` means."""
        parts = tuple(part.replace("-", "_") for part in written)
        if parts[0] in self.sections:
            parts = (*self.sections[parts[0]].split("."), *parts[1:])
        elif self.has_free_keys(self._plain_names().get(parts[0], ())):
            parts = (*self._plain_names()[parts[0]], *parts[1:])
        if parts in self.fields or parts in self.derived or self.holds_settings(parts):
            return parts
        for depth in range(1, len(parts)):
            if self.has_free_keys(parts[:depth]):
                return (*parts[:depth], ".".join(written[len(written) - len(parts) + depth :]))
        if ".".join(parts) in self.aliases:
            return tuple(self.aliases[".".join(parts)].split("."))
        if len(parts) == 1 or (len(parts) == 2 and self.holds_settings(parts[:1])):
            plain = self._plain_names() | {name: tuple(target.split(".")) for name, target in self.aliases.items()}
            if parts[-1] in plain:
                return plain[parts[-1]]
        raise UnknownSettingError(f"{source.at(written)}{'.'.join(written)!r} is no setting.{self._nearest(parts)}")

    def _plain_names(self) -> dict[str, Path]:
        return {path[-1]: path for path in self.fields if path[-1] not in self.only_dotted}

    def _nearest(self, parts: Path) -> str:
        name, section = parts[-1], parts[0] if len(parts) > 1 else ""
        all_sections = list(dict.fromkeys(name for name in self.sections.values() if "." not in name))
        if len(all_sections) == 1:
            section = all_sections[0]
        if name in self.only_dotted:
            dotted = [field.name for field in self.fields.values() if field.path[-1] == name]
            return f" Did you mean {' or '.join(map(repr, dotted))}?"
        inside = [path[-1] for path in self.fields if len(path) > 1 and path[0] == section]
        named = [
            alias for alias, target in self.aliases.items() if "." not in alias and target.startswith(f"{section}.")
        ]
        if len(parts) > 1 and (near := suggest(name, [*inside, *named])):
            return near.replace("mean '", f"mean '{section}.")
        plain = [*self._plain_names(), *self.sections, *(alias for alias in self.aliases if "." not in alias)]
        is_flat = all(len(path) == 1 for path in self.fields)
        listed = ", ".join(inside or (self._plain_names() if is_flat else all_sections))
        whose = f" Settings of {section}" if inside else " Settings" if is_flat else " Sections"
        return suggest(name, plain) or f"{whose}: {listed}."


def place(data: Mapping[Any, Any], vocabulary: Vocabulary, source: Source | None = None) -> dict[Path, Entry]:
    """Sort what was written by the field that each key means, without touching `data`."""
    source = source or Source()
    entries: dict[Path, Entry] = {}
    _place_into(entries, data, (), vocabulary, source)
    return entries


def _place_into(
    entries: dict[Path, Entry], data: Mapping[Any, Any], above: Path, vocabulary: Vocabulary, source: Source
) -> None:
    for key, value in data.items():
        if not isinstance(key, str):
            raise ConfigError(f"{source.at(above)}key {show(key)} must be text: put it in quotes.")
        written = (*above, *key.split("."))
        path = vocabulary.resolve(written, source)
        if not vocabulary.holds_settings(path):
            _add(entries, path, Entry(value, written, source))
        elif isinstance(value, Mapping):
            _place_into(entries, cast("Mapping[Any, Any]", value), written, vocabulary, source)
        elif isinstance(value, str) and path[0] in vocabulary.short_forms:
            _add(entries, tuple(vocabulary.short_forms[path[0]].split(".")), Entry(value, written, source))
        elif value is not None:
            rule = "must be a mapping: write its settings indented under it"
            raise ConfigError(f"{source.at(written)}{'.'.join(written)}={show(value)} {rule}.")


def _add(entries: dict[Path, Entry], path: Path, entry: Entry) -> None:
    if path in entries:
        names = f"{'.'.join(entries[path].written)!r} and {'.'.join(entry.written)!r}"
        raise ConfigError(f"{entry.source.at(entry.written)}{'.'.join(path)} is given twice, as {names}: keep one.")
    entries[path] = entry


def build(entries: Mapping[Path, Entry], vocabulary: Vocabulary) -> Any:
    """Make the tree of dataclasses; whatever no entry names keeps its default."""
    arguments: dict[str, Any] = {}
    for path, entry in entries.items():
        target = arguments
        for part in path[:-1]:
            target = target.setdefault(part, {})
        target[path[-1]] = _converted(path, entry, vocabulary)
    for name, annotation in get_type_hints(vocabulary.root).items():
        if is_dataclass(annotation):
            arguments[name] = _construct(cast("type", annotation), arguments.get(name, {}), entries, (name,))
    return _construct(vocabulary.root, arguments, entries, ())


def _construct(cls: type, arguments: dict[str, Any], entries: Mapping[Path, Entry], above: Path) -> Any:
    try:
        return cls(**arguments)
    except ConfigError as error:
        path = (*above, *str(error).split("=", maxsplit=1)[0].split("."))
        where = entries[path].source.at(entries[path].written) if path in entries else ""
        raise ConfigError(f"{where}{''.join(f'{part}.' for part in above)}{error}") from None


def _converted(path: Path, entry: Entry, vocabulary: Vocabulary) -> Any:
    declared = vocabulary.fields[path if path in vocabulary.fields else path[:-1]]
    annotation = declared.annotation
    if path not in vocabulary.fields:
        annotation = get_args(annotation)[1]
    if annotation is Any:
        return deepcopy(entry.value)
    default = declared.default if path in vocabulary.fields else "64"
    finite = path not in vocabulary.infinite
    try:
        return convert(".".join(path), entry.value, annotation, default=default, finite=finite)
    except ConfigError as error:
        raise ConfigError(f"{entry.source.at(entry.written)}{error}") from None


@cache
def field_table(root: type) -> dict[Path, Field]:
    """List every setting of a tree of dataclasses by its path, in the order of the source."""
    table: dict[Path, Field] = {}
    hints = get_type_hints(root)
    documentation = field_docs(root)
    for declared in fields(root):
        annotation = hints[declared.name]
        if isinstance(annotation, type) and is_dataclass(annotation):
            inner = field_table(annotation)
            table.update(
                {(declared.name, *path): Field((declared.name, *path), one.annotation, one.default, one.doc)
                 for path, one in inner.items()}
            )  # fmt: skip
            continue
        factory = declared.default_factory
        default = factory() if factory is not MISSING else declared.default
        table[(declared.name,)] = Field((declared.name,), annotation, default, documentation.get(declared.name, ""))
    return table


@cache
def field_docs(cls: type) -> dict[str, str]:
    """Return the string under each field of a dataclass, on one line."""
    body = cast("ast.ClassDef", ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]).body
    documentation: dict[str, str] = {}
    for statement, below in pairwise(body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            documentation[statement.target.id] = " ".join(str(below.value.value).split())
    return documentation
