"""Measures collecting and learning on one GPU: a locomotion-shaped simulator whose tensors never leave the device.

    python benchmarks/gpu.py                      # 1,024 and 4,096 rows, GRU and LSTM, fp32 and bf16
    python benchmarks/gpu.py --rows 4096 --seconds 10

The simulator has no physics and costs next to nothing: what is left is acting, storing and learning. Prints a line of
JSON per case. There is no other library in this run, so these are no ratios.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from synthetic import SyntheticLocomotion

from twostep import AgentConfig, PPOConfig, PPOTrainer, TensorEnv, make_policy

SEED_EPOCHS, SEED_LENGTH = 10, 24


def main() -> int:
    """Measure the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1024,4096")
    parser.add_argument("--memory", default="gru,lstm")
    parser.add_argument("--precision", default="fp32,bf16")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    for rows in map(int, options.rows.split(",")):
        for memory in options.memory.split(","):
            for precision in options.precision.split(","):
                figures = measure(rows, memory, precision, options.seconds, options.device)
                print(json.dumps(figures), flush=True)
    return 0


def measure(rows: int, memory: str, precision: str, seconds: float, device: str) -> dict[str, object]:
    """Train for `seconds` after a warm-up of three updates; the network is that of workload E."""
    torch.cuda.reset_peak_memory_stats()
    env = TensorEnv(SyntheticLocomotion(rows, device=device))
    agent = AgentConfig(
        num_layers=0,
        memory=memory,
        memory_size=256,
        action_hidden=(256, 128),
        value_hidden=(256, 128),
        activation="elu",
    )
    config = PPOConfig(
        rollout_steps=SEED_LENGTH,
        bptt_length=SEED_LENGTH,
        update_epochs=SEED_EPOCHS,
        num_minibatches=4,
        precision=precision,
    )
    trainer = PPOTrainer(make_policy(env, agent, seed=0), env, config, device=device, seed=0)
    trainer.train(3 * SEED_LENGTH * rows)
    collect: list[float] = []
    learn: list[float] = []
    deadline = time.perf_counter() + seconds

    def keep(_trainer: PPOTrainer, metrics: dict[str, float]) -> bool:
        collect.append(metrics["collect_time"])
        learn.append(metrics["learn_time"])
        return time.perf_counter() < deadline

    trainer.train(10**12, callback=keep)
    steps = SEED_LENGTH * rows
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "rows": rows,
        "memory": memory,
        "precision": precision,
        "epochs": SEED_EPOCHS,
        "updates": len(learn),
        "steps_per_second": round(steps / (median(collect) + median(learn))),
        "collecting_alone": round(steps / median(collect)),
        "learning_alone": round(steps / median(learn)),
        "peak_mb": round(torch.cuda.max_memory_allocated() / 2**20),
    }


if __name__ == "__main__":
    sys.exit(main())
