"""How fast do robots step? Raw, with what they observe, and while a policy learns; and what a row takes of memory.

    python benchmarks/quadruped.py                      # 256 rows on two cores
    python benchmarks/quadruped.py --rows 64 --threads 1 --seconds 2

Rows walk on every type and level of terrain, moved by random actions; a figure is the median of the rounds, with the
lowest and the highest in brackets. `end to end` is the configuration `phase1_monolithic`: collecting and learning.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "2")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import numpy as np

from twostep import PPOTrainer, make_env, make_policy
from twostep.config import shipped_config
from twostep.worlds.quadruped import TYPES

TARGET = 8_000
"""Steps per second, raw with scandots, at 256 rows on two cores."""
GROUND = {"terrains": list(TYPES), "levels": (0, 9)}
CASES = {
    "flat ground, proprioception": {"scandots": False},
    "flat ground, scandots": {},
    "all terrains, proprioception": {**GROUND, "scandots": False},
    "all terrains, scandots": GROUND,
    "all terrains, scandots, privileged": {**GROUND, "privileged": True},
    "all terrains, depth": {**GROUND, "scandots": False, "depth": True},
}


def main() -> int:
    """Measure every case, and say whether the target is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-learning", action="store_true", help="leave out what takes minutes")
    options = parser.parse_args()
    print(f"{options.rows} rows, {options.threads} threads, {len(os.sched_getaffinity(0))} cores")
    speeds = {name: stepping(settings, options) for name, settings in CASES.items()}
    print("memory per row", *(f"{rows}: {memory(rows) / rows:.0f} KB" for rows in (256, 1024, 4096)), sep="  ")
    if not options.no_learning:
        learning(options)
    met = speeds["all terrains, scandots"] >= TARGET
    print(f"all terrains, scandots: {'at least' if met else 'below'} {TARGET} steps/s")
    return 0 if met else 1


def stepping(settings: dict, options: argparse.Namespace) -> float:
    """Print how many steps per second the rows take together, and return the median."""
    env = make_env("quadruped", num_envs=options.rows, seed=0, threads=options.threads, **settings)
    env.reset()
    actions = np.random.default_rng(0).normal(0, 0.4, (64, options.rows, 12))
    for action in actions[:20]:
        env.step(action)
    speeds = []
    for _ in range(options.rounds):
        began, steps = time.perf_counter(), 0
        while time.perf_counter() < began + options.seconds:
            env.step(actions[steps % 64])
            steps += 1
        speeds.append(options.rows * steps / (time.perf_counter() - began))
    env.close()
    return said(next(name for name, case in CASES.items() if case is settings), speeds)


def learning(options: argparse.Namespace) -> None:
    """Print how many steps per second are collected and learned from."""
    config = shipped_config("phase1_monolithic", {"num_envs": options.rows})
    kwargs = config.env.kwargs | {"threads": options.threads}
    env = make_env("quadruped", num_envs=options.rows, seed=0, **kwargs)
    trainer = PPOTrainer.from_config(config, env, make_policy(env, config.agent, seed=0), device="cpu")
    per_update = config.ppo.rollout_steps * options.rows
    history = trainer.train((options.rounds + 1) * per_update)
    said("end to end", history["steps_per_second"][1:])
    said("  collecting alone", [per_update / seconds for seconds in history["collect_time"][1:]])


def memory(rows: int) -> float:
    """Return what an environment of so many rows takes beyond one of a single row, in kilobytes."""
    with get_context("spawn").Pool(1) as pool:
        few = pool.apply(resident, (1,))
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(resident, (rows,)) - few


def resident(rows: int) -> float:
    """Return the memory of this process in kilobytes, after a few steps."""
    env = make_env("quadruped", num_envs=rows, seed=0, **GROUND)
    env.reset()
    for _ in range(3):
        env.step(np.zeros((rows, 12)))
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1024


def said(name: str, speeds: list[float]) -> float:
    """Print one line, and return its median."""
    print(f"{name:36} {median(speeds):8,.0f} steps/s  [{min(speeds):,.0f}, {max(speeds):,.0f}]", flush=True)
    return median(speeds)


if __name__ == "__main__":
    sys.exit(main())
