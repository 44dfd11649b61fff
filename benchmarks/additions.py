"""What do a step, a loss and a slow sink of one's own cost? Each beside the same training without it.

Both sides start from the same seed and take turns; what counts is the median time of an update, by the clock on the
wall, once small networks learn in machine code. The custom loss adds nothing to the loss, so that both sides do the
same work; whatever a real loss computes comes on top. Both must end with the same weights, to the last bit where
PyTorch computes the gradients: machine code of another loss rounds otherwise.

    python benchmarks/additions.py                     # 9 rounds; exit code 1 where a target is missed
    python benchmarks/additions.py --rounds 5 --updates 5
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch
from overhead import parts, weights_of
from torch import Tensor
from workloads import WORKLOADS

from twostep import RecordableLoss, default_training_step, functional_training_loop
from twostep.config import TrainerConfig
from twostep.stats import BackgroundSink

WARM_UP = 40
"""Updates before the clock starts: by then what becomes machine code has become it."""
COMPARED = 6
"""Updates after which the weights of both sides are compared."""
SECONDS_PER_ROW = 10.0
TARGETS = {"custom step": 1.05, "custom loss": 1.05, "custom loss, unrecorded": math.inf, "sink that sleeps 10 s": 1.01}


def own_step(state: Any, components: Any, config: Any, experience: Any, custom_losses: Any) -> dict[str, float]:
    """Do what the default does, and measure something besides."""
    metrics = default_training_step(state, components, config, experience, custom_losses)
    return metrics | {"mean_action": float(experience.actions.float().mean())}


def nothing_loss(
    policy: Any, obs: Tensor, actions: Tensor, rewards: Tensor, values: Tensor, advantages: Tensor
) -> Tensor:
    """Take part in everything that a custom loss takes part in, and add nothing."""
    return 0.0 * (values - rewards).square().mean()


class Sleeper:
    """A sink beyond a network that is as good as down."""

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Take as long as a request that times out."""
        time.sleep(SECONDS_PER_ROW)

    def close(self) -> None:
        """Have nothing to write."""


class Clock:
    """A sink that notes when each update is done."""

    immediate = True

    def __init__(self) -> None:
        self.times: list[float] = []

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Look at the clock."""
        self.times.append(time.perf_counter())

    def close(self) -> None:
        """Leave the times as they are."""

    def seconds_per_update(self) -> float:
        """Return the median, without the first updates."""
        times = self.times[WARM_UP:] if len(self.times) > WARM_UP + 1 else self.times
        return median(after - before for before, after in pairwise(times))


def additions() -> dict[str, dict[str, Any]]:
    """Return what is added to the plain loop, by name."""
    return {
        "custom step": {"step_fn": own_step},
        "custom loss": {"custom_losses": [RecordableLoss(nothing_loss)]},
        "custom loss, unrecorded": {"custom_losses": [nothing_loss]},
        "sink that sleeps 10 s": {"sinks": (BackgroundSink(Sleeper(), seconds_to_finish=0.0),)},
    }


def main(argv: list[str] | None = None) -> int:
    """Compare every addition on the chosen workloads and print a verdict for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="A8,C-GRU-16", help="workloads of workloads.py stepped by make_env")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--updates", type=int, default=20, help="updates per round and side")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # that the sleeper lost rows is no news
    verdicts = [
        compare(workload, addition, options.rounds, options.updates)
        for workload in options.only.split(",")
        for addition in additions()
    ]
    return 0 if all(verdicts) else 1


def compare(workload: str, addition: str, rounds: int, updates: int) -> bool:
    """Time both sides in turns; return whether weights and cost are as they must be."""
    sides: tuple[Callable[[], dict[str, Any]], ...] = (lambda: {}, lambda: additions()[addition])
    ratios: list[float] = []
    ends = [train(workload, COMPARED, 0, side(), compile_after=0)[1] for side in sides]
    identical = torch.equal(*ends)
    for number in range(rounds):
        order = sides if number % 2 == 0 else sides[::-1]
        (first, _), (second, _) = (train(workload, WARM_UP + updates, number, side()) for side in order)
        ratios.append(second / first if order is sides else first / second)
    cost, target = median(ratios), TARGETS[addition]
    print(
        f"{workload}, {addition}: with / without = {cost:.4f} ({min(ratios):.3f} to {max(ratios):.3f}), "
        f"{rounds} rounds of {updates} updates, target {target:g}: {'met' if cost <= target else 'MISSED'}; "
        f"weights bit-identical: {'met' if identical else 'MISSED'}",
        flush=True,
    )
    return cost <= target and identical


def train(workload: str, updates: int, seed: int, added: dict[str, Any], **changes: Any) -> tuple[float, Tensor]:
    """Train by the functional loop; return seconds per update after the first ones, and the weights."""
    env, policy, ppo = parts(WORKLOADS[workload], seed)
    ppo = replace(ppo, **changes)
    config = TrainerConfig(total_timesteps=updates * WORKLOADS[workload].batch)
    clock = Clock()
    sinks = (*added.pop("sinks", ()), clock)
    functional_training_loop(config, ppo, policy, vecenv=env, seed=seed, device="cpu", sinks=sinks, **added)
    return clock.seconds_per_update(), weights_of(policy)


if __name__ == "__main__":
    sys.exit(main())
