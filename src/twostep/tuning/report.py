"""What a study leaves for people: a page, a picture, and the best settings as a file that can be trained from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twostep.config import TrainingConfig
from twostep.files import replace_text
from twostep.tuning.pictures import plot_study
from twostep.tuning.space import with_params
from twostep.tuning.study import Study, Tried

REPORT_FILE, PICTURE_FILE, BEST_FILE = "report.md", "study.png", "best.yaml"
_LISTED = 20


def write_report(study: Study, config: TrainingConfig) -> Path:
    """Write page, picture and best settings into the study's folder; return the page."""
    best = study.best
    if best is not None:
        write_best(study, config, best)
    plot_study(study, study.folder / PICTURE_FILE)
    return replace_text(study.folder / REPORT_FILE, _page(study, config))


def write_best(study: Study, config: TrainingConfig, best: Tried) -> Path:
    """Write the settings of the study with those of its best trial, every one of them."""
    path = study.folder / BEST_FILE
    chosen = with_params(config, best.params)
    told = ", ".join(f"{name}={said(value)}" for name, value in best.params.items())
    chosen.save_yaml(path, f"Trial {best.number} of {study.folder}: {study.settings.metric} {best.value:.6g}\n{told}")
    return path


def said(value: Any) -> str:
    """Write a chosen value with the digits that matter."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _page(study: Study, config: TrainingConfig) -> str:
    tried = [one for one in study.tried() if one.counts]
    states = [one.state for one in tried]
    settings = study.settings
    lines = [
        f"# {config.experiment_name or config.env.id}: {len(tried)} trials",
        "",
        f"Each trains for {config.trainer.total_timesteps:,} steps with {settings.seeds} "
        f"{'seed' if settings.seeds == 1 else 'seeds'}; {settings.metric} at the end is to be large. "
        f"{states.count('finished')} finished, {states.count('given up')} were given up on the way, "
        f"{states.count('failed')} failed.",
        "",
        "Searched: " + ", ".join(f"`{dimension}`" for dimension in study.dimensions) + ".",
        "",
        f"![the study]({PICTURE_FILE})",
        "",
    ]
    if study.best is not None:
        lines += [f"Best: trial {study.best.number}, `twostep train {study.folder / BEST_FILE}`.", ""]
    if importance := study.importance():
        shares = ", ".join(f"{name} {share:.0%}" for name, share in importance.items())
        lines += [f"What matters, of the differences between trials: {shares}.", ""]
    return "\n".join([*lines, *_table(study, tried), *_errors(tried)]) + "\n"


def _table(study: Study, tried: list[Tried]) -> list[str]:
    names = [dimension.name for dimension in study.dimensions]
    ranked = sorted((one for one in tried if one.value is not None), key=lambda one: one.value or 0.0, reverse=True)
    head = ["trial", study.settings.metric, *names]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for one in ranked[:_LISTED]:
        cells = [str(one.number), said(one.value), *(said(one.params[name]) for name in names)]
        lines.append(f"| {' | '.join(cells)} |")
    left_out = [f"\n{len(ranked) - _LISTED} more finished."] if len(ranked) > _LISTED else []
    return lines + left_out


def _errors(tried: list[Tried]) -> list[str]:
    failed = [one for one in tried if one.state == "failed"]
    return ["", *(f"- trial {one.number} failed: {one.error}" for one in failed)] if failed else []
