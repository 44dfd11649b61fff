"""A rollout as a picture: who was there when, what they earned, what the critic thought, what they did and saw."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from twostep.inspection.summary import ActionPart, RolloutSummary, Spread, summarize
from twostep.rollout import RolloutBuffer
from twostep.tree import tree_items

Array = np.ndarray[Any, np.dtype[Any]]

_BLUE, _PALE, _RED, _ORANGE, _GREEN, _VIOLET = "#1f5fa8", "#a9c6e8", "#b3261e", "#e08a2e", "#2b8a5a", "#7a4fa3"
_NOBODY, _GREY = "#eeeeee", "#888888"
_SHADES = (_VIOLET, _GREEN, _ORANGE)
_FEW_ACTIONS = len(_SHADES)
_MOST_ROWS = 32
_MOST_POINTS = 4000
_MOST_BARS, _FEW_BARS = 40, 10
_MOST_DIMENSIONS = 512
_QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)


def plot_rollout(rollout: RolloutBuffer, out_png: str | os.PathLike[str], *, title: str = "") -> Path:
    """Draw a rollout; steps that do not count are left out everywhere but in the timeline."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rollout = rollout.to("cpu")
    summary = summarize(rollout)
    figure = Figure(figsize=(11.0, 11.6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    layout: Any = [["episodes", "episodes"], ["rewards", "returns"], ["values", "actions"], ["obs", "obs"]]
    panels = figure.subplot_mosaic(layout, height_ratios=[1.15, 1, 1.15, 1])
    _draw_episodes(panels["episodes"], rollout)
    _draw_rewards(panels["rewards"], rollout)
    _draw_returns(panels["returns"], rollout, summary)
    _draw_values(panels["values"], rollout, summary)
    _draw_actions(panels["actions"], rollout, summary)
    _draw_observations(panels["obs"], rollout)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.savefig(out_png)
    return Path(out_png)


def _draw_episodes(panel: Any, rollout: RolloutBuffer) -> None:
    """Draw a lane per row: shades alternate from episode to episode, marks tell how each ended."""
    from matplotlib.colors import ListedColormap

    shown = min(_MOST_ROWS, rollout.num_rows)
    starts, valid = (getattr(rollout, name)[:, :shown].numpy() for name in ("episode_starts", "valid"))
    shades = np.where(valid, 1 + starts.cumsum(0) % 2, 0).T
    panel.imshow(
        shades,
        aspect="auto",
        interpolation="nearest",
        cmap=ListedColormap([_NOBODY, "#cfe0f3", "#8fb6e0"]),
        vmin=0,
        vmax=2,
        extent=(0, max(1, rollout.num_steps), shown - 0.5, -0.5),
    )
    terminated, truncated = (getattr(rollout, name)[:, :shown].numpy() for name in ("terminated", "truncated"))
    kinds = (("ended", terminated & valid, _RED), ("cut", truncated & ~terminated & valid, _ORANGE))
    size = max(6.0, 170.0 / shown)
    for name, flags, color in kinds:
        steps, rows = flags.nonzero()
        panel.scatter(
            steps + 1, rows, marker="|", s=size, linewidths=1.8, color=color, label=f"{name} ({len(steps):,})"
        )
    panel.scatter([], [], marker="s", color=_NOBODY, edgecolors=_GREY, linewidths=0.5, label="not valid")
    for row in range(1, shown):
        panel.axhline(row - 0.5, color="white", linewidth=1.2 if shown <= 16 else 0.5)
    panel.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False, fontsize=8, borderaxespad=0.1)
    panel.set_xlabel("step of the rollout", fontsize=9)
    panel.set_ylabel("row" if shown == rollout.num_rows else f"first {shown} of {rollout.num_rows:,} rows", fontsize=9)
    panel.yaxis.get_major_locator().set_params(integer=True)
    _name(panel, "episodes, lane by lane", "#333333")
    panel.grid(visible=False)


def _draw_rewards(panel: Any, rollout: RolloutBuffer) -> None:
    rewards = np.where(rollout.valid.numpy(), rollout.rewards.double().numpy(), math.nan)
    there = rollout.valid.numpy().any(1)
    steps = np.flatnonzero(there)
    known = rewards[there]
    if len(steps):
        panel.plot(steps, np.nanmean(known, 1), color=_ORANGE, linewidth=1.3, label="mean over rows")
        if rollout.num_rows >= 4:
            low, high = np.nanquantile(known, (0.1, 0.9), axis=1)
            panel.fill_between(steps, low, high, color=_ORANGE, alpha=0.2, linewidth=0, label="10 to 90 % of rows")
            panel.legend(loc="best", frameon=False, fontsize=8)
    panel.set_xlabel("step of the rollout", fontsize=9)
    _name(panel, "reward", _ORANGE)


def _draw_returns(panel: Any, rollout: RolloutBuffer, summary: RolloutSummary) -> None:
    returns = [episode.ret for episode in rollout.episodes]
    _name(panel, f"returns of {len(returns):,} episodes", _BLUE)
    if not returns:
        _say(panel, "no episode ended here")
        return
    panel.hist(returns, bins=min(30, max(6, round(2 * math.sqrt(len(returns))))), color=_PALE, edgecolor="white")
    mean = summary.returns.mean
    panel.axvline(mean, color=_BLUE, linewidth=1.6, label=f"mean {mean:.4g} ± {summary.returns.std:.3g}")
    panel.legend(loc="best", frameon=False, fontsize=8)
    panel.set_xlabel("return", fontsize=9)
    panel.set_ylabel("episodes", fontsize=9)
    panel.yaxis.get_major_locator().set_params(integer=True)


def _draw_values(panel: Any, rollout: RolloutBuffer, summary: RolloutSummary) -> None:
    if rollout.returns is None:
        _name(panel, "values", _GREEN)
        _say(panel, "advantages are not computed")
        return
    variance = summary.explained_variance
    explained = "" if math.isnan(variance) else f", {round(variance, 2) + 0.0:.0%} of the variance explained"
    _name(panel, f"what the critic said, what came{explained}", _GREEN)
    values, returns = (_thinned(column[rollout.valid]) for column in (rollout.values, rollout.returns))
    panel.scatter(values, returns, s=7, alpha=0.3, color=_GREEN, linewidths=0, rasterized=True)
    if len(values):
        ends = [min(values.min(), returns.min()), max(values.max(), returns.max())]
        panel.plot(ends, ends, color=_GREY, linewidth=1.0, linestyle="--", label="a perfect critic")
        panel.legend(loc="best", frameon=False, fontsize=8)
    panel.set_xlabel("value", fontsize=9)
    panel.set_ylabel("return (advantage + value)", fontsize=9)


def _draw_actions(panel: Any, rollout: RolloutBuffer, summary: RolloutSummary) -> None:
    """Draw how often what was done: choices as bars, a few numbers as histograms, many by how far they spread."""
    _name(panel, "actions as sampled", _VIOLET)
    taken = [leaf[rollout.valid].flatten(1) for _, leaf in tree_items(rollout.actions) if leaf.dim() > 2]
    choices = [part for part in summary.actions if part.counts is not None]
    if choices and len(choices) == len(summary.actions):
        draw = _draw_choices if len(choices) == 1 else _draw_many_choices
        draw(panel, choices)
        return
    if not choices and len(taken) == 1 and taken[0].shape[1] <= _FEW_ACTIONS:
        for i, numbers in enumerate(taken[0].double().unbind(1)):
            known = numbers[numbers.isfinite()].numpy()
            panel.hist(known, bins=40, histtype="stepfilled", alpha=0.3, color=_SHADES[i])
            panel.hist(known, bins=40, histtype="step", linewidth=1.4, color=_SHADES[i], label=f"number {i}")
        panel.legend(loc="best", frameon=False, fontsize=8)
        panel.set_xlabel("action", fontsize=9)
        panel.set_ylabel("steps", fontsize=9)
        return
    parts = [(part.name, part.dimensions or (_as_spread(part),)) for part in summary.actions]
    spreads = [spread for _, dimensions in parts for spread in dimensions][:_MOST_BARS]
    places = np.arange(len(spreads))
    panel.vlines(places, [one.low for one in spreads], [one.high for one in spreads], color=_VIOLET, linewidth=1.0)
    low, high = ([one.mean + sign * one.std for one in spreads] for sign in (-1, 1))
    panel.vlines(places, low, high, color=_VIOLET, linewidth=7.0, alpha=0.35)
    panel.plot(places, [one.mean for one in spreads], "o", color=_VIOLET, markersize=4)
    panel.set_xlabel("number of the action: mean, deviation, smallest to largest", fontsize=9)
    panel.set_xlim(-0.6, len(spreads) - 0.4)
    panel.xaxis.get_major_locator().set_params(integer=True)


def _draw_choices(panel: Any, parts: list[ActionPart]) -> None:
    counts = parts[0].counts or {}
    total = max(1, sum(counts.values()))
    shares = [count / total for count in counts.values()]
    bars = panel.bar([str(choice) for choice in counts], shares, color=_VIOLET, alpha=0.75, width=0.7)
    if len(counts) <= 12:
        panel.bar_label(bars, [f"{share:.0%}" for share in shares], fontsize=8, padding=2)
    panel.yaxis.set_major_formatter("{x:.0%}")
    panel.set_ylim(0, max([*shares, 0.01]) * 1.15)
    panel.set_xlabel("action", fontsize=9)
    _name(panel, "how often each action was taken", _VIOLET)


def _draw_many_choices(panel: Any, parts: list[ActionPart]) -> None:
    """Draw a bar for each place of the action, divided by how often each choice was taken there."""
    for place, part in enumerate(parts[:_MOST_BARS]):
        counts = part.counts or {}
        total, below = max(1, sum(counts.values())), 0.0
        for i, (choice, count) in enumerate(sorted(counts.items())):
            share = count / total
            panel.bar(place, share, bottom=below, width=0.75, color=_VIOLET, alpha=0.75 if i % 2 else 0.4, linewidth=0)
            if share > 0.05 and len(parts) <= _FEW_BARS:
                panel.text(place, below + share / 2, f"{choice}: {share:.0%}", ha="center", va="center", fontsize=8)
            below += share
    panel.set_xlim(-0.6, min(len(parts), _MOST_BARS) - 0.4)
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.yaxis.set_major_formatter("{x:.0%}")
    panel.set_xlabel("place of the action", fontsize=9)
    _name(panel, "how often each choice was taken", _VIOLET)


def _draw_observations(panel: Any, rollout: RolloutBuffer) -> None:
    """Draw five quantiles of every number that was seen: bars for few, bands for many."""
    names, columns = _observed(rollout)
    _name(panel, f"what was seen: {names}", _BLUE)
    if not columns.size:
        _say(panel, "nothing was seen")
        return
    low, inner_low, middle, inner_high, high = np.nanquantile(columns, _QUANTILES, axis=0)
    places = np.arange(columns.shape[1])
    if len(places) <= _MOST_BARS:
        panel.vlines(places, low, high, color=_BLUE, linewidth=1.0)
        panel.vlines(
            places, inner_low, inner_high, color=_BLUE, linewidth=9.0 if len(places) <= 20 else 5.0, alpha=0.35
        )
        panel.plot(places, middle, "o", color=_BLUE, markersize=4)
        panel.set_xlim(-0.6, len(places) - 0.4)
    else:
        panel.fill_between(places, low, high, step="mid", color=_BLUE, alpha=0.15, linewidth=0)
        panel.fill_between(places, inner_low, inner_high, step="mid", color=_BLUE, alpha=0.3, linewidth=0)
        panel.plot(places, middle, drawstyle="steps-mid", color=_BLUE, linewidth=1.0)
        panel.margins(x=0.01)
    reach = np.abs([low, high]).max(0)
    if reach.max() > 50 * max(float(np.median(reach)), 1e-6):
        panel.set_yscale("symlog", linthresh=max(float(np.median(reach)), 1e-3))
    panel.set_xlabel("number of the observation: median, 5 to 95 %, smallest to largest", fontsize=9)
    panel.xaxis.get_major_locator().set_params(integer=True)


def _observed(rollout: RolloutBuffer) -> tuple[str, Array]:
    """Return names, and numbers `[transitions, dimensions]`, fewer of both where there are very many."""
    names: list[str] = []
    columns: list[Array] = []
    for name, leaf in tree_items(rollout.obs, "obs"):
        chosen = _every(rollout.valid.nonzero(), _MOST_POINTS // 4)
        seen = leaf[chosen[:, 0], chosen[:, 1]].reshape(len(chosen), math.prod(leaf.shape[2:]))
        names.append(f"{name} {list(leaf.shape[2:])}")
        columns.append(_every(seen.T, _MOST_DIMENSIONS).T.double().numpy())
    joined = np.concatenate(columns, axis=1) if columns else np.empty((0, 0))
    finite = np.where(np.isfinite(joined), joined, math.nan)
    return ", ".join(names), finite[:, ~np.isnan(finite).all(0)] if finite.size else finite


def _every(tensor: Tensor, most: int) -> Tensor:
    """Return evenly spaced entries along the first dimension, at most so many."""
    if len(tensor) <= most:
        return tensor
    return tensor[torch.linspace(0, len(tensor) - 1, most).long()]


def _thinned(column: Tensor) -> Array:
    return _every(column, _MOST_POINTS).double().numpy()


def _as_spread(part: ActionPart) -> Spread:
    """Return choices as the numbers that they are written by."""
    return Spread.of([float(choice) for choice, count in (part.counts or {}).items() for _ in range(count)])


def _name(panel: Any, text: str, color: str) -> None:
    panel.set_title(text if len(text) <= 110 else f"{text[:109]}…", loc="left", fontsize=10, color=color)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(labelsize=8)


def _say(panel: Any, text: str) -> None:
    panel.text(0.5, 0.5, text, ha="center", va="center", color=_GREY, transform=panel.transAxes)
    panel.set_xticks([])
    panel.set_yticks([])
