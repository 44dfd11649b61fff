"""Where rows of metrics go: JSON lines (the truth about a run), CSV, TensorBoard, Weights & Biases."""

from __future__ import annotations

import csv
import importlib
import json
import math
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from twostep.errors import ConfigError
from twostep.files import replace_text


class JsonLinesSink:
    """One JSON object per line: `step`, `time` (seconds since the epoch) and the metrics; what is not finite is null.

    Texts among them, such as the type of a row, stay what they are. Each row is on its way to the disk when `log`
    returns, so a killed run loses no finished row, and a row it tore is removed when the file is opened again. With
    `resume_step`, rows after that step are removed too: the resumed run writes them anew.
    """

    immediate = True

    def __init__(self, path: str | os.PathLike[str], *, resume_step: int | None = None) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _remove_torn_row(self.path)
        if resume_step is not None:
            _forget_later_rows(self.path, resume_step)
        self._file: int | None = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def log(self, metrics: Mapping[str, float | str], step: int) -> None:
        """Append one row."""
        if self._file is None:
            raise ConfigError(f"{self.path} was closed: make a new JsonLinesSink to write more.")
        row = {"step": step, "time": round(time.time(), 3)} | {name: _plain(value) for name, value in metrics.items()}
        content = json.dumps(row, allow_nan=False).encode() + b"\n"
        start = os.fstat(self._file).st_size
        if os.write(self._file, content) != len(content):
            os.ftruncate(self._file, start)
            raise OSError(f"no room for {self.path}")

    def close(self) -> None:
        """Close the file; harmless when called twice."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class CsvSink:
    """One line per row, for spreadsheets; what is not finite is left empty.

    Columns are those of the first row. A metric that appears later rewrites the file once, with its column added. With
    `resume_step`, rows after that step are removed: the resumed run writes them anew.
    """

    immediate = True

    def __init__(self, path: str | os.PathLike[str], *, resume_step: int | None = None) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.columns: list[str] = []
        _remove_torn_row(self.path)
        if self.path.exists():
            self.columns, rows = self._read()
            if resume_step is not None and any(_after(row, resume_step) for row in rows):
                self._rewrite([row for row in rows if not _after(row, resume_step)])

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Append one row."""
        row: dict[str, Any] = {"step": step} | {name: finite(value) for name, value in metrics.items()}
        new = [name for name in row if name not in self.columns]
        if new:
            self._widen(new)
        with open(self.path, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns, restval="").writerow(row)

    def close(self) -> None:
        """Do nothing: the file is open only while a row is written."""

    def _widen(self, new: list[str]) -> None:
        rows = self._read()[1] if self.path.exists() else []
        self.columns += new
        self._rewrite(rows)

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        with open(self.path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            return list(reader.fieldnames or []), list(reader)

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        beside = self.path.with_name(f"{self.path.name}.partial")
        with open(beside, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, restval="")
            writer.writeheader()
            writer.writerows(rows)
        os.replace(beside, self.path)


class TensorBoardSink:
    """Scalars for TensorBoard, each under `prefix` if it names no group itself (`eval/win_rate`).

    The folder is opened by the first row, which raises where TensorBoard is missing. With `resume_step`, TensorBoard
    forgets what comes after that step.
    """

    def __init__(
        self, folder: str | os.PathLike[str], prefix: str = "train/", *, resume_step: int | None = None
    ) -> None:
        self.folder, self.prefix, self.resume_step = Path(folder), prefix, resume_step
        self._module = _tensorboard()
        self._writer: Any = None

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Write every finite metric."""
        if self._module is None:
            raise ConfigError("TensorBoard is not installed: pip install tensorboard, or logging.tensorboard=false.")
        if self._writer is None:
            purge = None if self.resume_step is None else self.resume_step + 1
            self._writer = self._module.SummaryWriter(str(self.folder), purge_step=purge)
        for name, value in metrics.items():
            if finite(value) is not None:
                self._writer.add_scalar(_grouped(name, self.prefix), value, step)

    def close(self) -> None:
        """Write what is left; harmless when called twice."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WandbSink:
    """Metrics for Weights & Biases, each under `prefix` if it names no group itself.

    Offline they stay in `folder` for a later `wandb sync`; online a run of the same `name` goes on. The run begins with
    the first row, which raises where wandb is missing or cannot begin; its id is written to `wandb_run_id.txt`.
    `more` is what else `wandb.init` takes: `entity`, `group`, `tags`, and an `id` and `resume` of one's own.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        project: str = "twostep",
        name: str | None = None,
        mode: str = "offline",
        config: dict[str, Any] | None = None,
        prefix: str = "train/",
        **more: Any,
    ) -> None:
        self.folder, self.prefix = Path(folder), prefix
        self._begin: dict[str, Any] = {"project": project, "name": name, "mode": mode, "config": config or {}}
        if mode == "online" and name is not None:
            self._begin |= {"id": name, "resume": "allow"}
        self._begin |= more
        self._run: Any = None

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Send every finite metric."""
        if self._run is None:
            self._run = _wandb().init(dir=str(self.folder), **self._begin)
            replace_text(self.folder / "wandb_run_id.txt", f"{self._run.id}\n")
        named = {_grouped(name, self.prefix): value for name, value in metrics.items() if finite(value) is not None}
        self._run.log(named, step=step)

    def close(self) -> None:
        """Send what is left; harmless when called twice."""
        if self._run is not None:
            self._run.finish()
            self._run = None


def _grouped(name: str, prefix: str) -> str:
    return name if "/" in name else f"{prefix}{name}"


def _wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise ConfigError("Weights & Biases needs the package wandb: pip install wandb, or go without.") from error


def _plain(value: Any) -> float | int | str | None:
    return value if isinstance(value, str) else finite(value)


def finite(value: Any) -> float | int | None:
    """Return a plain number, or None for what JSON cannot say."""
    number = value if isinstance(value, int) else float(value)
    return number if math.isfinite(number) else None


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read JSON lines, leaving out a last row that is torn."""
    lines = Path(path).read_bytes().split(b"\n")[:-1]
    return [cast("dict[str, Any]", json.loads(line)) for line in lines]


def _forget_later_rows(path: Path, step: int) -> None:
    rows = read_rows(path) if path.exists() else []
    kept = [row for row in rows if row["step"] <= step]
    if len(kept) < len(rows):
        replace_text(path, "".join(json.dumps(row) + "\n" for row in kept))


def _after(row: dict[str, str], step: int) -> bool:
    return int(row["step"]) > step


def _remove_torn_row(path: Path) -> None:
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def _tensorboard() -> Any:
    """Return TensorBoard's module, None where it is missing. Not for threads: filters of warnings are the process's."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TensorBoard's own dependencies warn about each other on import
            return importlib.import_module("torch.utils.tensorboard")
    except ImportError:
        return None
