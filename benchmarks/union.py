"""Compares what processes learn together, each from its own rows, with what one process learns from all rows.

    torchrun --nproc-per-node 2 benchmarks/union.py                           # by gloo, on the CPU
    torchrun --nproc-per-node 2 benchmarks/union.py --device cuda             # by NCCL, a GPU for each
    torchrun --nproc-per-node 2 benchmarks/union.py --device cuda --one_gpu   # by gloo, all on one GPU
    python benchmarks/union.py --device cuda                                  # NCCL, in a group of one process

Prints the largest difference of any weight, statistic or metric, of each case.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "distributed"))

import union_batch

from twostep.checkpoint import pack
from twostep.group import ALONE, ProcessGroup, joined_group
from twostep.launch import launch


def main() -> None:
    """Learn every case together and alone, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--size", type=int, default=64, help="units of every layer")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--one_gpu", action="store_true")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    with group_of(options) as group:
        if group.leads:
            print(f"{group.size} processes, {options.rows} rows, {options.size} units, {options.device}")
            print("| case | largest difference of weights and statistics | of metrics, relative | seconds together |")
            print("|---|---|---|---|")
        for case in union_batch.CASES:
            dist.barrier()
            began = time.monotonic()
            together = union_batch.learned(case, group, options.rows, options.size, options.device)
            seconds = time.monotonic() - began
            if group.leads:
                one = union_batch.learned(case, ALONE, options.rows, options.size, options.device)
                print(f"| {case} | {weights(one, together):.1e} | {metrics(one, together):.1e} | {seconds:.1f} |")


@contextmanager
def group_of(options: argparse.Namespace) -> Any:
    """Join the processes, or make a group of one."""
    if launch().size > 1:
        with joined_group("cpu" if options.one_gpu else options.device) as group:
            yield group
        return
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531"}
    dist.init_process_group("cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo", rank=0, world_size=1)
    yield ProcessGroup()
    dist.destroy_process_group()


def weights(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return how far tensors are from one another where they are furthest."""
    first, second = (pack({**learned, "metrics": None})[0] for learned in (one, other))
    numbers = [name for name in first if first[name].numel()]
    return max(float((first[name].double() - second[name].double()).abs().max()) for name in numbers)


def metrics(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return how far metrics are from one another where they are furthest, in parts of those above 1."""
    pairs = [
        (update[name], others[name])
        for update, others in zip(one["metrics"], other["metrics"], strict=True)
        for name in update
    ]
    return max(abs(a - b) / max(1.0, abs(a)) for a, b in pairs if not (math.isnan(a) and math.isnan(b)))


if __name__ == "__main__":
    main()
