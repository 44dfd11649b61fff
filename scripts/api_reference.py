"""Writes docs/api.md: every public name, how it is called and what it is, from the code itself.

    python scripts/api_reference.py

What a name does in detail, and what each of its methods does, its docstring says: `help(twostep.PPOTrainer)`.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import twostep

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"
HEADING = """# All public names

Written by `python scripts/api_reference.py`. Everything here is `from twostep import NAME`; importing twostep loads
nothing, using a name loads what it needs. `help(twostep.NAME)` says all of it. Where to begin: the README, and
[two_phases.md](two_phases.md) for the loop; [architecture.md](architecture.md) for how the parts fit.
"""
GROUPS = {
    "Training": r"trainer|functional|training_state|group|distill",
    "Collecting": r"collect|rollout|experience|tensors",
    "Learning": r"learn|advantages|normalization",
    "Policies": r"policies",
    "Environments": r"vector|protocols|worlds",
    "Curricula": r"curriculum",
    "Evaluating": r"evaluation|suites",
    "Keeping, and taking elsewhere": r"checkpoint|store|export",
    "Settings": r"config",
    "Metrics": r"stats",
    "Errors": r"errors",
}
"""Headings, and which modules belong under each: the first that fits."""


def page() -> str:
    """Return the page."""
    parts = [HEADING]
    names = [name for name in twostep.__all__ if not name.startswith("_")]
    for heading, modules in GROUPS.items():
        here = [name for name in names if re.match(rf"twostep\.({modules})\b", getattr(twostep, name).__module__)]
        names = [name for name in names if name not in here]
        parts.append(f"## {heading}\n")
        parts += [entry(name, getattr(twostep, name)) for name in here]
    if names:
        raise SystemExit(f"{', '.join(names)} fit under no heading: add their modules to GROUPS.")
    return "\n".join(parts)


def entry(name: str, thing: Any) -> str:
    """Return what is said of one name."""
    return f"**`{name}`**{called(thing)}: {first_sentence(thing)}{methods(thing)}\n"


def called(thing: Any) -> str:
    """Return the parameters by name, optional ones in brackets."""
    if not callable(thing) or getattr(thing, "_is_protocol", False) or issubclass_of(thing, Exception):
        return ""
    words: list[str] = []
    for one in inspect.signature(thing).parameters.values():
        star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        words.append(f"{star}{one.name}" if star or one.default is one.empty else f"[{one.name}]")
    shown = textwrap.shorten(", ".join(words), 100, placeholder=" ...") if words else ""
    return f" `({shown})`"


def methods(thing: Any) -> str:
    """Return the public methods that a class has of its own."""
    if not inspect.isclass(thing):
        return ""
    own = [name for name, part in vars(thing).items() if not name.startswith("_") and inspect.isroutine(part)]
    return f" *Methods:* {', '.join(f'`{name}`' for name in own)}." if own else ""


def first_sentence(thing: Any) -> str:
    """Return the first paragraph of its documentation on one line."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def issubclass_of(thing: Any, kind: type) -> bool:
    """Tell whether something is a class of that kind."""
    return inspect.isclass(thing) and issubclass(thing, kind)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE} tells of {len(twostep.__all__) - 1} names.")
