"""The learning curve of a run as a picture."""

from __future__ import annotations

import math
import os
from itertools import accumulate
from pathlib import Path
from typing import Any

from twostep.errors import ConfigError
from twostep.stats.sinks import read_rows

_LINE, _EVALUATED = "#1f5fa8", "#b3261e"
_HEALTH = (
    ("approx_kl", "policy moves (KL)", "#c1521d"),
    ("explained_variance", "value estimate (explained variance)", "#2b8a5a"),
    ("entropy", "exploration (entropy)", "#7a4fa3"),
)
_SMOOTHING = 0.05
_LEVEL = "curriculum/level/"


def plot_learning_curve(
    metrics_jsonl: str | os.PathLike[str],
    out_png: str | os.PathLike[str],
    *,
    title: str = "",
    solved_at: float | None = None,
    evaluations_jsonl: str | os.PathLike[str] | None = None,
) -> Path:
    """Draw returns over steps, evaluations and levels where there were any, and below them the health of learning."""
    rows = read_rows(metrics_jsonl)
    if not rows:
        raise ConfigError(f"{metrics_jsonl} has no rows yet: train first.")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    evaluated = read_rows(evaluations_jsonl) if evaluations_jsonl and Path(evaluations_jsonl).exists() else []
    levels = [name for name in rows[-1] if name.startswith(_LEVEL)]
    more = [2.0] * (bool(evaluated) + bool(levels))
    heights = (3.2, *more, 1, 1, 1)
    figure = Figure(figsize=(8.0, 7.2 + 1.1 * sum(more)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    _draw_returns(grid[0], rows, title, solved_at)
    if evaluated:
        _draw_evaluations(grid[1], evaluated)
    if levels:
        _draw_levels(grid[len(more)], rows, levels)
    for panel, (name, label, color) in zip(grid[-len(_HEALTH) :], _HEALTH, strict=True):
        _draw_health(panel, rows, name, label, color)
    grid[-1].set_xlabel("environment steps")
    grid[-1].xaxis.set_major_formatter(EngFormatter(sep=""))
    figure.savefig(out_png)
    return Path(out_png)


def _draw_returns(panel: Any, rows: list[dict[str, Any]], title: str, solved_at: float | None) -> None:
    steps, returns = _series(rows, "mean_reward")
    panel.plot(steps, returns, color=_LINE, linewidth=1.0, alpha=0.35)
    panel.plot(steps, _smooth(returns), color=_LINE, linewidth=2.0, label="mean of the last 100 episodes")
    if solved_at is not None:
        panel.axhline(solved_at, color="#888888", linestyle="--", linewidth=1.0, label=f"solved at {solved_at:g}")
    if not returns:
        panel.text(0.5, 0.5, "no episode has ended yet", ha="center", va="center", transform=panel.transAxes)
    else:
        panel.legend(loc="best", frameon=False)
    panel.set_ylabel("return")
    panel.set_title(title, loc="left", fontweight="bold")
    tidy(panel)


def _draw_evaluations(panel: Any, rows: list[dict[str, Any]]) -> None:
    matches, suite = "win_rate" in rows[0], not {"win_rate", "mean_return"} & set(rows[0])
    mean, low, high = ("win_rate", "win_rate_low", "win_rate_high") if matches else ("mean_return", "low", "high")
    mean = "score" if suite else mean
    steps, values = _series(rows, mean)
    panel.plot(steps, values, color=_EVALUATED, linewidth=1.8, marker="o", markersize=4)
    bounded = [row for row in rows if row.get(low) is not None]
    panel.fill_between(
        [row["step"] for row in bounded],
        [row[low] for row in bounded],
        [row[high] for row in bounded],
        color=_EVALUATED,
        alpha=0.15,
        linewidth=0,
    )
    if matches:
        panel.set_ylim(-0.03, 1.03)
        panel.yaxis.set_major_formatter("{x:.0%}")
    what = "matches won" if matches else "score of the suite" if suite else "mean return"
    episodes = f"{int(rows[-1]['episodes'])} {'matches' if matches else 'episodes'} each"
    interval = ", 95 % interval" if bounded else ""
    panel.set_title(f"evaluation: {what} ({episodes}{interval})", loc="left", fontsize=9, color=_EVALUATED)
    tidy(panel)


def _draw_levels(panel: Any, rows: list[dict[str, Any]], names: list[str]) -> None:
    for name in names:
        panel.step(*_series(rows, name), where="post", linewidth=1.2, label=name.removeprefix(_LEVEL))
    panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    panel.set_title("level that each type of task has reached", loc="left", fontsize=9)
    tidy(panel)


def _draw_health(panel: Any, rows: list[dict[str, Any]], name: str, label: str, color: str) -> None:
    steps, values = _series(rows, name)
    panel.plot(steps, values, color=color, linewidth=1.2)
    panel.set_title(label, loc="left", fontsize=9, color=color)
    tidy(panel)


def tidy(panel: Any) -> None:
    """Give a panel the look of all pictures here: no box, faint lines to read values by."""
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(labelsize=9)


def _series(rows: list[dict[str, Any]], name: str) -> tuple[list[float], list[float]]:
    known = [(row["step"], row[name]) for row in rows if row.get(name) is not None and math.isfinite(row[name])]
    return [step for step, _ in known], [value for _, value in known]


def _smooth(values: list[float]) -> list[float]:
    """Mean over a window of a twentieth of the run, centred, narrower at both ends."""
    half = int(len(values) * _SMOOTHING / 2)
    sums = list(accumulate(values, initial=0.0))
    reaches = [min(half, position, len(values) - 1 - position) for position in range(len(values))]
    bounds = [(position - reach, position + reach + 1) for position, reach in enumerate(reaches)]
    return [(sums[end] - sums[start]) / (end - start) for start, end in bounds]
