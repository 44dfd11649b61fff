"""Hurts `VectorEnv` in full size and writes what came of it into docs/reliability.md.

    python benchmarks/chaos.py                  # about half an hour
    python benchmarks/chaos.py --scale 0.02     # a try, written nowhere

The scenarios are those of the tests in `tests/chaos`, which assert the same in small numbers. Any assertion that fails
stops this with its traceback, and no page is written.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "chaos"))

import scenarios  # noqa: E402 - found by the path set above

Run = tuple[str, Callable[[Callable[[int], int]], dict[str, Any]]]

RUNS: tuple[Run, ...] = (
    ("SIGKILL of workers, forkserver (A1)", lambda sized: scenarios.kills(sized(1000))),
    ("SIGKILL of workers, spawn (A1)", lambda sized: scenarios.kills(sized(100), start_method="spawn", pause=0.5)),
    ("SIGSTOP of workers, deadline 2 s (A2)", lambda sized: scenarios.hangs(sized(200), step_timeout=2.0)),
    ("Segmentation faults (A2)", lambda sized: scenarios.crashes("segfault", sized(200))),
    ("os._exit(0) in a step (A2)", lambda sized: scenarios.crashes("exit", sized(50))),
    ("MemoryError in a step (A2)", lambda sized: scenarios.crashes("memory", sized(50))),
    ("Exceptions in a step (A2)", lambda sized: scenarios.crashes("error", sized(200))),
    ("SIGKILL of the parent between steps, spawn (A4)", lambda sized: scenarios.orphans(sized(50), "spawn", False)),
    ("SIGKILL of the parent in a step, spawn (A4)", lambda sized: scenarios.orphans(sized(50), "spawn", True)),
    (
        "SIGKILL of the parent between steps, forkserver (A4)",
        lambda sized: scenarios.orphans(sized(50), "forkserver", False),
    ),
    (
        "SIGKILL of the parent in a step, forkserver (A4)",
        lambda sized: scenarios.orphans(sized(50), "forkserver", True),
    ),
    ("Created and closed, forkserver (A5)", lambda sized: scenarios.cycles(sized(1000))),
    ("Created and closed, spawn (A5)", lambda sized: scenarios.cycles(sized(100), "spawn")),
)

PAGE = """# Reliability

What happens to a run when its processes are killed, hang or fail. Every row is a scenario of
`tests/chaos/scenarios.py`; the tests run it in small numbers, `make chaos` ran it in the numbers given here. Each
scenario asserts what it claims, and this page is only written when all assertions held.

{table}

Measured by `{command}` in {minutes:.0f} minutes, on {machine}, {cores} cores shared with other work, Python {python}.

## What the figures mean
- **Verified transition**: every observation carries its environment, its episode, its step, a digest of all actions so
  far, and a checksum. For each stored transition the next observation (or the episode's last one) is worked out from
  the stored observation and action and compared. A torn, stale, skipped or repeated step, or an episode glued to
  another, would not match.
- **Rows broken off**: steps that a lost worker could not finish. They are `truncated`, not `valid`, and have no last
  observation: learning values the transition before by the last real observation, counts the broken step nowhere,
  forgets memory and begins the next episode (`tests/collect/test_broken_episodes.py`). Verified transitions and broken
  rows add up to the steps taken times the number of rows, exactly. A worker that is killed again while it is replaced
  is lost twice, but breaks off its rows once.
- **Parents killed**: by SIGKILL, so that they could tidy up nothing. Processes are found by a mark in their
  environment, segments by what is in `/dev/shm`.
- **Created and closed**: two workers each time, with a reset and a step.

## What is promised
- A worker that dies is noticed at once, one that hangs within `step_timeout`; both are replaced, as often in a row as
  `restarts` says, after pauses of 0, 0.05, 0.1, ... at most 2 seconds. What never works stops after that many failures
  with one error that names the environment, its seed, episode, step and action, and holds the worker's own traceback.
- New episodes after a failure have seeds that follow from the old ones: the same failures give the same run. What
  environments were told by calls that returned nothing, such as `call("set_task", 3)`, is told to their successors.
- Workers end with their parent, however it ends: on Linux the kernel kills them with all that they started, also in the
  middle of a step and while stopped. Elsewhere a thread in each worker does that, unless a step holds Python's lock.
- Shared memory has no name and lies in no file system: nothing is left of it.
- Not promised: state that an environment keeps outside of its process, in files for example, is its own affair.
"""


def table(rows: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Return a Markdown table: a scenario, and each of its figures with its name."""
    lines = ["| scenario | figures |", "|---|---|"]
    for name, figures in rows:
        listed = "; ".join(f"{title}: {_shown(value)}" for title, value in figures.items())
        lines.append(f"| {name} | {listed} |")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    """Run everything, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="run so much of each; only 1 writes the page")
    parser.add_argument("--only", default="", help="run scenarios whose name holds this text")
    arguments = parser.parse_args()
    logging.getLogger("twostep.vector").setLevel(logging.ERROR)  # thousands of warnings are meant to happen

    def sized(count: int) -> int:
        return max(1, round(count * arguments.scale))

    rows: list[tuple[str, dict[str, Any]]] = []
    began = time.monotonic()
    for name, run in RUNS:
        if arguments.only in name:
            rows.append((name, run(sized)))
            print(f"{time.monotonic() - began:7.1f} s  {name}: {rows[-1][1]}", flush=True)
    page = PAGE.format(
        table=table(rows),
        command="make chaos",
        minutes=(time.monotonic() - began) / 60,
        machine=f"{platform.system()} {platform.release()}, {platform.machine()}",
        cores=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
    )
    if arguments.scale == 1 and not arguments.only:
        (ROOT / "docs" / "reliability.md").write_text(page, encoding="utf-8")
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
