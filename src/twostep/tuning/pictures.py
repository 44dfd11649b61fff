"""A study as one picture: how the search went, which settings matter, how the trials lie in the space."""

from __future__ import annotations

import math
from itertools import accumulate
from pathlib import Path
from typing import Any

from twostep.stats.plots import tidy
from twostep.tuning.space import Dimension
from twostep.tuning.study import Study, Tried

_BEST, _OTHER, _LOST, _COLORS = "#b3261e", "#1f5fa8", "#9aa4ad", "viridis"
_SLICES_PER_ROW = 4


def plot_study(study: Study, out_png: Path) -> Path:
    """Draw values over trials, importance, parallel coordinates, and the value over each setting."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = -(-len(study.dimensions) // _SLICES_PER_ROW)
    figure = Figure(figsize=(11.0, 6.6 + 2.4 * rows), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    parts: Any = figure.subfigures(3, 1, height_ratios=(2.6, 3.2, 2.4 * rows))
    above, middle, below = parts
    tried = [one for one in study.tried() if one.counts]
    _draw_history(above.subplots(), tried, study)
    left, right = middle.subplots(1, 2, width_ratios=(1, 2.4))
    _draw_importance(left, study.importance())
    _draw_parallel(right, tried, study)
    panels = list(below.subplots(rows, -(-len(study.dimensions) // rows), sharey=True, squeeze=False).flat)
    for panel, dimension in zip(panels, study.dimensions, strict=False):
        _draw_slice(panel, tried, dimension, study)
    for panel in panels[len(study.dimensions) :]:
        panel.set_axis_off()
    figure.savefig(out_png)
    return out_png


def _finished(tried: list[Tried]) -> list[tuple[Tried, float]]:
    return [(one, one.value) for one in tried if one.state == "finished" and one.value is not None]


def _draw_history(panel: Any, tried: list[Tried], study: Study) -> None:
    finished = _finished(tried)
    panel.scatter([one.number for one, _ in finished], [value for _, value in finished], s=18, color=_OTHER)
    best = list(accumulate((value for _, value in finished), max))
    panel.step([one.number for one, _ in finished], best, where="post", color=_BEST, linewidth=1.6, label="best so far")
    given_up = [(one.number, one.reached[max(one.reached)]) for one in tried if one.state == "given up" and one.reached]
    panel.scatter(*_columns(given_up), s=14, marker="v", color=_LOST, label="given up, at its last report")
    failed = [one.number for one in tried if one.state == "failed"]
    if failed:
        bottom = panel.get_ylim()[0]
        panel.scatter(failed, [bottom] * len(failed), s=24, marker="x", color="#111111", label="failed")
    panel.set_xlabel("trial")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.set_ylabel(study.settings.metric)
    panel.set_title(f"{len(tried)} trials", loc="left", fontweight="bold")
    panel.legend(loc="best", frameon=False, fontsize=9)
    tidy(panel)


def _draw_importance(panel: Any, importance: dict[str, float]) -> None:
    names = sorted(importance, key=lambda name: importance[name])
    panel.barh([_short(name) for name in names], [importance[name] for name in names], color=_OTHER)
    if not names:
        panel.text(0.5, 0.5, "too few trials to tell", ha="center", va="center", transform=panel.transAxes)
    panel.set_title("what matters", loc="left", fontsize=9)
    panel.xaxis.set_major_formatter("{x:.0%}")
    tidy(panel)


def _draw_parallel(panel: Any, tried: list[Tried], study: Study) -> None:
    """Draw a line per trial through the place of each of its settings; light lines did better."""
    from matplotlib import colormaps

    finished = sorted(_finished(tried), key=lambda pair: pair[1])
    values = [value for _, value in finished]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    width = (high - low) or 1.0
    for one, value in finished:
        places = [_place(dimension, one.params[dimension.name]) for dimension in study.dimensions]
        share = (value - low) / width
        color = _BEST if value == high else colormaps[_COLORS](0.9 * share)
        panel.plot([*places, share], color=color, linewidth=2.0 if value == high else 0.9, alpha=0.35 + 0.65 * share)
    labels = [f"{_short(one.name)}\n{_ends(one)}" for one in study.dimensions]
    panel.set_xticks(range(len(labels) + 1), [*labels, f"{study.settings.metric}\n{low:.4g} to {high:.4g}"])
    panel.set_yticks([])
    panel.set_title("each trial as a line from setting to setting; red is the best", loc="left", fontsize=9)
    tidy(panel)
    panel.grid(axis="x", color="#cccccc", linewidth=0.8)


def _draw_slice(panel: Any, tried: list[Tried], dimension: Dimension, study: Study) -> None:
    finished = _finished(tried)
    chosen = [one.params[dimension.name] for one, _ in finished]
    if dimension.values:
        panel.set_xticks(range(len(dimension.values)), [str(value) for value in dimension.values])
        chosen = [dimension.values.index(value) for value in chosen]
        panel.set_xlim(-0.5, len(dimension.values) - 0.5)
    else:
        panel.set_xscale("log" if dimension.by_factors else "linear")
        panel.set_xlim(dimension.low, dimension.high)
    best = study.best
    colors = [_BEST if best is not None and one.number == best.number else _OTHER for one, _ in finished]
    panel.scatter(chosen, [value for _, value in finished], s=16, c=colors, alpha=0.75, linewidth=0)
    panel.set_title(_short(dimension.name), loc="left", fontsize=9)
    tidy(panel)
    panel.tick_params(which="minor", labelbottom=False)


def _place(dimension: Dimension, value: Any) -> float:
    """Return where a value lies between the ends of its dimension, from 0 to 1."""
    if dimension.values:
        return (dimension.values.index(value) + 0.5) / len(dimension.values)
    low, high, at = dimension.low, dimension.high, float(value)
    if dimension.by_factors:
        low, high, at = math.log(low), math.log(high), math.log(at)
    return (at - low) / (high - low)


def _ends(dimension: Dimension) -> str:
    ends = dimension.ends()
    return f"{ends[0]} to {ends[-1]}"


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _columns(pairs: list[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [first for first, _ in pairs], [second for _, second in pairs]
