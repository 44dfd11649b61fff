"""The guide from one loop to two phases runs as it stands: J43."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

GUIDE = Path(__file__).parent.parent / "docs" / "two_phases.md"


def test_every_block_of_the_guide_runs() -> None:
    """J43: block after block, like a reader would."""
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)
    assert len(names["history"]["loss"]) == 2
    assert names["patient"].n_updates == 2
    assert names["state"].agent_steps >= 256
    assert names["metrics"]["ratio_error"] < 1e-5


def test_every_file_the_guide_names_is_there() -> None:
    """J43."""
    text = GUIDE.read_text(encoding="utf-8")
    targets = [GUIDE.parent / target for target in re.findall(r"\]\(([^)#]+)\)", text)]
    targets += [GUIDE.parent.parent / target for target in re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py)`", text)]
    assert len(targets) > 8
    assert [target for target in targets if not target.exists()] == []
