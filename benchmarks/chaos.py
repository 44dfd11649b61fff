"""Hurts environments, checkpoints and numbers in full size and writes what came of it into docs/reliability.md.

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
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "chaos"))

import malice  # noqa: E402 - found by the path set above
import poison  # noqa: E402
import scenarios  # noqa: E402
import wreckage  # noqa: E402

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
    ("SIGKILL while saving (B8)", lambda sized: wreckage.kills_while_saving(sized(1000))),
    ("Checkpoints cut off or with a bit turned (B9)", lambda sized: wreckage.damage(sized(10_000))),
    ("Disks that fail while saving (B10)", lambda sized: wreckage.full_disks(sized(200))),
    ("Malicious files as checkpoints (B12)", lambda sized: malice.malicious()),
    ("Races for a run's folder (B14)", lambda sized: wreckage.lock_races(sized(100))),
    ("Signals at random times (B15)", lambda sized: wreckage.signals(sized(100))),
    ("NaN and infinity at random places (D18)", lambda sized: poison.injections(sized(200))),
)

PAGE = """# Reliability

What happens to a run when its processes are killed, hang or fail, its files are damaged or its numbers are none.
Every row is a scenario in `tests/chaos/`; the tests run it in small numbers, `make chaos` ran it in the numbers given
here. Each scenario asserts what it claims, and this page is only written when all assertions held.

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
- **SIGKILL while saving**: a process saves without pause until it is killed at a random time. Caught halfway are those
  that left files of an unfinished save behind. The newest whole checkpoint is never older than the last save that had
  returned.
- **Checkpoints damaged**: a file is cut at a random byte or a random bit of it is turned; loading names path and part,
  and takes the checkpoint before.
- **Malicious files**: pickles, archives that unpack to gigabytes or out of their folder, heads and manifests that are
  huge, deep or lie about shapes, links, pipes; most with digests that fit. None may leave a mark, take a second or
  200 MiB.
- **NaN and infinity**: one number in an observation, a reward, a loss or a gradient. The error, or the warning where
  training goes on, names environment, key and step, or minibatch and parameter.

## What is promised
- A worker that dies is noticed at once, one that hangs within `step_timeout`; both are replaced, as often in a row as
  `restarts` says, after pauses of 0, 0.05, 0.1, ... at most 2 seconds. What never works stops after that many failures
  with one error that names the environment, its seed, episode, step and action, and holds the worker's own traceback.
- New episodes after a failure have seeds that follow from the old ones: the same failures give the same run. What
  environments were told by calls that returned nothing, such as `call("set_task", 3)`, is told to their successors.
- Workers end with their parent, however it ends: on Linux the kernel kills them with all that they started, also in the
  middle of a step and while stopped. Elsewhere a thread in each worker does that, unless a step holds Python's lock.
- Shared memory has no name and lies in no file system: nothing is left of it.
- Resuming continues bit for bit on a CPU, in the middle of episodes, in as many processes as one likes
  (`benchmarks/resume.py`; `tests/chaos/test_resume_exactness.py`). Environments whose state is no plain data
  (`twostep.vector.snapshots`) begin new episodes, from seeds that follow from the checkpoint.
- Checkpoints are synced before they get their name, verified when they are read, and never a pickle. A damaged one is
  passed over with a warning; a disk that fails costs the checkpoint, not the run.
- SIGINT, SIGTERM, SIGUSR1 and SIGHUP let the update be finished and saved; the exit code is 128 and the signal's
  number. A second one ends the run at once. One process at a time trains in a run's folder.
- Numbers that are not finite never reach a weight: `on_nonfinite` says whether they stop the training (stop), are left
  out (skip), or are left out and end their episode (reset).
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
    for name in ("SIGINT", "SIGHUP"):  # programs that are started in the background ignore them, and so would all here
        signal.signal(getattr(signal, name), signal.SIG_DFL)
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
