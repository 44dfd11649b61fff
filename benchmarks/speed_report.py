"""Turns what `speed.py` measured into verdicts, docs/performance.md and docs/performance.png."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from workloads import WORKLOADS

Record = dict[str, Any]
FIRST_UPDATE_TARGET = 2.0
MEMORY_TARGET = 1.1
GPU_FILE = "gpu.jsonl"
"""What `gpu.py` printed, where it was run."""


class Verdict(NamedTuple):
    """twostep beside one peer: the median of the rounds' ratios, their range, and what was aimed at."""

    peer: str
    ratio: float
    lowest: float
    highest: float
    target: float

    def __str__(self) -> str:
        return (
            f"{self.ratio:.2f}x {self.peer} ({self.lowest:.2f} to {self.highest:.2f}), "
            f"target {self.target:g}x: {met(self.ratio >= self.target)}"
        )


def met(holds: bool) -> str:
    """Say whether a target was reached."""
    return "met" if holds else "MISSED"


def median_of(record: Record, peer: str, figure: str) -> float:
    """Return the median over the rounds of one figure."""
    return median(entry[figure] for entry in record["rounds"][peer])


def others(record: Record) -> list[str]:
    """List the peers that were measured."""
    return [peer for peer in record["rounds"] if peer != "twostep"]


def verdicts(name: str, record: Record) -> list[Verdict]:
    """Compare with the fastest peer, then with each peer that has a target of its own."""
    if "twostep" not in record["rounds"] or not others(record):
        return []
    workload = WORKLOADS[name]
    fastest = max(others(record), key=lambda peer: median_of(record, peer, "steps_per_second"))
    targets = {fastest: workload.target}
    targets |= {peer: target for peer, target in workload.target_against.items() if peer in record["rounds"]}
    return [compare(record, peer, target) for peer, target in targets.items()]


def compare(record: Record, peer: str, target: float) -> Verdict:
    """Compare round by round, so that what slows both down cancels out."""
    own, theirs = record["rounds"]["twostep"], record["rounds"][peer]
    ratios = [mine["steps_per_second"] / its["steps_per_second"] for mine, its in zip(own, theirs, strict=True)]
    return Verdict(peer, median(ratios), min(ratios), max(ratios), target)


def verdict_lines(name: str, record: Record) -> list[str]:
    """Say in words how one workload went."""
    lines = [f"{peer}: {median_of(record, peer, 'steps_per_second'):,.0f} steps/s" for peer in record["rounds"]]
    lines += [f"twostep is {verdict}" for verdict in verdicts(name, record)]
    if "twostep" in record["rounds"]:
        lines += [start_line(record)] if name == "A8" else []
        lines += [memory_line(record)] if others(record) else []
    return lines


def start_line(record: Record) -> str:
    """Say how long twostep takes from the start of the process to its first update."""
    seconds = median_of(record, "twostep", "seconds_to_first_update")
    verdict = met(seconds <= FIRST_UPDATE_TARGET)
    return f"first update after {seconds:.2f} s, target {FIRST_UPDATE_TARGET:g} s: {verdict}"


def memory_line(record: Record) -> str:
    """Say how much memory twostep takes beside the leanest peer."""
    own = median_of(record, "twostep", "peak_mb")
    leanest = min(median_of(record, peer, "peak_mb") for peer in others(record))
    verdict = met(own <= MEMORY_TARGET * leanest)
    return f"peak memory {own:.0f} MB, leanest peer {leanest:.0f} MB, target {MEMORY_TARGET:g}x: {verdict}"


def solve_seconds(record: Record, peer: str) -> float:
    """Return the median time to solve; a seed that never solved counts as endless."""
    return median(entry["seconds"] if entry["solved"] else math.inf for entry in record["rounds"][peer])


def solve_lines(record: Record) -> list[str]:
    """Say in words how long solving took."""
    lines = [f"{peer}: {solve_seconds(record, peer):.1f} s (median)" for peer in record["rounds"]]
    if {"twostep", "sb3"} <= set(record["rounds"]):
        verdict = met(solve_seconds(record, "twostep") < solve_seconds(record, "sb3"))
        lines.append(f"Target, sooner than SB3 with its zoo's settings: {verdict}")
    return lines


def write(results: Path, docs: Path, peers: list[str]) -> None:
    """Write the page and its picture from the newest record of every workload."""
    names = [*WORKLOADS, "solve"]
    records = {name: json.loads(path.read_text()) for name in names if (path := results / f"{name}.json").exists()}
    speed = {name: record for name, record in records.items() if name != "solve"}
    if not speed:
        raise SystemExit(f"Nothing was measured yet: {results} is empty. Run python benchmarks/speed.py first.")
    docs.mkdir(exist_ok=True)
    compared = {name: verdicts(name, record) for name, record in speed.items() if verdicts(name, record)}
    sections = [
        introduction(records),
        ratio_table(speed, compared),
        speed_table(speed, peers),
        resources_table(speed, peers),
    ]
    if "solve" in records:
        sections.append(solve_table(records["solve"]))
    if (results / GPU_FILE).exists():
        sections.append(gpu_table([json.loads(line) for line in (results / GPU_FILE).read_text().splitlines()]))
    sections.append(settings_section())
    (docs / "performance.md").write_text("\n\n".join(sections) + "\n")
    if compared:
        draw(compared, docs / "performance.png")


def introduction(records: dict[str, Record]) -> str:
    """Say how, on what and with what was measured."""
    newest = max(records.values(), key=lambda record: record["date"])
    machine = newest["machine"]
    versions: dict[str, str] = {}
    for record in records.values():
        versions |= record["versions"]
    rounds = {len(next(iter(record["rounds"].values()))) for record in records.values()}
    count = " or ".join(str(count) for count in sorted(rounds))
    tools = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"""# Speed beside other libraries

This page and its picture are written by `python benchmarks/speed.py`; `--solve` adds the time to solve CartPole.

Figures are environment steps per second, collecting and learning together. Each measurement is a fresh process; the
libraries take turns; the median of {count} rounds counts. A ratio is the median of the rounds' ratios. Ratios move
little between machines, absolute figures a lot. All libraries train the same networks on the same environments with
the same settings, without logging. `OMP_NUM_THREADS=1`, but 2 for Pong.

Measured on {newest["date"]}: {machine["cpu"]}, {machine["cores"]} cores, no GPU, Python {machine["python"]};
{tools}."""


def ratio_table(speed: dict[str, Record], compared: dict[str, list[Verdict]]) -> str:
    """Write twostep beside the best peer."""
    rows = ["| | workload | twostep | compared with | ratio | range | target | |", "|---|---|--:|---|--:|---|--:|---|"]
    for name, results in compared.items():
        for number, verdict in enumerate(results):
            own = median_of(speed[name], "twostep", "steps_per_second")
            theirs = median_of(speed[name], verdict.peer, "steps_per_second")
            label = f"{name} | {WORKLOADS[name].title} | {own:,.0f}" if number == 0 else " | | "
            best = " (fastest peer)" if number == 0 else ""
            rows.append(
                f"| {label} | {verdict.peer}{best}, {theirs:,.0f} | **{verdict.ratio:.2f}** "
                f"| {verdict.lowest:.2f} to {verdict.highest:.2f} | {verdict.target:g} "
                f"| {met(verdict.ratio >= verdict.target)} |"
            )
    picture = "![Ratios to the fastest peer, with targets](performance.png)"
    return "## twostep beside the fastest peer\n\n" + "\n".join(rows) + f"\n\n{picture}"


def speed_table(speed: dict[str, Record], peers: list[str]) -> str:
    """Write every library's steps per second."""
    measured = [peer for peer in peers if any(peer in record["rounds"] for record in speed.values())]
    rows = ["| | " + " | ".join(measured) + " |", "|---|" + "--:|" * len(measured)]
    for name, record in speed.items():
        cells = [
            f"{median_of(record, peer, 'steps_per_second'):,.0f}" if peer in record["rounds"] else "-"
            for peer in measured
        ]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    note = "`sb3-contrib-shared` shares one LSTM between actor and critic, which is less work than the others do."
    return "## Steps per second\n\n" + "\n".join(rows) + ("\n\n" + note if "sb3-contrib-shared" in measured else "")


def resources_table(speed: dict[str, Record], peers: list[str]) -> str:
    """Write start and memory; the targets are judged where the start is all that counts."""
    measured = [peer for peer in peers if any(peer in record["rounds"] for record in speed.values())]
    rows = ["| | " + " | ".join(measured) + " |", "|---|" + "--:|" * len(measured)]
    for name, record in speed.items():
        cells = [
            f"{median_of(record, peer, 'seconds_to_first_update'):.2f} s, {median_of(record, peer, 'peak_mb'):.0f} MB"
            if peer in record["rounds"]
            else "-"
            for peer in measured
        ]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    text = "From the start of the process, imports included, to the end of the first update; largest resident size."
    if "A8" in speed and "twostep" in speed["A8"]["rounds"] and others(speed["A8"]):
        text += f"\n\nA8: {start_line(speed['A8'])}; {memory_line(speed['A8'])}."
    return f"## Start and memory\n\n{text}\n\n" + "\n".join(rows)


def solve_table(record: Record) -> str:
    """Write how long CartPole takes."""
    rows = ["| library | median (s) | seeds (s) | steps, median |", "|---|--:|---|--:|"]
    for peer, entries in record["rounds"].items():
        seconds = ", ".join(f"{entry['seconds']:.1f}" if entry["solved"] else "never" for entry in entries)
        solved = [entry["steps"] for entry in entries if entry["solved"]]
        steps = f"{median(solved):,.0f}" if solved else "-"
        rows.append(f"| {peer} | {solve_seconds(record, peer):.1f} | {seconds} | {steps} |")
    text = (
        "From the start of the process until the last 100 training episodes average 475: twostep with the "
        "configuration it ships for CartPole, SB3 with its zoo's settings, both with 8 envs and one thread."
    )
    return f"## CartPole solved\n\n{text}\n\n" + "\n".join(rows) + f"\n\n{solve_lines(record)[-1]}."


def gpu_table(cases: list[Record]) -> str:
    """Write what one GPU does alone: there was no peer beside it, so these are no ratios."""
    rows = ["| rows | memory | precision | steps/s | collecting alone | learning alone | peak memory |"]
    rows.append("|--:|---|---|--:|--:|--:|--:|")
    for case in cases:
        figures = (f"{case[name]:,}" for name in ("steps_per_second", "collecting_alone", "learning_alone"))
        cells = (f"{case['rows']:,}", case["memory"].upper(), case["precision"], *figures, f"{case['peak_mb']:,} MB")
        rows.append(f"| {' | '.join(cells)} |")
    first = cases[0]
    text = (
        f"One {first['device']}, torch {first['torch']}, by `python benchmarks/gpu.py`: the network of E, 24 steps, "
        f"{first['epochs']} epochs of 4 minibatches, a simulator of tensors that costs next to nothing. "
        "No other library was measured there, so there are no ratios."
    )
    return f"## On a GPU\n\n{text}\n\n" + "\n".join(rows)


def settings_section() -> str:
    """Write what each workload is."""
    rows = [
        "| | envs | steps | epochs | minibatches | memory | layers | threads |",
        "|---|" + "--:|" * 4 + "---|---|--:|",
    ]
    for name, workload in WORKLOADS.items():
        memory = "-" if workload.memory == "none" else f"{workload.memory.upper()} {workload.memory_size}"
        if workload.bptt_length:
            memory += f", twostep in sequences of {workload.bptt_length}"
        layers = "x".join(map(str, workload.hidden)) or "NatureCNN"
        rows.append(
            f"| {name} | {workload.rows:,} | {workload.steps} | {workload.epochs} | {workload.minibatches} "
            f"| {memory} | {layers} {workload.activation if workload.hidden else ''} | {workload.threads} |"
        )
    text = (
        "Actor and critic are separate, but for Pong's shared NatureCNN. Everywhere: Adam, clip 0.2, gamma 0.99, "
        "lambda 0.95, value weight 0.5, gradient norm 0.5, advantages normalised per minibatch. Peers have their "
        "monitors, writers and checks switched off. E runs with `torch.set_float32_matmul_precision('medium')` in all "
        "libraries and steps no physics."
    )
    return f"## Settings\n\n{text}\n\n" + "\n".join(rows)


def draw(compared: dict[str, list[Verdict]], path: Path) -> None:
    """Draw one bar per workload with its range, and a mark where its target is."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    first = {name: results[0] for name, results in compared.items()}
    places = range(len(first))
    ratios = [verdict.ratio for verdict in first.values()]
    below = [verdict.ratio - verdict.lowest for verdict in first.values()]
    above = [verdict.highest - verdict.ratio for verdict in first.values()]
    colors = ["#2a7f9e" if verdict.ratio >= verdict.target else "#c26a3d" for verdict in first.values()]
    figure, axes = plt.subplots(figsize=(1.5 + 0.85 * len(first), 3.6))
    axes.bar(places, ratios, yerr=[below, above], capsize=3, color=colors, width=0.6, ecolor="#444444")
    for place, verdict in zip(places, first.values(), strict=True):
        axes.hlines(verdict.target, place - 0.4, place + 0.4, color="black", linewidth=2)
    axes.hlines([], 0, 0, color="black", linewidth=2, label="target")
    axes.axhline(1, color="#888888", linewidth=1, linestyle="--", label="fastest peer")
    axes.set_xticks(list(places), list(first))
    axes.set_ylabel("steps per second,\nmultiple of the fastest peer")
    axes.set_ylim(0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
