"""The scores of a suite as a picture: a bar with its interval for each case, grouped by category."""

from __future__ import annotations

import math
import os
import textwrap
from pathlib import Path
from typing import Any

from twostep.evaluation.scores import CaseScores, CategoryScores, SuiteScores

_WINS, _RETURNS, _WHOLE = "#2b8a5a", "#1f5fa8", "#5f6368"
_ROW_INCHES, _CATEGORY_INCHES, _WIDTH = 0.36, 0.62, 8.0
_LONGEST_NAME, _TITLE_CHARACTERS = 28, 78
_LEGEND = "lines and shades: 95 % intervals; dashed: all cases of a category; n: episodes"


def plot_suite(scores: SuiteScores, out_png: str | os.PathLike[str], title: str = "") -> Path:
    """Draw every category as a panel with an axis of its own: wins as percentages, returns as they are."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    categories = list(scores.categories.values())
    heights = [_CATEGORY_INCHES + _ROW_INCHES * len(category.cases) for category in categories]
    figure = Figure(figsize=(_WIDTH, sum(heights) + 0.75), dpi=130, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(categories), 1, squeeze=False, height_ratios=heights)[:, 0]
    for panel, category in zip(panels, categories, strict=True):
        _draw(panel, category)
    lines = textwrap.fill(title or scores.suite, _TITLE_CHARACTERS)
    figure.suptitle(lines, x=0.02, ha="left", fontweight="bold", fontsize=12)
    figure.supxlabel(_LEGEND, x=0.98, ha="right", fontsize=8, color=_WHOLE)
    path = Path(out_png)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _draw(panel: Any, category: CategoryScores) -> None:
    wins = category.judged_by_wins
    color = _WINS if wins else _RETURNS
    values = [case.win_rate if wins else case.mean_return for case in category.cases]
    intervals = [case.win_interval if wins else case.return_interval for case in category.cases]
    known = [value if math.isfinite(value) else 0.0 for value in values]
    places = range(len(values))
    panel.barh(places, known, height=0.62, color=color, alpha=0.75, linewidth=0)
    for place, value, (low, high) in zip(places, values, intervals, strict=True):
        if math.isfinite(low):
            panel.plot([low, high], [place, place], color="#202124", linewidth=1.4, solid_capstyle="butt")
            panel.plot([low, high], [place, place], color="#202124", linestyle="", marker="|", markersize=7)
        if not math.isfinite(value):
            panel.text(0.01, place, " no episode", va="center", fontsize=9, transform=panel.get_yaxis_transform())
    _mark_whole(panel, category)
    panel.axvline(0, color="#9aa0a6", linewidth=0.8)
    panel.set_yticks(places, [_label(case) for case in category.cases])
    panel.set_ylim(len(values) - 0.5, -0.5)
    if wins:
        panel.set_xlim(0, 1.0)
        panel.xaxis.set_major_formatter("{x:.0%}")
    panel.set_title(f"{category.name}: {'won' if wins else 'mean return'}", loc="left", fontsize=10, color=color)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.grid(axis="x", color="#e6e6e6", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(labelsize=9)
    panel.tick_params(axis="y", length=0)


def _mark_whole(panel: Any, category: CategoryScores) -> None:
    """Show the category's own score, where it is not that of its only case."""
    if len(category.cases) < 2 or not math.isfinite(category.score):
        return
    low, high = category.interval
    if math.isfinite(low):
        panel.axvspan(low, high, color=_WHOLE, alpha=0.13, linewidth=0)
    panel.axvline(category.score, color=_WHOLE, linestyle="--", linewidth=1.2)
    score = f"{category.score:.0%}" if category.judged_by_wins else f"{category.score:.4g}"
    panel.set_title(f"all {len(category.cases)}: {score}", loc="right", fontsize=9, color=_WHOLE)


def _label(case: CaseScores) -> str:
    name = case.name.partition("/")[2] or case.name
    name = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
    return f"{name}  n={len(case.returns)}"
