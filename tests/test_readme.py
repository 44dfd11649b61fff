"""The README's Python is run as it stands, block after block, like a reader would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parent.parent / "README.md"


def test_every_python_block_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """J6, J7, J13, J42: what the README shows is what the library does."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert len(names["history"]["loss"]) >= 5
    assert names["metrics"]["ratio_error"] < 1e-6


def test_every_file_the_readme_names_is_there() -> None:
    """A map that leads nowhere is worse than none."""
    root = README.parent
    targets = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert targets
    missing = [target for target in targets if not (root / target).exists()]
    assert not missing
