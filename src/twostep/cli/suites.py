"""`twostep eval --suite`: a policy in many cases, as a table, as JSON and as a picture."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from twostep.cli.options import EvaluationRequest
from twostep.cli.trained import find_policy
from twostep.cli.training import device_named
from twostep.config.suites import load_suite
from twostep.errors import ConfigError
from twostep.stats.console import number
from twostep.suites import SimulationSuite

if TYPE_CHECKING:
    from twostep.evaluation import CaseScores, CategoryScores, SuiteScores
    from twostep.store import PolicyRecord

RESULTS = "suites"
"""Where in a run's folder the scores of suites are."""
_WIDEST = 300


def run_suite(request: EvaluationRequest, file: str) -> int:
    """Score the agent of a run, or the policy that a URI names, on a suite; return the exit code."""
    suite = load_suite(file, _changes(request))
    folder, record = find_policy(request.run)
    out = _made_folder(Path(request.out) if request.out else (folder or Path()) / RESULTS)
    from twostep.evaluation import PolicyEvaluator
    from twostep.evaluation.picture import plot_suite
    from twostep.runtime import limit_threads

    device = device_named(request.device or "cpu")
    policy = record.policy(device)
    limit_threads(policy)
    scores = PolicyEvaluator(suite, device=device).evaluate(policy)
    whose = _whose(folder, record)
    print(f"{suite.name}: {whose}, {_how(suite)}")
    _print_table(scores)
    stem = re.sub(r"[^\w.-]+", "-", suite.name).strip("-.") or "suite"
    about = {"policy": record.uri, "metadata": _finite(record.metadata), "deterministic": suite.deterministic}
    written = json.dumps(about | scores.to_dict(), indent=1, allow_nan=False)
    (out / f"{stem}.json").write_text(f"{written}\n", encoding="utf-8")
    picture = plot_suite(scores, out / f"{stem}.png", f"{suite.name}: {whose}")
    print(f"  {out / f'{stem}.json'}: every episode")
    print(f"  {picture}: the same as a picture")
    return 0


def _made_folder(out: Path) -> Path:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{out} cannot be made: {error.strerror}. Choose another folder with --out.") from error
    return out


def _finite(metadata: Any) -> Any:
    """Return metadata with null for what is no number: JSON has no word for it."""
    if isinstance(metadata, dict):
        return {name: _finite(value) for name, value in cast("dict[str, Any]", metadata).items()}
    if isinstance(metadata, list):
        return [_finite(value) for value in cast("list[Any]", metadata)]
    return None if isinstance(metadata, float) and not math.isfinite(metadata) else metadata


def _changes(request: EvaluationRequest) -> dict[str, Any]:
    """Return what the command line says over the suite's file."""
    changes = {"episodes": request.episodes, "seed": request.seed, "deterministic": False if request.sample else None}
    return {name: value for name, value in changes.items() if value is not None}


def _whose(folder: Path | None, record: PolicyRecord) -> str:
    name = record.uri
    if record.local_path is not None:
        base = record.local_path.parent if folder is None else folder.resolve()
        name = f"{base.name}/{record.local_path.relative_to(base)}"
    step = record.metadata.get("agent_step")
    return f"{name} after {step:,} steps" if isinstance(step, int) else name


def _how(suite: SimulationSuite) -> str:
    return "taking the likeliest action" if suite.deterministic else "acting by chance"


def _print_table(scores: SuiteScores) -> None:
    from rich.console import Console
    from rich.table import Table

    wins = any(case.results for case in scores.cases.values())
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in (*(("won", "95 %") if wins else ()), "return", "95 %", "length", "episodes"):
        table.add_column(heading, justify="right", no_wrap=True)
    for category in scores.categories.values():
        only = [case.name for case in category.cases] == [category.name]
        if not only:
            table.add_row(*_category_cells(category, wins), style="bold")
        for case in category.cases:
            table.add_row(*_case_cells(case, wins, indent="" if only else "  "))
    Console(width=_WIDEST, highlight=False).print(table)  # as wide as it needs to be: a cut number is none


def _category_cells(category: CategoryScores, wins: bool) -> list[str]:
    whole = [_percent(category.score), _range(category.interval, _percent)]
    nothing = ["", ""]
    if category.judged_by_wins:
        return [category.name, *whole, *nothing]
    returns = [_number(category.score), _range(category.interval, _number)]
    return [category.name, *(nothing if wins else []), *returns]


def _case_cells(case: CaseScores, wins: bool, indent: str) -> list[str]:
    won = [_percent(case.win_rate), _range(case.win_interval, _percent)] if wins else []
    remarks = (" in time" if case.out_of_time else "") + (f", {case.cut} cut" if case.cut else "")
    name = case.name.partition("/")[2] or case.name
    return [
        f"{indent}{name}",
        *won,
        _number(case.mean_return),
        _range(case.return_interval, _number),
        _number(case.mean_length),
        f"{len(case.returns)}{remarks}",
    ]


def _percent(rate: float) -> str:
    return f"{rate:.0%}" if math.isfinite(rate) else "-"


def _number(value: float) -> str:
    return number(value) if math.isfinite(value) else "-"


def _range(interval: tuple[float, float], write: Any) -> str:
    low, high = interval
    return f"{write(low)} to {write(high)}" if math.isfinite(low) else "-"
