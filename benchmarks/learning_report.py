"""Turns the finished runs of `learning.py` into docs/results.md and docs/results/*.png."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tasks import TASKS, Task

Result = dict[str, Any]
GRID_POINTS = 200


def write(runs: Path, docs: Path) -> None:
    """Write the page and its pictures from all finished runs."""
    results = {name: load(runs / name) for name in TASKS}
    results = {name: found for name, found in results.items() if found}
    if not results:
        raise SystemExit(f"No run has finished yet: {runs} is empty. Run python benchmarks/learning.py first.")
    pictures = docs / "results"
    pictures.mkdir(parents=True, exist_ok=True)
    drawn = draw_all({name: runs / name for name in results}, pictures)
    images = "\n".join(f"![Learning curves of {stem}](results/{stem}.png)" for stem in drawn)
    (docs / "results.md").write_text(f"{introduction(results)}\n\n{table(results)}\n\n## Learning curves\n\n{images}\n")


def load(folder: Path) -> list[Result]:
    """Return the results of all finished seeds of one task."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("seed*/result.json"))]


def introduction(results: dict[str, list[Result]]) -> str:
    """Say what was run and how the figures are to be read."""
    dates = [result["date"] for found in results.values() for result in found]
    return f"""# What twostep learns

This page and its pictures are written by `python benchmarks/learning.py`, from runs of the configurations that twostep
ships, each in its own process with `OMP_NUM_THREADS=1`, on the CPU, finished by {max(dates)}. Nothing is selected:
every seed that was run counts, and the policy is the one that training ended with.

*evaluation* is the mean of 100 episodes of the deterministic policy after training; *training* the mean of the last 100
training episodes, exploration included; *best* the highest mean of 100 consecutive training episodes. Each is a mean
over seeds ± the deviation between seeds. The published figure is compared with the kind of figure that its authors
report, and is met when twostep's mean is at least as high."""


def table(results: dict[str, list[Result]]) -> str:
    """Write every task beside what was published."""
    rows = [
        "| environment | steps | seeds | evaluation | training | best | published | source | compared with | |",
        "|---|--:|--:|--:|--:|--:|--:|---|---|---|",
    ]
    for name, found in results.items():
        task = TASKS[name]
        steps = max(result["steps"] for result in found)
        figures = " | ".join(mean_and_spread(found, figure) for figure in ("evaluation", "training", "best"))
        rows.append(
            f"| {task.env} | {steps:,} | {len(found)} | {figures} | {published(task)} | {task.source} "
            f"| {task.compared} | {verdict(task, found)} |"
        )
    return "\n".join(rows)


def mean_and_spread(found: list[Result], figure: str) -> str:
    """Write one figure over all seeds."""
    values = np.array([result[figure] for result in found])
    digits = 0 if abs(values.mean()) >= 1000 else 1
    return f"{values.mean():.{digits}f} ± {values.std():.{digits}f}"


def published(task: Task) -> str:
    """Write the published figure with what is known of its spread."""
    value = f"{task.published:g}" + (f" ± {task.spread:g}" if task.spread is not None else "")
    return f"below {value}" if task.at_most else value


def verdict(task: Task, found: list[Result]) -> str:
    """Say whether the mean over seeds is where it must be, and how a miss compares with what others scatter."""
    mean = float(np.mean([result[task.compared] for result in found]))
    if mean < task.published if task.at_most else mean >= task.published:
        return "met"
    near = task.spread is not None and mean >= task.published - task.spread
    return "MISSED, within the published deviation" if near else "MISSED"


def draw_all(folders: dict[str, Path], pictures: Path) -> list[str]:
    """Draw one picture per environment; return their names."""
    import matplotlib

    matplotlib.use("Agg")
    together: dict[str, list[str]] = {}
    for name in folders:
        together.setdefault(TASKS[name].picture or name, []).append(name)
    for stem, names in together.items():
        draw({name: folders[name] for name in names}, pictures / f"{stem}.png")
    return list(together)


def draw(folders: dict[str, Path], path: Path) -> None:
    """Draw mean and range over seeds against steps, with the published return as a line."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.4))
    lines: dict[float, str] = {}
    for name, folder in folders.items():
        steps, returns = curves(folder)
        label = TASKS[name].env.split(", ")[-1] if len(folders) > 1 else TASKS[name].env
        (line,) = axes.plot(steps, returns.mean(0), label=label, linewidth=1.6)
        axes.fill_between(steps, returns.min(0), returns.max(0), color=line.get_color(), alpha=0.2, linewidth=0)
        if not TASKS[name].at_most:
            lines[TASKS[name].published] = TASKS[name].source
    for value, source in lines.items():
        axes.axhline(value, color="black", linestyle="--", linewidth=1, label=f"{value:g}, {source}")
    axes.set_xlabel("agent steps")
    axes.set_ylabel("mean return of the last\n100 training episodes")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)


def curves(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return steps `[P]` that all seeds reached and their mean returns `[seeds, P]`."""
    seeds: list[np.ndarray] = []
    for result in sorted(folder.glob("seed*/result.json")):
        lines = (result.parent / "curve.jsonl").read_text().splitlines()
        points = [json.loads(line) for line in lines]
        seeds.append(np.array([[point["steps"], point["mean_return"]] for point in points]).T)
    steps = np.linspace(max(seed[0, 0] for seed in seeds), min(seed[0, -1] for seed in seeds), GRID_POINTS)
    return steps, np.stack([np.interp(steps, *seed) for seed in seeds])
