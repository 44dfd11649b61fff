"""docs/seeds.md says what proves each promise: this keeps it true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROMISES = {"J": 46, "E": 34, "M": 16, "L": 29}
FAULTS = {"JB": 17, "EB": 13, "MB": 10, "LB": 17}
_, DONE = (ROOT / "docs" / "seeds.md").read_text("utf-8").split("\n## Done\n")


def rows(part: str) -> list[tuple[str, str]]:
    """Return the ID and the last cell of every row."""
    return [(row[1], row[2]) for row in re.finditer(r"^\| ([JEML]B?\d+) \|(?:.*\|)? ([^|]+) \|$", part, re.MULTILINE)]


@pytest.mark.parametrize(("promise", "proofs"), rows(DONE))
def test_what_is_done_is_proven_where_the_table_says(promise: str, proofs: str) -> None:
    files = re.findall(r"`(tests/[^`]+\.py)`", proofs)
    assert files
    for file in files:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"\b{promise}\b", text), f"{file} does not name {promise}"


def test_every_promise_and_every_fault_is_listed_once() -> None:
    expected = [f"{kind}{number}" for kind, last in (PROMISES | FAULTS).items() for number in range(1, last + 1)]
    assert sorted(name for name, _ in rows(DONE)) == sorted(expected)


def test_the_guard_can_fail() -> None:
    assert rows("| J1 | a | `b` | `tests/x.py` |\n| ID | promise | where | proof |") == [("J1", "`tests/x.py`")]
    assert len(rows(DONE)) > 100
