"""Cuts runs at random places, goes on from the disk, and compares every number with the run that was never cut.

    python benchmarks/resume.py               # 20 cuts of each configuration
    python benchmarks/resume.py --cuts 2      # a try

Prints a table. The first difference, in one bit of a tensor or one row of metrics, stops it with an error.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "chaos"))

import resuming

PROCESSES = ((0, 0), (2, 2), (0, 2), (2, 0))
"""Worker processes before and after the cut; 0 steps environments in this one."""


def main() -> None:
    """Run every configuration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuts", type=int, default=20, help="random places for each configuration")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    updates = arguments.cuts + 4
    print("| network | actions | workers before, after | cuts | updates | numbers in a state | seconds |")
    print("|---|---|---|---|---|---|---|")
    for net, actions, (before, after) in product(resuming.NETS, resuming.ACTIONS, PROCESSES):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            figures = resuming.exactness(net, actions, before, after, arguments.cuts, Path(folder), updates)
        cells = (net, actions, f"{before}, {after}", *figures.values(), round(time.monotonic() - began, 1))
        print(
            "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells) + " |", flush=True
        )
    print("\nEvery tensor, generator, counter and row of metrics was the same, bit for bit.")


if __name__ == "__main__":
    main()
