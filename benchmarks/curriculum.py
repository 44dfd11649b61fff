"""Trains on a lock of 10 dials with every curriculum and without one, and writes docs/curriculum.png and its figures.

    python benchmarks/curriculum.py                       # 5 curricula and none, 3 seeds: minutes on one core
    python benchmarks/curriculum.py --seeds 1 --steps 20000    # a try, written nowhere

What is measured is exact: how likely the policy, acting by chance as it trains, opens the whole lock.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twostep import (
    AgentConfig,
    LearningProgressCurriculum,
    LowRewardCurriculum,
    PPOConfig,
    PPOTrainer,
    StagedCurriculum,
    SuccessRateCurriculum,
    UniformCurriculum,
    make_env,
    make_policy,
)
from twostep.worlds.lock import CombinationLock

DOCS = Path(__file__).parent.parent / "docs"
DIALS, CHOICES, STEPS, ENVS = 10, 4, 60_000, 16
KINDS = {
    "whole lock only": "#b3261e",
    "uniform": "#8a8a8a",
    "staged": "#c98a1b",
    "low reward": "#7a4fa3",
    "learning progress": "#2b8a5a",
    "success rate": "#1f5fa8",
}
Curve = list[tuple[int, float]]


def curriculum(kind: str, dials: int, seed: int) -> Any:
    """Return what decides how many dials the next lock has; None for always all of them."""
    tasks = {str(length): {"length": length} for length in range(1, dials + 1)}
    return {
        "whole lock only": lambda: None,
        "uniform": lambda: UniformCurriculum(tasks, seed=seed),
        "staged": lambda: StagedCurriculum(tasks, [part / dials for part in range(1, dials)]),
        "low reward": lambda: LowRewardCurriculum(tasks, seed=seed),
        "learning progress": lambda: LearningProgressCurriculum(tasks, seed=seed),
        "success rate": lambda: SuccessRateCurriculum(tasks, history=20),
    }[kind]()


def train(kind: str, seed: int, dials: int = DIALS, steps: int = STEPS) -> Curve:
    """Train once; return after how many steps the whole lock is opened how often."""
    env = make_env(lambda: CombinationLock(dials, CHOICES), ENVS, seed)
    policy = make_policy(env, AgentConfig(num_layers=1, hidden_size=32), seed=seed)
    settings = PPOConfig(rollout_steps=32, minibatch_size=256, update_epochs=4, lr=2e-3, gamma=1.0, ent_coef=0.02)
    trainer = PPOTrainer(policy, env, settings, device="cpu", seed=seed, curriculum=curriculum(kind, dials, seed))
    curve: Curve = [(0, chance_to_open(policy, dials))]
    trainer.train(steps, callback=lambda now, _: curve.append((now.total_timesteps, chance_to_open(policy, dials))))
    return curve


def chance_to_open(policy: Any, dials: int) -> float:
    """Return the product of the probabilities of all right numbers, in a lock of all dials."""
    lock = CombinationLock(dials, CHOICES)
    seen, right = [lock.reset()[0]], []
    for _ in range(dials):
        right.append(lock.right_number)
        seen.append(lock.step(lock.right_number)[0])
    with torch.no_grad():
        starts = torch.zeros(1, dials, dtype=torch.bool)
        output = policy(torch.from_numpy(np.stack(seen[:-1]))[None], policy.initial_state(dials), starts)
        return float(output.distribution.log_prob(torch.tensor([right])).sum().exp())


def draw(curves: dict[str, list[Curve]], path: Path) -> None:
    """Draw the mean over seeds, and each seed thin, once as they are and once by orders of magnitude."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(9.0, 6.6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 1, sharex=True)
    for kind, runs in curves.items():
        steps = [step for step, _ in runs[0]]
        chances = np.array([[chance for _, chance in run] for run in runs])
        for panel, mean in zip(panels, (chances.mean(0), np.exp(np.log(chances).mean(0))), strict=True):
            panel.plot(steps, chances.T, color=KINDS[kind], linewidth=0.7, alpha=0.35)
            panel.plot(steps, mean, color=KINDS[kind], linewidth=2.2, label=kind)
    panels[0].set_title(
        f"How often a lock of {DIALS} dials is opened: {len(runs)} seeds each, thick their mean", loc="left"
    )
    panels[0].set_ylabel("chance")
    panels[0].legend(frameon=False, loc="center left", fontsize=9)
    panels[1].set_yscale("log")
    panels[1].set_ylabel("chance, logarithmic")
    panels[1].set_xlabel("environment steps")
    panels[1].xaxis.set_major_formatter(EngFormatter(sep=""))
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        panel.set_axisbelow(True)
    figure.savefig(path)


def table(curves: dict[str, list[Curve]], seconds: float) -> str:
    """Return the figures of all seeds."""
    lines = [
        f"| | chance to open the whole lock after {STEPS:,} steps, every seed | mean | steps until it is above 0.5 |",
        "|---|---|--:|---|",
    ]
    for kind, runs in curves.items():
        ends = [run[-1][1] for run in runs]
        solved = [next((f"{step:,}" for step, chance in run if chance > 0.5), "never") for run in runs]
        shown = ", ".join(f"{end:.2g}" for end in ends)
        lines.append(f"| {kind} | {shown} | {np.mean(ends):.2g} | {' · '.join(solved)} |")
    command = f"`python benchmarks/curriculum.py`, {len(runs)} seeds, {seconds / 60:.0f} minutes on one core"
    return "\n".join([*lines, "", f"Measured by {command}; nothing is left out."])


def main() -> None:
    """Train every kind with every seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="train for so many steps only; writes nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    curves: dict[str, list[Curve]] = {}
    for kind in KINDS:
        curves[kind] = [train(kind, seed, steps=options.steps or STEPS) for seed in range(options.seeds)]
        print(f"{kind:18} {' '.join(f'{run[-1][1]:.2g}' for run in curves[kind])}", flush=True)
    figures = table(curves, time.perf_counter() - began)
    print(figures)
    if options.steps is None:
        draw(curves, DOCS / "curriculum.png")
        page = DOCS / "curriculum.md"
        marked = re.compile("(<!-- figures -->\n).*(<!-- end of figures -->)", re.DOTALL)
        page.write_text(marked.sub(lambda found: f"{found[1]}{figures}\n{found[2]}", page.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
