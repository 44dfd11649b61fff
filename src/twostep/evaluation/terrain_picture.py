"""Success on a grid of terrains as a picture: a square per type and difficulty."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from twostep.evaluation.terrains import TerrainScores

_COLORS = "RdYlGn"
_NARROWEST = 6.4
"""Inches, in which a title with the name of a run finds room."""
_DARK = 0.18, 0.82
"""Shares below and above which a square is dark, so that white is read on it."""


def plot_terrains(scores: TerrainScores, out_png: str | os.PathLike[str], title: str = "") -> Path:
    """Draw the part of successful episodes in each cell, easy ground on the left."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names, levels = scores.terrains, scores.levels
    width = max(_NARROWEST, 2.6 + 0.62 * len(levels))
    figure = Figure(figsize=(width, 1.7 + 0.5 * len(names)), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    for y, name in enumerate(names):
        for x, level in enumerate(levels):
            played = scores.values("success", name, level)
            if not played:
                continue
            share = sum(played) / len(played)
            panel.add_patch(_square(x, y, colormaps[_COLORS](0.08 + 0.84 * share)))
            ink = "white" if share < _DARK[0] or share > _DARK[1] else "#202124"
            panel.text(x, y, f"{share:.0%}", ha="center", va="center", fontsize=8, color=ink)
    panel.set_xlim(-0.5, len(levels) - 0.5)
    panel.set_ylim(len(names) - 0.5, -0.5)
    panel.set_xticks(range(len(levels)), [str(level) for level in levels])
    panel.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    panel.set_xlabel("difficulty")
    panel.tick_params(length=0, labelsize=9)
    panel.spines[:].set_visible(False)
    each = len(scores.infos) // max(1, len(scores.cells))
    panel.set_title(title or f"successful episodes, {each} in each cell", loc="left", fontweight="bold", fontsize=10)
    path = Path(out_png)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _square(x: int, y: int, color: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.47, y - 0.46), 0.94, 0.92, facecolor=color, linewidth=0)
