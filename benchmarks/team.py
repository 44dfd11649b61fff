"""Trains the team of skirmish from its shipped configuration, and shows how it plays against the scripted team.

    python benchmarks/team.py                        # GRU and LSTM, 3 seeds; writes docs/team.md and docs/team/
    python benchmarks/team.py --memory gru --jobs 1
    python benchmarks/team.py --report               # writes the page again from the finished runs

Every run is `twostep train skirmish` in a process of its own; then its last checkpoint, and the policy as it was before
the first step, play 200 matches that neither training nor the evaluations on the way have seen.
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

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RUNS = ROOT / "runs" / "team"
DOCS = ROOT / "docs" / "team"
MATCHES, SEED = 200, 987_654
WANTED = 0.8
"""What the lower bound of the 95 % interval must reach."""


def main(argv: list[str] | None = None) -> int:
    """Run what the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", default="gru,lstm", help="which memories, comma-separated")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, each on one thread")
    parser.add_argument("--report", action="store_true", help="only write the page")
    options = parser.parse_args(argv)
    if not options.report:
        waiting = [(memory, seed) for seed in range(options.seeds) for memory in options.memory.split(",")]
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda run: train_and_judge(*run), waiting))
    write_report()
    return 0


def train_and_judge(memory: str, seed: int) -> None:
    """Train once, unless that was done before, and let the result and its beginning play."""
    parent = RUNS / memory / f"seed{seed}"
    if (parent / "result.json").exists():
        return
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONPATH=str(ROOT / "src"))
    words = ["train", "skirmish", "--seed", str(seed), "--memory", memory, "--run_dir", str(parent), "--device", "cpu"]
    command = [sys.executable, "-m", "twostep", *words, "--no-progress", "--no-tensorboard"]
    started = time.perf_counter()
    subprocess.run(command, env=environment, check=True)
    folder = max(parent.glob("skirmish-*"))
    trained, untrained = judge(folder)
    result = {
        "folder": str(folder.relative_to(ROOT)),
        "minutes": (time.perf_counter() - started) / 60,
        "steps": json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["step"],
        "trained": trained,
        "untrained": untrained,
        "date": time.strftime("%Y-%m-%d"),
    }
    (parent / "result.json").write_text(json.dumps(result, indent=1))
    print(f"{memory} seed {seed}: {trained['wins']} of {MATCHES} won, before training {untrained['wins']}", flush=True)


def judge(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return how the last checkpoint of a run and its first weights do in fresh matches; keep a replay of the first."""
    import torch

    from twostep import evaluate_vs_heuristic
    from twostep.cli.training import build, load_newest
    from twostep.config import TrainingConfig
    from twostep.worlds.skirmish import EnvConfig, save_replay

    torch.set_num_threads(1)
    config = TrainingConfig.from_yaml(folder / "config.yaml")
    env, trainer = build(config, num_envs=1)
    matches = EnvConfig.from_dict(config.env.kwargs)
    before, _ = evaluate_vs_heuristic(trainer.policy, matches, MATCHES, SEED)
    load_newest(trainer, folder)
    after, replay = evaluate_vs_heuristic(trainer.policy, matches, MATCHES, SEED, save_replay=True)
    assert replay is not None
    save_replay(replay, folder / "judged.npz")
    env.close()
    return after.to_dict(), before.to_dict()


def write_report() -> None:
    """Write the page, the curves and a match to watch."""
    from twostep.replay import read_replay, write_animation, write_page

    DOCS.mkdir(parents=True, exist_ok=True)
    results = {path.parent: json.loads(path.read_text()) for path in sorted(RUNS.glob("*/seed*/result.json"))}
    draw_curves(results)
    first = next(iter(results.values()))
    replay = read_replay(ROOT / first["folder"] / "judged.npz")
    write_page(replay, DOCS / "match.html")
    write_animation(replay, DOCS / "match.gif")
    rows = [_row(folder, result) for folder, result in results.items()]
    (ROOT / "docs" / "team.md").write_text(PAGE.format(rows="\n".join(rows), matches=MATCHES, seed=SEED))
    print("wrote docs/team.md and docs/team/")


def _row(folder: Path, result: dict[str, Any]) -> str:
    trained, untrained = result["trained"], result["untrained"]
    low, high = trained["win_interval"]
    ends = ", ".join(f"{count} {reason}" for reason, count in trained["ends"].items() if count)
    cells = (
        folder.parent.name.upper(),
        folder.name.removeprefix("seed"),
        f"{untrained['win_rate']:.1%}",
        f"**{trained['win_rate']:.1%}** ({low:.1%} to {high:.1%})",
        "yes" if low >= WANTED else "missed",
        f"{trained['mean_hp_margin']:+.0%}",
        ends,
        f"{result['steps']:,} in {result['minutes']:.0f} min",
    )
    return f"| {' | '.join(cells)} |"


def draw_curves(results: dict[Path, dict[str, Any]]) -> None:
    """Draw the win rate in the evaluations on the way, a line per seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, PercentFormatter

    figure = Figure(figsize=(8.0, 4.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    colors = {"gru": "#1f5fa8", "lstm": "#c1521d"}
    for folder, result in results.items():
        lines = (ROOT / result["folder"] / "evaluations.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        memory = folder.parent.name
        first = folder.name == "seed0"
        steps, rates = [0, *(row["step"] for row in rows)], [result["untrained"]["win_rate"]]
        rates += [row["win_rate"] for row in rows]
        panel.plot(steps, rates, color=colors[memory], alpha=0.8, label=memory.upper() if first else None)
    panel.axhline(WANTED, color="#888888", linestyle="--", linewidth=1.0)
    panel.set_title("Matches won against the scripted team, a line per seed", loc="left", fontweight="bold")
    panel.set_xlabel("agent steps")
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    panel.set_ylim(-0.03, 1.03)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    panel.legend(frameon=False, loc="lower right")
    figure.savefig(DOCS / "curves.png")


PAGE = """\
# A team that learns to win

Five mechs with memory learn skirmish ([the rules](skirmish.md)) from the shipped configuration, nothing changed:
`twostep train skirmish`. Each acts by what its team sees and earns for itself. Measured by `python benchmarks/team.py`
on two cores, a thread per run.

![win rates](team/curves.png)

The last checkpoint of every run, acting by the mode of its distribution, against `HeuristicPolicy` in {matches} matches
(seeds drawn from {seed}) that no run has seen before; "before" is the same network before its first step. Wanted is a
lower bound of the 95 % interval (Wilson) of at least 80 %.

| memory | seed | before | won (95 % interval) | at least 80 % | hit points | ended by | training |
|---|---|---|---|---|---|---|---|
{rows}

A match of the first run, blue has learned:

![a match](team/match.gif)

[The same match as a page](team/match.html) to open in a browser: pause, go back and forth, look at every mech.
`twostep play RUN` makes both from any run.
"""


if __name__ == "__main__":
    sys.exit(main())
