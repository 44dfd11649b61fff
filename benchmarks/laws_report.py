"""Turns the finished searches of `laws.py` into docs/symbolic.md and docs/symbolic/search.png."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from twostep.worlds.symbolic import LAWS

Result = dict[str, Any]
COLORS = {"ppo": "#1f5fa8", "random": "#c1521d"}
NAMES = {"ppo": "PPO", "random": "random search"}
LEAST_ERROR = 1e-3
"""Where the picture's errors end: what is found leaves less than any axis could show."""


def write_report(runs: Path, docs: Path, most: int) -> None:
    """Write page and picture from all finished searches."""
    results = {
        law: {method: load(runs / method / law) for method in COLORS}
        for law in LAWS
        if all((runs / method / law).is_dir() for method in COLORS)
    }
    if not results:
        raise SystemExit(f"No search has finished yet: {runs} is empty. Run python benchmarks/laws.py first.")
    (docs / "symbolic").mkdir(parents=True, exist_ok=True)
    draw(results, docs / "symbolic" / "search.png", most)
    rows = "\n".join(table_row(law, found, most) for law, found in results.items())
    laws = "\n".join(law_row(law, found["ppo"]) for law, found in results.items())
    dates = [one["date"] for found in results.values() for searches in found.values() for one in searches]
    page = PAGE.format(rows=rows, laws=laws, most=most, date=max(dates), verdict=verdict(results))
    (docs / "symbolic.md").write_text(page, encoding="utf-8")
    print("wrote docs/symbolic.md and docs/symbolic/search.png")


def load(folder: Path) -> list[Result]:
    """Return the finished searches of one method for one law."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("seed*.json"))]


def needed(searches: list[Result], most: int) -> float:
    """Return the median number of expressions until a law was found; infinite where most searches did not."""
    counts = [one["expressions"] if one["best"]["found"] else np.inf for one in searches]
    return float(median(counts)) if counts else np.inf


def table_row(law: str, found: dict[str, list[Result]], most: int) -> str:
    """Write what both methods needed for one law."""
    cells = [f"`{law}`"]
    for searches in found.values():
        times = median([one["seconds"] for one in searches])
        how_many = sum(one["best"]["found"] for one in searches)
        count = needed(searches, most)
        what = f"{count:,.0f}" if np.isfinite(count) else f"not in {most:,}"
        cells += [f"{how_many} of {len(searches)}", what, f"{times:.1f}"]
    counts = {method: needed(searches, most) for method, searches in found.items()}
    cells.append(faster(counts))
    return f"| {' | '.join(cells)} |"


def faster(counts: dict[str, float]) -> str:
    """Say which method needed fewer expressions in the median."""
    if counts["ppo"] == counts["random"]:
        return "neither" if np.isinf(counts["ppo"]) else "equal"
    return NAMES["ppo"] if counts["ppo"] < counts["random"] else NAMES["random"]


def law_row(law: str, searches: list[Result]) -> str:
    """Write the best of PPO's expressions for one law, the smallest where several are exact."""
    best = min(searches, key=lambda one: (not one["best"]["found"], one["best"]["complexity"], one["best"]["error"]))
    steps = [one["steps"] for one in searches if one["best"]["found"]]
    reached = f"{median(steps):,.0f}" if steps else "not found"
    expression = best["best"]["expression"]
    how = "found" if best["best"]["found"] else f"leaves {best['best']['error']:.2%}"
    elsewhere = best["elsewhere"]
    there = "none" if elsewhere < 1e-6 else f"{elsewhere:.2%}"
    return f"| `{law}` | {LAWS[law].text} | {how} | `{expression}` | {there} | {reached} |"


def verdict(results: dict[str, dict[str, list[Result]]]) -> str:
    """Say in one sentence for how many laws each method was faster."""
    who = [faster({method: needed(found[method], 0) for method in COLORS}) for found in results.values()]
    return (
        f"Of {len(who)} laws PPO\nneeded fewer for {who.count(NAMES['ppo'])}, random search for "
        f"{who.count(NAMES['random'])}; {who.count('neither')} were found by neither in most searches."
    )


def draw(results: dict[str, dict[str, list[Result]]], path: Path, most: int) -> None:
    """Draw the best error so far over expressions, a panel per law, a line per search."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(4, len(results))
    lines = -(-len(results) // columns)
    figure = Figure(figsize=(2.7 * columns + 0.6, 2.1 * lines + 0.9), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    panels = np.atleast_1d(figure.subplots(lines, columns, sharex=True, sharey=True)).ravel()
    for panel, (law, found) in zip(panels, results.items(), strict=False):
        for method, searches in found.items():
            for number, one in enumerate(searches):
                label = NAMES[method] if number == 0 else None
                _draw_search(panel, one, COLORS[method], label, most)
        panel.set_title(LAWS[law].text, loc="left", fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlim(20, most)
        panel.set_ylim(LEAST_ERROR * 0.7, 1.3)
        panel.yaxis.set_major_formatter(lambda error, _: f"{error:.3g}" if error >= 1 else f"{error:g}")
    for panel in panels[len(results) :]:
        panel.set_visible(False)
    for panel in panels[max(0, len(results) - columns) : len(results)]:
        panel.tick_params(labelbottom=True)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, frameon=False, loc="outside upper right", ncols=2, fontsize=9)
    figure.suptitle(
        "Best expression so far, a line per seed; a dot where the law is found (error 0)", x=0.01, ha="left"
    )
    figure.supxlabel("expressions written", fontsize=10)
    figure.supylabel("error, of the deviation of the data", fontsize=10)
    figure.savefig(path, metadata={"Software": None})


def _draw_search(panel: Any, one: Result, color: str, label: str | None, most: int) -> None:
    noted = [(one["curve"][0][0], 1.0), *one["curve"]]
    counts, errors = (list(column) for column in zip(*noted, strict=True))
    found = one["best"]["found"]
    counts.append(one["expressions"] if found else most)
    errors.append(errors[-1])
    shown = np.clip(np.minimum(errors, 1.0), LEAST_ERROR, None)
    panel.step(counts, shown, where="post", color=color, linewidth=1.3, alpha=0.8, label=label)
    if found:
        panel.plot(counts[-1], LEAST_ERROR, "o", color=color, markersize=5, clip_on=False)


PAGE = """\
# Symbolic

The laws behind data are found again, written token by token. `twostep train symbolic --env.kwargs.law kepler` searches,
and prints and keeps (`discoveries.json`) the best expression; `twostep eval` prints what the policy itself writes.

```python
from twostep.worlds.symbolic import Dataset, Law, SymbolicEnv

env = SymbolicEnv(law="pendulum")
obs, info = env.reset(seed=0)
for word in ("sqrt", "div", "x0", "x1"):
    obs, reward, terminated, truncated, info = env.step(env.search.grammar.words.index(word))
print(info["expression"], env.best()["pendulum"].expression)  # sqrt(l / g), T = 6.283 * sqrt(l / g)

env.set_task(Law("area", "A = pi r^2", {{"r": (1.0, 2.0)}}, lambda r: 3.1416 * r**2))  # from the next reset on
```

## Rules
- An expression is written in prefix order, a token per step: a variable, a constant (1, 2), or one of add, sub, mul,
  div, square, sqrt, exp, log, sin, cos (`neg` on request). `info["action_mask"]` allows what can still be finished
  within 15 tokens, a complexity of 30 (2 for exp, log, sin and cos, 1 for every other token) and a depth of 10: every
  episode ends with a whole expression and nothing is ever cut. A token that is not allowed ends the episode with -1.
- The reward comes with the last token: max(0, 1 - error), and 1 more where the law is found, less 0.02 times the
  complexity as a part of its limit. The error is the root of the mean square of what is left, in deviations of the
  target, after the expression was multiplied with the one factor that serves it best (least squares, in closed form;
  `fit_scale=False` compares as it stands). What has no value somewhere explains nothing.
- A law is found where the error is at most 1e-6 (1.5 times the noise, where a `Law` has `noise`).
- `law` names one law, or several: each episode draws one, and `show_data` adds three numbers per variable to the
  observation that tell them apart. `set_task(task)`, `reset(options={{"task": task}})` and curricula choose it. A task
  is a name, a `Law` (ranges and a formula) or a `Dataset` (what somebody measured).
- An observation is a vector of fixed length: the tokens so far, the parent and the first sibling of the next place, how
  many places are open, how deep the next one lies, how many tokens and how much complexity are left.

## What is found
From the shipped settings, nothing changed for any law; the smallest exact expression of all seeds, or the best one.
*Elsewhere* is what it leaves of 64 points that the search has not seen.

| law | | | best expression | error elsewhere | steps until found (median) |
|---|---|---|---|---|--:|
{laws}

## Beside random search
Random search writes uniformly among the tokens that the same mask allows. Each search ends when the law is found, or
after {most:,} expressions. Numbers are medians over seeds; a search that did not find the law counts as infinite. Times
are of the processor: one expression costs random search less, because it learns nothing, so look at both columns. With
so few seeds a factor of two in expressions is chance. {verdict}

| law | PPO found | expressions | s | random found | expressions | s | fewer expressions |
|---|---|--:|--:|---|--:|--:|---|
{rows}

![best error so far](symbolic/search.png)

Measured by `python benchmarks/laws.py`, finished {date}.
"""
