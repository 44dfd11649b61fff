"""The benchmark of laws in small: a search by each method, and the page made of what they found."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest


@pytest.mark.slow
def test_searches_end_and_are_told_of(tmp_path, monkeypatch, capsys):
    """J42: two strategies on as many expressions; what they found, and the error on data that they have not seen."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    laws = importlib.import_module("laws")
    monkeypatch.setattr(laws, "RUNS", tmp_path / "runs")
    for name, method in list(laws.METHODS.items()):
        monkeypatch.setitem(laws.METHODS, name, lambda law, seed, method=method: method(law, seed, most=700))
        laws.search(name, "kepler", 0)
    assert capsys.readouterr().out.count("kepler") == 2
    laws.write_report(tmp_path / "runs", tmp_path, 700)
    page = (tmp_path / "symbolic.md").read_text()
    assert "| `kepler` | T = a^1.5 |" in page
    assert (tmp_path / "symbolic" / "search.png").stat().st_size > 10_000
    result = laws.random_search("kepler", 0, most=3000)
    assert result["best"]["found"]
    assert result["elsewhere"] < 1e-6
    assert result["curve"][-1][1] == result["best"]["error"]
