"""`twostep inspect`: what is in a rollout, a checkpoint or a run."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from twostep.checkpoint import MANIFEST_FILE, load_state
from twostep.cli.evaluations import BEST
from twostep.cli.options import InspectRequest
from twostep.cli.runs import CHECKPOINTS, CONFIG_FILE, METRICS_FILE, ROLLOUTS, find_run
from twostep.columns import size_in_words
from twostep.config import TrainingConfig
from twostep.errors import ConfigError, RolloutError
from twostep.experience import load_rollouts
from twostep.inspection import Remark, plot_rollout, summarize
from twostep.inspection.tables import COLORS, facts, figure, remark_lines, rollout_tables
from twostep.stats.console import duration, number, sparkline
from twostep.stats.health import health
from twostep.stats.sinks import read_rows
from twostep.values import show

ROLLOUT_SUFFIX = ".safetensors"
_PICKLED = (".pt", ".pth", ".pkl", ".pickle", ".bin")
_PLAIN_WIDTH = 120
_CURVE = 40
_MOST_ROLLOUTS = 12


def run_inspection(request: InspectRequest) -> int:
    """Print what is in a file or folder, draw rollouts, and return the exit code."""
    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH, highlight=False, soft_wrap=False)
    path = Path(request.what)
    if path.is_dir():
        _inspect_folder(console, path, request)
    else:
        _inspect_rollout(console, path, request)
    return 0


def _inspect_folder(console: Console, folder: Path, request: InspectRequest) -> None:
    if (folder / MANIFEST_FILE).is_file():
        _inspect_state(console, folder)
        return
    rollouts = sorted(folder.glob(f"*{ROLLOUT_SUFFIX}"))
    if rollouts and not (folder / CONFIG_FILE).is_file():
        _list_rollouts(console, folder, rollouts)
        _inspect_rollout(console, rollouts[-1], request)
        return
    _inspect_run(console, find_run(str(folder)))


def _inspect_rollout(console: Console, path: Path, request: InspectRequest) -> None:
    if path.suffix in _PICKLED:
        raise RolloutError(
            f"{path} may be a pickle, which can run code when it is read, so it is not opened. If you trust it: "
            f"twostep.save_rollouts(torch.load({str(path)!r}, weights_only=True), "
            f"{str(path.with_suffix(ROLLOUT_SUFFIX))!r})"
        )
    rollout = load_rollouts(path)
    about = path.stat()
    age = duration(max(0.0, time.time() - about.st_mtime))
    console.print(Text(str(path), style="bold cyan"))
    console.print(Text(f"  {size_in_words(about.st_size)} on disk, written {age} ago\n", style="dim"))
    console.print(rollout_tables(summarize(rollout)))
    if request.plot:
        out = Path(request.out) if request.out is not None else path.with_suffix(".png")
        _draw(console, rollout, out, path.name, asked=request.out is not None)


def _draw(console: Console, rollout: Any, out: Path, name: str, *, asked: bool) -> None:
    """Draw beside the file where that can be written; where it was asked for, it must be possible."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        plot_rollout(rollout, out, title=f"{name}: {rollout.num_steps:,} steps of {rollout.num_rows:,} rows")
    except (OSError, ValueError) as error:
        if asked:
            raise ConfigError(f"no picture can be written to {show(str(out))}: {error}.") from error
        console.print(Text(f"\n  no picture: {error}; --out says where to write it", style="dim"))
        return
    console.print(Text(f"\n  picture: {out}"))


def _list_rollouts(console: Console, folder: Path, rollouts: list[Path]) -> None:
    console.print(Text(f"{folder}: {len(rollouts):,} rollouts, the newest is shown", style="bold"))
    shown = rollouts[-_MOST_ROLLOUTS:]
    for path in shown:
        console.print(Text(f"  {path.name}  {size_in_words(path.stat().st_size)}", style="dim"))
    if len(rollouts) > len(shown):
        console.print(Text(f"  and {len(rollouts) - len(shown):,} older ones", style="dim"))
    console.print()


# ------------------------------------------------------------------ saved states


def _inspect_state(console: Console, folder: Path) -> None:
    """Show the parts of a checkpoint, or of any other saved state; every byte is checked before."""
    state, manifest = load_state(folder)
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    console.print(Text(str(folder), style="bold cyan"))
    console.print(Text(f"  {size_in_words(size)} on disk; every byte is as it was written\n", style="dim"))
    parts = state if isinstance(state, dict) else {"state": state}
    plain = [(name, _in_short(value)) for name, value in parts.items() if not _tensors(value) and value]
    plain += [(name, _in_short(value)) for name, value in manifest.items()]
    console.print(facts(plain))
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1))
    table.add_column("part", no_wrap=True)
    for name in ("tensors", "numbers", "size", "largest", "not finite"):
        table.add_column(name, justify="right")
    spoilt: list[Remark] = []
    for name, value in parts.items():
        leaves = _tensors(value)
        if not leaves:
            continue
        bad = sum(int((~leaf.isfinite()).sum()) for leaf in leaves if leaf.is_floating_point())
        largest = max((float(leaf.double().abs().nan_to_num().max()) for leaf in leaves if leaf.numel()), default=0.0)
        count = sum(leaf.numel() for leaf in leaves)
        memory = size_in_words(sum(leaf.numel() * leaf.element_size() for leaf in leaves))
        light = COLORS["poor"] if bad else "dim"
        table.add_row(str(name), str(len(leaves)), f"{count:,}", memory, figure(largest), Text(f"{bad:,}", style=light))
        if bad:
            spoilt.append(Remark("poor", f"{name} holds {bad:,} numbers that are NaN or infinite: use an older state."))
    console.print(table)
    console.print(remark_lines(spoilt or [Remark("good", "All numbers are finite.")]))


def _tensors(node: Any) -> list[torch.Tensor]:
    if isinstance(node, torch.Tensor):
        return [node]
    if isinstance(node, dict):
        return [leaf for branch in cast("dict[Any, Any]", node).values() for leaf in _tensors(branch)]
    if isinstance(node, (list, tuple)):
        return [leaf for branch in cast("list[Any]", node) for leaf in _tensors(branch)]
    return []


def _in_short(value: Any) -> str:
    """Write a plain part of a state on one line; long ones lose their middle."""
    text = f"{value:,}" if type(value) is int else " ".join(json.dumps(value, default=str).split())
    return text if len(text) <= 90 else f"{text[:60]} ... {text[-24:]}"


# ------------------------------------------------------------------ runs


def _inspect_run(console: Console, folder: Path) -> None:
    """Show what was trained, how far it is and how it goes, and what its folder holds."""
    config = TrainingConfig.from_yaml(folder / CONFIG_FILE)
    metrics_file = folder / METRICS_FILE
    rows = read_rows(metrics_file) if metrics_file.is_file() else []
    console.print(Text(str(folder), style="bold cyan"))
    console.print(facts(_about_run(config, rows)))
    if rows:
        console.print()
        for advice in health({name: value for name, value in rows[-1].items() if value is not None}):
            words = f"{advice.topic}: {advice.words} ({advice.measure})"
            hint = f"; {advice.hint}" if advice.hint else ""
            console.print(remark_lines([Remark(advice.state, f"{words}{hint}")]))
    console.print()
    console.print(facts(_contents(folder)))


def _about_run(config: TrainingConfig, rows: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    yield "trained", f"{config.env.id}, {config.env.num_envs} environments, seed {config.seed}"
    memory = "" if config.agent.memory == "none" else f", {config.agent.memory} of {config.agent.memory_size}"
    yield "agent", f"{config.agent.name}, hidden size {config.agent.hidden_size}{memory}"
    if not rows:
        yield "progress", "no update yet"
        return
    last, total = rows[-1], config.trainer.total_timesteps
    yield "progress", f"{last['step']:,} of {total:,} steps ({last['step'] / total:.0%}), {len(rows):,} rows of metrics"
    returns = [row["mean_reward"] for row in rows if row.get("mean_reward") is not None]
    if returns:
        yield "return", f"{sparkline(returns, _CURVE)} {number(returns[-1])}, best {number(max(returns))}"
    if last.get("replay_share"):
        stale = (
            f"KL {last['replay_kl']:.3g}, {last['replay_clipfrac']:.0%} clipped, {last['replay_age']:.1f} updates old"
        )
        yield "replay", f"{last['replay_share']:.0%} of the last update: {stale}"


def _contents(folder: Path) -> Iterator[tuple[str, str]]:
    """Say what is in the folder, with the command that shows more of it."""
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_file(), path.name)):
        if path.name.startswith("."):
            continue
        inside = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
        words = size_in_words(sum(file.stat().st_size for file in inside))
        if path.name == ROLLOUTS:
            words += f", {len(list(path.glob(f'*{ROLLOUT_SUFFIX}'))):,} rollouts"
        if path.name == CHECKPOINTS:
            steps = sorted(child.name for child in path.glob("step_*[0-9]"))
            newest = os.path.join(folder, path.name, steps[-1]) if steps else None
            words += f", {len(steps)} of them: twostep inspect {newest}" if newest else ", none yet"
        if path.name in (BEST, ROLLOUTS):
            words += f": twostep inspect {os.path.join(folder, path.name)}"
        yield path.name, words
