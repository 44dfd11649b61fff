"""Trains twostep's shipped configurations with several seeds and compares the returns with published ones.

    python benchmarks/learning.py                          # everything; writes docs/results.md and docs/results/
    python benchmarks/learning.py --only cartpole,hopper --seeds 5 --jobs 1
    python benchmarks/learning.py --report                 # writes the pages again from the finished runs

Finished runs are kept under runs/learning and skipped the next time, unless their configuration has changed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tasks import TASKS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RUNS = ROOT / "runs" / "learning"
EVALUATION_EPISODES = 100
EVALUATION_ENVS = 10
EVALUATION_SEED = 1_000_000


def main(argv: list[str] | None = None) -> int:
    """Run what the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"tasks, comma-separated, of: {', '.join(TASKS)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, choices=(1, 2), help="runs at a time, each on one thread")
    parser.add_argument("--report", action="store_true", help="only write the pages from the finished runs")
    parser.add_argument("--steps", type=int, help="train for so many steps only, to try things out; writes no pages")
    parser.add_argument("--worker", nargs=2, metavar=("TASK", "SEED"), help="train once in this process")
    options = parser.parse_args(argv)
    if options.worker:
        run(options.worker[0], int(options.worker[1]), options.steps)
        return 0
    names = options.only.split(",") if options.only else list(TASKS)
    failed = 0 if options.report else run_all(names, options)
    if options.steps is None:
        import learning_report

        learning_report.write(RUNS, ROOT / "docs")
        print("wrote docs/results.md and docs/results/")
    return 1 if failed else 0


def run_all(names: list[str], options: argparse.Namespace) -> int:
    """Start every run that is not finished, a few at a time; return how many failed."""
    waiting: list[tuple[str, int]] = []
    for seed in range(options.seeds):
        for name in names:
            if options.steps is None and is_finished(name, seed):
                print(f"{name} seed {seed}: finished before")
            else:
                waiting.append((name, seed))
    with ThreadPoolExecutor(options.jobs) as pool:
        codes = pool.map(lambda run: run_in_own_process(*run, options.steps), waiting)
        return sum(code != 0 for code in codes)


def run_in_own_process(name: str, seed: int, steps: int | None) -> int:
    """Train once in a process with one thread, and say how it went."""
    paths = [str(ROOT / "src"), str(HERE), os.environ.get("PYTHONPATH", "")]
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(paths))
    command = [sys.executable, str(HERE / "learning.py"), "--worker", name, str(seed)]
    if steps is not None:
        command += ["--steps", str(steps)]
    folder = folder_of(name, seed)
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name} seed {seed}: FAILED with exit code {done.returncode}\n{done.stderr}", flush=True)
    else:
        print(f"{name} seed {seed}: {done.stdout.strip().splitlines()[-1]}", flush=True)
    return done.returncode


def folder_of(name: str, seed: int) -> Path:
    """Return where one run keeps its files."""
    return RUNS / name / f"seed{seed}"


def is_finished(name: str, seed: int) -> bool:
    """Say whether this very configuration was trained to its end."""
    path = folder_of(name, seed) / "result.json"
    return path.exists() and json.loads(path.read_text())["config"] == config_of(name, seed).to_dict()


def config_of(name: str, seed: int, steps: int | None = None) -> Any:
    """Return the configuration of one run."""
    from twostep.config import shipped_config

    task = TASKS[name]
    changes = {**task.changes, "seed": seed, "device": "cpu"}
    if steps is not None:
        changes["trainer.total_timesteps"] = steps
    return shipped_config(task.config, changes)


def build_trainer(config: Any, seed: int) -> Any:
    """Build env, policy and trainer as the configuration says."""
    from twostep import PPOTrainer, make_policy

    env = build_env(config, config.env.num_envs, seed)
    policy = make_policy(env, config.agent, seed=seed)
    return PPOTrainer(policy, env, config.ppo, device="cpu", seed=seed)


def build_env(config: Any, num_envs: int, seed: int) -> Any:
    """Build the configuration's environments."""
    from twostep import make_env

    return make_env(config.env.id, num_envs, seed, **config.env.kwargs)


def run(name: str, seed: int, steps: int | None = None) -> None:
    """Train once to the end, evaluate, and keep curve and result."""
    import torch

    from twostep import evaluate

    torch.set_num_threads(1)
    config = config_of(name, seed, steps)
    folder = folder_of(name, seed)
    folder.mkdir(parents=True, exist_ok=True)
    trainer = build_trainer(config, seed)
    best = -float("inf")
    started = time.perf_counter()
    with (folder / "curve.jsonl").open("w") as curve:

        def keep(trainer: Any, metrics: dict[str, float]) -> bool:
            nonlocal best
            if trainer.episode_rewards:
                point = {"steps": metrics["timesteps"], "mean_return": metrics["mean_reward"]}
                curve.write(json.dumps(point) + "\n")
                best = max(best, metrics["mean_reward"])
            goal = config.trainer.solved_at  # where the configuration names one, training stops there, as it ships
            return goal is None or len(trainer.episode_rewards) < 100 or metrics["mean_reward"] < goal

        trainer.train(config.trainer.total_timesteps, callback=keep)
    seconds = time.perf_counter() - started
    last = list(trainer.episode_rewards)
    fresh = build_env(config, EVALUATION_ENVS, EVALUATION_SEED)
    evaluated = evaluate(trainer.policy, fresh, EVALUATION_EPISODES, EVALUATION_SEED)
    returns = [float(value) for value in evaluated.returns]
    result = {
        "steps": trainer.total_timesteps,
        "seconds": seconds,
        "training": sum(last) / len(last),
        "evaluation": sum(returns) / len(returns),
        "best": best,
        "date": time.strftime("%Y-%m-%d"),
        "config": config.to_dict(),
    }
    print(
        f"{result['steps']:,} steps in {seconds:.0f} s: last 100 episodes {result['training']:.1f}, "
        f"deterministic {result['evaluation']:.1f}, best of training {best:.1f}"
    )
    if steps is None:
        (folder / "result.json").write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    sys.exit(main())
