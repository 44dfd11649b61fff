"""The example of meta-learning does what it says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "examples" / "meta_learning.py"


@pytest.mark.slow
def test_who_is_told_does_well_at_tasks_never_seen():
    """J20, JB6: on the same number of steps, at directions that no training had; the most possible is about 1.2."""
    spec = importlib.util.spec_from_file_location("meta_learning", PATH)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    scores = example.compare(seed=0, epochs=10)
    assert scores["told"] > 0.7
    assert abs(scores["not told"]) < 0.3
