"""docs/api.md tells of every public name."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import twostep

ROOT = Path(__file__).parents[2]


def test_the_page_tells_of_every_public_name() -> None:
    """J46: each once, with what it is; `python scripts/api_reference.py` writes it anew."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    told = re.findall(r"^\*\*`(\w+)`\*\*(?: `\(.*?\)`)?: \w+", text, flags=re.MULTILINE)
    assert sorted(told) == sorted(name for name in twostep.__all__ if not name.startswith("_"))


def test_what_writes_the_page_still_does() -> None:
    """J46: no name without a heading, and calls with what they take."""
    spec = importlib.util.spec_from_file_location("api_reference", ROOT / "scripts" / "api_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (
        "**`gae`** `(rewards, values, next_values, terminated, truncated, gamma, gae_lambda, [valid])`" in module.page()
    )
    assert "**`GroupError`**: Processes" in module.page()
