"""Trains robots by the settings that ship, and writes how well they walk: docs/quadruped/ and a table.

    python benchmarks/walking.py                                    # flat ground, 3 seeds, a million steps each
    python benchmarks/walking.py --seeds 0 --steps 100000 --out /tmp/try

While training, robots explore; what is drawn is the mean of the last 100 episodes, some of which began long before. In
the end the most likely actions are taken in 64 whole episodes, with commands, pushes and noise as in training.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import numpy as np

from twostep import PPOTrainer, make_env, make_policy
from twostep.cli.terrains import score_on_terrains
from twostep.config import TrainingConfig, shipped_config
from twostep.evaluation.intervals import mean_interval

DOCS = Path(__file__).resolve().parent.parent / "docs" / "quadruped"
DRAWN = {"episode/progress": "way made, part of the way commanded", "episode/velocity_error": "velocity error, m/s"}
SCORED = ("progress", "success", "fell", "velocity_error", "yaw_rate_error")
EPISODES = 64


def main() -> int:
    """Train each seed, and write what is known after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", default="quadruped", help="name of settings that ship")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path, default=DOCS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    runs = []
    for seed in options.seeds:
        config = shipped_config(options.settings, {"seed": seed, "total_timesteps": options.steps})
        config.env.kwargs["threads"] = options.threads
        runs.append(trained(config))
        (options.out / "walking.json").write_text(json.dumps(runs, indent=1) + "\n")
        draw(runs, options.out / "walking.png")
        print(line(runs[-1]), flush=True)
    for name in SCORED:
        values = [run["scores"][name] for run in runs]
        print(f"{name}: mean of {len(runs)} seeds {np.mean(values):.3f}, 95 % interval {mean_interval(values)}")
    return 0


def trained(config: TrainingConfig) -> dict:
    """Train one seed, let it walk, and return its curves and scores."""
    env = make_env("quadruped", num_envs=config.env.num_envs, seed=config.seed, **config.env.kwargs)
    trainer = PPOTrainer.from_config(config, env, make_policy(env, config.agent, seed=config.seed), device="cpu")
    began = time.perf_counter()
    history = trainer.train(config.trainer.total_timesteps)
    seconds = time.perf_counter() - began
    env.close()
    told = score_on_terrains(config, trainer.policy, EPISODES)
    return {
        "seed": config.seed,
        "steps": trainer.total_timesteps,
        "seconds": round(seconds),
        "episodes": len(told.infos),
        "scores": {name: float(np.mean(told.values(name))) for name in SCORED},
        "timesteps": history["timesteps"],
        "curves": {name: [round(value, 4) for value in history[name]] for name in DRAWN},
    }


def line(run: dict) -> str:
    """Write one row of the table."""
    scores = "  ".join(f"{name} {value:.3f}" for name, value in run["scores"].items())
    return f"seed {run['seed']}  {run['steps']:,} steps in {run['seconds']} s  {scores}"


def draw(runs: list[dict], path: Path) -> None:
    """Draw a curve per seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(8.0, 3.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    for panel, (name, label) in zip(figure.subplots(1, 2), DRAWN.items(), strict=True):
        for run in runs:
            panel.plot(run["timesteps"], run["curves"][name], linewidth=1.4, label=f"seed {run['seed']}")
        panel.set_title(label, loc="left", fontsize=9)
        panel.set_xlabel("environment steps")
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        panel.set_ylim(bottom=0)
    panel.legend(frameon=False, fontsize=8)
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
