"""The laws that a run has found: kept in its folder, and written out for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twostep.worlds.symbolic import LAWS, Discovery, best_of

SYMBOLIC = "symbolic"
DISCOVERIES_FILE = "discoveries.json"


def best_in(env: Any) -> dict[str, Discovery]:
    """Return the best expression for each law that environments have seen since they were made."""
    return best_of(one for bests in env.call("best") for one in bests.values())


def is_found(law: Any, env: Any) -> bool:
    """Tell whether the one law that is looked for was written; a search for several goes on to its end."""
    return isinstance(law, str) and law in (best := best_in(env)) and best[law].found


def read_discoveries(folder: Path) -> dict[str, Discovery]:
    """Return the best expressions of a run's training, by law."""
    path = folder / DISCOVERIES_FILE
    if not path.is_file():
        return {}
    return best_of(Discovery.from_dict(values) for values in json.loads(path.read_text(encoding="utf-8")))


def keep_discoveries(folder: Path, env: Any) -> dict[str, Discovery]:
    """Write the best of what is kept and what environments have seen, and return it."""
    best = best_of((*read_discoveries(folder).values(), *best_in(env).values()))
    rows = [one.to_dict() for one in best.values()]
    (folder / DISCOVERIES_FILE).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return best


def in_words(best: Mapping[str, Discovery], heading: str) -> str:
    """Write an expression per line, with what the law says where it is a known one."""
    lines = [heading]
    for name, one in sorted(best.items()):
        how = "found" if one.found else f"leaves {one.error:.2%}"
        law = f"  (the law: {LAWS[name].text})" if name in LAWS else ""
        lines.append(f"  {name:12} {how:14} {one.expression}{law}")
    return "\n".join(lines)
