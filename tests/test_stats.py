"""Rows of metrics: R12, L16 to L18 on file, RELIABILITY 23 and 24."""

import csv
import importlib
import json
import logging
import math
import os

import pytest

from twostep.errors import ConfigError
from twostep.protocols import Sink
from twostep.stats import CsvSink, JsonLinesSink, StatsLogger, TensorBoardSink, plot_learning_curve
from twostep.stats.sinks import read_rows


class Recorder:
    def __init__(self, fails_at=None):
        self.rows, self.closed, self.fails_at = [], 0, fails_at

    def log(self, metrics, step):
        if step == self.fails_at:
            raise OSError("no space\nleft")
        self.rows.append((step, metrics))

    def close(self):
        self.closed += 1


def test_a_failing_sink_is_dropped_with_one_warning_and_the_others_go_on(caplog):
    """R12."""
    good, bad = Recorder(), Recorder(fails_at=2)
    with caplog.at_level(logging.WARNING), StatsLogger([bad, good]) as logger:
        for step in range(5):
            logger.log({"loss": step}, step)
    assert [step for step, _ in good.rows] == [0, 1, 2, 3, 4]
    assert [step for step, _ in bad.rows] == [0, 1]
    assert [record.getMessage() for record in caplog.records] == [
        "Recorder writes no more, training goes on: OSError: no space left"
    ]
    assert good.closed == 1


def test_a_sink_that_cannot_close_stops_nothing(caplog):
    class Stuck(Recorder):
        def close(self):
            raise TimeoutError

    last = Recorder()
    logger = StatsLogger([Stuck(), last])
    logger.close()
    logger.close()
    assert last.closed == 1
    assert "Stuck" in caplog.text


def test_a_logger_is_a_sink(tmp_path):
    for sink in (StatsLogger(), JsonLinesSink(tmp_path / "a"), CsvSink(tmp_path / "b"), TensorBoardSink(tmp_path)):
        typed: Sink = sink
        typed.close()
        typed.close()


def test_a_sink_that_changes_its_row_changes_no_other(tmp_path):
    class Greedy(Recorder):
        def log(self, metrics, step):
            metrics.clear()

    after, metrics = Recorder(), {"loss": 1.0}
    with StatsLogger([Greedy(), after]) as logger:
        logger.log(metrics, 0)
    assert after.rows == [(0, {"loss": 1.0})]
    assert metrics == {"loss": 1.0}


def test_json_lines_hold_what_json_can_say(tmp_path):
    sink = JsonLinesSink(tmp_path / "deep" / "metrics.jsonl")
    sink.log({"loss": 0.5, "mean_reward": math.nan, "kl": math.inf, "updates": 3}, 128)
    row = json.loads((tmp_path / "deep" / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert row.pop("time") > 1.6e9
    assert row == {"step": 128, "loss": 0.5, "mean_reward": None, "kl": None, "updates": 3}
    sink.close()
    with pytest.raises(ConfigError, match="was closed"):
        sink.log({}, 1)


def test_every_row_is_in_the_file_when_log_returns(tmp_path):
    """RELIABILITY 23: a killed run loses no finished row."""
    sink = JsonLinesSink(tmp_path / "metrics.jsonl")
    for step in range(3):
        sink.log({"loss": 1.0}, step)
        assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == list(range(step + 1))
    sink.close()


@pytest.mark.parametrize("torn", [b"", b"{", b'{"step": 3, "loss"'])
def test_a_torn_row_is_removed_and_earlier_ones_stay(tmp_path, torn):
    """RELIABILITY 23, 24."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n' + torn)
    sink = JsonLinesSink(path)
    sink.log({}, 3)
    sink.close()
    assert [row["step"] for row in read_rows(path)] == [1, 2, 3]


def test_resuming_writes_no_step_twice(tmp_path):
    """RELIABILITY 24: rows after the checkpoint are written anew."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 10}\n{"step": 20}\n{"step": 30}\n')
    sink = JsonLinesSink(path, resume_step=20)
    sink.log({}, 30)
    sink.close()
    assert [row["step"] for row in read_rows(path)] == [10, 20, 30]
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_a_full_disk_leaves_whole_rows_and_a_warning(tmp_path, monkeypatch, caplog):
    """R12: the truth about a run may end, but neither lies nor stops the run."""
    path = tmp_path / "metrics.jsonl"
    sink = JsonLinesSink(path)
    logger = StatsLogger([sink])
    logger.log({"loss": 1.0}, 1)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:5]))
    logger.log({"loss": 1.0}, 2)
    monkeypatch.undo()
    logger.log({"loss": 1.0}, 3)
    sink.close()
    assert [row["step"] for row in read_rows(path)] == [1]
    assert "no room for" in caplog.text


def test_csv_grows_a_column_and_survives_a_restart(tmp_path):
    path = tmp_path / "metrics.csv"
    sink = CsvSink(path)
    sink.log({"loss": 1.5, "mean_reward": math.nan}, 1)
    sink.log({"loss": 2.5, "mean_reward": 7.0, "eval": 9}, 2)
    with open(path, "a") as file:
        file.write("3,0.")
    again = CsvSink(path)
    again.log({"loss": 3.5}, 3)
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"step": "1", "loss": "1.5", "mean_reward": "", "eval": ""},
        {"step": "2", "loss": "2.5", "mean_reward": "7.0", "eval": "9"},
        {"step": "3", "loss": "3.5", "mean_reward": "", "eval": ""},
    ]


def test_csv_resumes_without_a_step_twice(tmp_path):
    """RELIABILITY 24: what came after the checkpoint is written anew."""
    path = tmp_path / "metrics.csv"
    sink = CsvSink(path)
    for step in (10, 20, 30):
        sink.log({"loss": step / 10}, step)
    again = CsvSink(path, resume_step=20)
    again.log({"loss": 3.5}, 30)
    with open(path, newline="") as file:
        assert [(row["step"], row["loss"]) for row in csv.DictReader(file)] == [
            ("10", "1.0"),
            ("20", "2.0"),
            ("30", "3.5"),
        ]
    assert os.listdir(tmp_path) == ["metrics.csv"]


def test_tensorboard_forgets_what_is_written_anew(tmp_path):
    """RELIABILITY 24."""
    pytest.importorskip("tensorboard")
    for resume_step, steps in ((0, (10, 20, 30)), (20, (30, 40))):
        sink = TensorBoardSink(tmp_path, resume_step=resume_step)
        for step in steps:
            sink.log({"loss": float(step + resume_step)}, step)
        sink.close()
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(tmp_path)).Reload().Scalars("train/loss")
    assert [(event.step, event.value) for event in events] == [(10, 10.0), (20, 20.0), (30, 50.0), (40, 60.0)]


def test_tensorboard_gets_finite_numbers_under_train(tmp_path):
    pytest.importorskip("tensorboard")
    sink = TensorBoardSink(tmp_path)
    assert list(tmp_path.iterdir()) == [], "nothing is opened before the first row"
    sink.log({"loss": 0.5, "mean_reward": math.nan}, 64)
    sink.close()
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["train/loss"]
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(64, 0.5)]


def test_missing_tensorboard_is_said_once_and_stops_nothing(tmp_path, monkeypatch, caplog):
    """R12."""

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    good = Recorder()
    with StatsLogger([TensorBoardSink(tmp_path), good]) as logger:
        logger.log({"loss": 1.0}, 1)
        logger.log({"loss": 1.0}, 2)
    assert len(good.rows) == 2
    assert len(caplog.records) == 1
    assert "pip install tensorboard" in caplog.text


def rows_of_a_run(path, steps):
    sink = JsonLinesSink(path)
    for step in steps:
        values = {"approx_kl": 0.01, "explained_variance": 0.5, "entropy": 0.6}
        sink.log({"mean_reward": math.nan if step < 2 else float(step), **values}, step)
    sink.close()


@pytest.mark.parametrize("count", [1, 2, 60])
def test_the_curve_is_a_picture(tmp_path, count):
    matplotlib_image = pytest.importorskip("matplotlib.image")
    rows_of_a_run(tmp_path / "metrics.jsonl", range(count))
    path = plot_learning_curve(tmp_path / "metrics.jsonl", tmp_path / "curve.png", title="t", solved_at=10)
    pixels = matplotlib_image.imread(path)
    assert pixels.shape[0] > 600
    assert pixels.std() > 0.01, "not blank"


def test_no_rows_no_curve(tmp_path):
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match="no rows yet"):
        plot_learning_curve(tmp_path / "metrics.jsonl", tmp_path / "curve.png")


@pytest.mark.parametrize(
    "rows",
    [
        [{"score": 0.2, "win_rate": 0.2, "win_rate_low": 0.1, "win_rate_high": 0.4, "episodes": 20.0}] * 3,
        [{"score": 9.0, "mean_return": 9.0, "low": None, "high": None, "episodes": 1.0}],
    ],
)
def test_evaluations_get_a_panel_of_their_own(tmp_path, rows):
    matplotlib_image = pytest.importorskip("matplotlib.image")
    rows_of_a_run(tmp_path / "metrics.jsonl", range(20))
    evaluated = [json.dumps({"step": 5 * step, **row}) + "\n" for step, row in enumerate(rows)]
    (tmp_path / "evaluations.jsonl").write_text("".join(evaluated))
    plain = plot_learning_curve(tmp_path / "metrics.jsonl", tmp_path / "plain.png")
    path = plot_learning_curve(
        tmp_path / "metrics.jsonl", tmp_path / "curve.png", evaluations_jsonl=tmp_path / "evaluations.jsonl"
    )
    assert matplotlib_image.imread(path).shape[0] > matplotlib_image.imread(plain).shape[0]
