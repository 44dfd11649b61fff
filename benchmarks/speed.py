"""Measures twostep's speed beside the installed PPO libraries, on the same envs with the same settings.

Each figure comes from a fresh process; the libraries take turns, so that a machine that slows down slows all of them.

    python benchmarks/speed.py                       # everything; writes docs/performance.md and .png
    python benchmarks/speed.py --only A8,E --rounds 7
    python benchmarks/speed.py --quick               # one short round, nothing written
    python benchmarks/speed.py --solve               # seconds until CartPole is solved
    python benchmarks/speed.py --report              # writes the pages again from what was measured last
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STARTED = time.time()
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = ROOT / "runs" / "speed"

PEERS: dict[str, tuple[str, str, str]] = {
    "twostep": ("peer_twostep", "twostep", "twostep"),
    "sb3": ("peer_sb3", "stable_baselines3", "stable-baselines3"),
    "sb3-contrib": ("peer_sb3", "sb3_contrib", "sb3-contrib"),
    "sb3-contrib-shared": ("peer_sb3", "sb3_contrib", "sb3-contrib"),
    "rsl_rl": ("peer_rsl_rl", "rsl_rl", "rsl-rl-lib"),
}
"""Name -> module here, package it needs, name of its distribution.

`sb3-contrib-shared` lets actor and critic share one LSTM, the critic's gradient cut: less work than the others do.
"""


def main(argv: list[str] | None = None) -> int:
    """Run what the options say."""
    options = parse(argv)
    if options.worker:
        return run_worker(options)
    if options.solve_worker:
        import solve

        print(json.dumps(solve.run(options.solve_worker, options.seed, options.started or STARTED)))
        return 0
    if options.solve:
        measure_solving(options)
    elif not options.report:
        measure_speed(options)
    if not options.quick:
        import speed_report

        speed_report.write(RESULTS, ROOT / "docs", list(PEERS))
        print("wrote docs/performance.md and docs/performance.png")
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="workloads, comma-separated; all by default")
    parser.add_argument("--peers", default="", help="libraries, comma-separated; all that are installed by default")
    parser.add_argument("--rounds", type=int, default=5, help="fresh processes per library and workload")
    parser.add_argument("--seconds", type=float, default=7.0, help="measured time per process")
    parser.add_argument("--warm-up", type=float, default=2.0, help="seconds before the clock starts")
    parser.add_argument("--quick", action="store_true", help="one round of 2 seconds; writes nothing")
    parser.add_argument("--solve", action="store_true", help="time until CartPole's last 100 episodes average 475")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of --solve")
    parser.add_argument("--report", action="store_true", help="only write the pages from the last measurements")
    parser.add_argument("--worker", nargs=2, metavar=("LIBRARY", "WORKLOAD"), help="measure once in this process")
    parser.add_argument("--solve-worker", metavar="LIBRARY", help="solve once in this process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--started", type=float, help="when the process was started, set by the caller")
    options = parser.parse_args(argv)
    if options.quick:
        options.rounds, options.seconds, options.warm_up, options.seeds = 1, 2.0, 0.5, 1
    return options


def run_worker(options: argparse.Namespace) -> int:
    """Measure one library on one workload and print one line of JSON."""
    from meter import Meter
    from workloads import WORKLOADS

    name, workload_name = options.worker
    workload = WORKLOADS[workload_name]
    meter = Meter(workload.batch, options.started or STARTED, options.warm_up, options.seconds)
    importlib.import_module(PEERS[name][0]).train(name, workload, meter, options.seed)
    print(json.dumps(meter.result()))
    return 0


def measure_speed(options: argparse.Namespace) -> None:
    """Measure the chosen workloads, all libraries in turn, and print each workload's verdict."""
    from speed_report import verdict_lines
    from workloads import WORKLOADS

    chosen = options.only.split(",") if options.only else list(WORKLOADS)
    for workload_name in chosen:
        workload = WORKLOADS[workload_name]
        if workload.needs and importlib.util.find_spec(workload.needs) is None:
            print(f"{workload_name} is left out: its envs need {workload.needs}, which is not installed.")
            continue
        peers = present(("twostep", *workload.peers), options.peers)
        print(f"{workload_name}: {workload.title} ({', '.join(peers)})", flush=True)
        rounds: dict[str, list[dict[str, float]]] = {peer: [] for peer in peers}
        for number in range(options.rounds):
            for peer in rotated(peers, number):
                arguments = ["--worker", peer, workload_name, "--seed", str(number)]
                arguments += ["--seconds", str(options.seconds), "--warm-up", str(options.warm_up)]
                figures = in_fresh_process(arguments, workload.threads)
                rounds[peer].append(figures)
                print(
                    f"  round {number + 1} {peer:12} {figures['steps_per_second']:9,.0f} steps/s"
                    f"   first update {figures['seconds_to_first_update']:.2f} s   peak {figures['peak_mb']:.0f} MB",
                    flush=True,
                )
        record = {"rounds": rounds, "threads": workload.threads, **describe(peers)}
        for line in verdict_lines(workload_name, record):
            print("  " + line)
        if not options.quick:
            store(workload_name, record)


def measure_solving(options: argparse.Namespace) -> None:
    """Measure the time to solve CartPole, both libraries in turn, one seed after the other."""
    from speed_report import solve_lines

    peers = present(("twostep", "sb3"), options.peers)
    rounds: dict[str, list[dict[str, float]]] = {peer: [] for peer in peers}
    for seed in range(options.seeds):
        for peer in rotated(peers, seed):
            figures = in_fresh_process(["--solve-worker", peer, "--seed", str(seed)], threads=1)
            rounds[peer].append(figures)
            print(f"  seed {seed} {peer:8} {figures['seconds']:.1f} s, {figures['steps']:,.0f} steps", flush=True)
    record = {"rounds": rounds, "threads": 1, **describe(peers)}
    for line in solve_lines(record):
        print("  " + line)
    if not options.quick:
        store("solve", record)


def present(peers: tuple[str, ...], only: str) -> list[str]:
    """Return the libraries that are wanted and installed; say which are left out."""
    wanted = [peer for peer in peers if not only or peer in only.split(",")]
    found = [peer for peer in wanted if importlib.util.find_spec(PEERS[peer][1]) or peer == "twostep"]
    for peer in wanted:
        if peer not in found:
            print(f"{peer} is not installed and is left out: pip install {PEERS[peer][2]}")
    return found


def rotated(peers: list[str], by: int) -> list[str]:
    """Let another library begin in each round."""
    start = by % len(peers)
    return peers[start:] + peers[:start]


def in_fresh_process(arguments: list[str], threads: int) -> dict[str, float]:
    """Run this script as a worker and return the JSON of its last line."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads))
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), environment.get("PYTHONPATH", "")])
    command = [sys.executable, str(HERE / "speed.py"), *arguments, "--started", repr(time.time())]
    with tempfile.TemporaryDirectory() as elsewhere:  # simulators leave log files where they run
        done = subprocess.run(command, env=environment, cwd=elsewhere, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} failed with exit code {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def describe(peers: list[str]) -> dict[str, Any]:
    """Say on what and with what was measured."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    def version_of(distribution: str) -> str:
        try:
            return version(distribution)
        except PackageNotFoundError:
            return "from this repository"

    distributions = [PEERS[peer][2] for peer in peers] + ["torch", "gymnasium", "numpy"]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cpu": cpu_model(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {distribution: version_of(distribution) for distribution in distributions},
    }


def cpu_model() -> str:
    """Return the processor's name as the system gives it."""
    import platform

    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def store(name: str, record: dict[str, Any]) -> None:
    """Keep a workload's figures for the report; the last measurement counts."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    sys.exit(main())
