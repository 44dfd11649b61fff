"""A comparison as a picture: every run, the means with their intervals, and how far they are apart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from twostep.errors import ConfigError
from twostep.evaluation.comparison import Arm, Comparison
from twostep.evaluation.intervals import t_quantile

Array = np.ndarray[Any, np.dtype[np.float64]]

_COLORS = ("#1f5fa8", "#c1521d", "#2b8a5a", "#7a4fa3", "#b3261e", "#5b6770")
_POINTS = 120


def plot_comparison(comparison: Comparison, out_png: str | os.PathLike[str], *, title: str = "") -> Path:
    """Draw the curves of all arms with 95 % intervals, and below them the differences from the first arm."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    steps = _common_steps(comparison)
    runs = {arm.name: _on(steps, arm) for arm in comparison.arms}
    first = runs[comparison.arms[0].name]
    figure = Figure(figsize=(8.0, 6.6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
    for arm, color in zip(comparison.arms, _COLORS * len(comparison.arms), strict=False):
        values = runs[arm.name]
        above.plot(steps, values.T, color=color, linewidth=0.7, alpha=0.3)
        low, high = arm.interval
        label = f"{arm.name}: {arm.mean:.4g} ({low:.4g} to {high:.4g})"
        _draw_mean(above, steps, values.mean(0), _margin(values), color, label)
        if arm is not comparison.arms[0]:
            apart = values - first
            margin = _margin(apart) if comparison.paired else np.hypot(_margin(values), _margin(first))
            _draw_mean(below, steps, apart.mean(0), margin, color, f"{arm.name} minus {comparison.arms[0].name}")
    below.axhline(0.0, color="#888888", linewidth=1.0, linestyle="--")
    above.set_ylabel(comparison.measure)
    below.set_ylabel("difference")
    below.set_xlabel("environment steps")
    below.xaxis.set_major_formatter(EngFormatter(sep=""))
    above.set_title(title or f"{len(comparison.seeds)} seeds, 95 % intervals", loc="left", fontweight="bold")
    for panel in (above, below):
        panel.legend(loc="best", frameon=False, fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        panel.set_axisbelow(True)
    figure.savefig(out_png)
    return Path(out_png)


def _draw_mean(panel: Any, steps: Array, mean: Array, margin: Array, color: str, label: str) -> None:
    panel.fill_between(steps, mean - margin, mean + margin, color=color, alpha=0.16, linewidth=0)
    panel.plot(steps, mean, color=color, linewidth=2.0, label=label)


def _common_steps(comparison: Comparison) -> Array:
    """Return steps between which every run was measured."""
    curves = [curve for arm in comparison.arms for curve in arm.curves]
    start, end = max(curve.steps[0] for curve in curves), min(curve.steps[-1] for curve in curves)
    if end <= start:
        raise ConfigError(
            "There are no curves to draw: each run was measured once only. The comparison prints as text."
        )
    return np.linspace(start, end, _POINTS)


def _on(steps: Array, arm: Arm) -> Array:
    """Return the arm's curves at these steps, `[seeds, steps]`."""
    return np.stack([np.interp(steps, curve.steps, curve.values) for curve in arm.curves])


def _margin(values: Array) -> Array:
    """Return half the width of the interval of the mean over seeds, at every step."""
    return t_quantile(len(values) - 1) * values.std(0, ddof=1) / np.sqrt(len(values))
