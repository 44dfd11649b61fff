"""Sinks that are slow, stuck, broken or killed: RELIABILITY 23; W&B online, offline and absent: L19."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import threading
import time
import types

import pytest
import torch

from twostep.errors import ConfigError
from twostep.stats import BackgroundSink, JsonLinesSink, StatsLogger, WandbSink
from twostep.stats.sinks import read_rows


class Patient:
    """Waits at every row until it may go on."""

    def __init__(self):
        self.may_go_on, self.rows, self.closed = threading.Event(), [], False

    def log(self, metrics, step):
        self.may_go_on.wait(20)
        self.rows.append((step, metrics, threading.current_thread()))

    def close(self):
        self.closed = True


def test_a_slow_sink_is_not_waited_for_and_gets_every_row():
    """RELIABILITY 23: in order, from a thread of its own, and closed after the last row."""
    sink = Patient()
    with StatsLogger([sink]) as logger:
        started = time.perf_counter()
        for step in range(100):
            logger.log({"loss": float(step)}, step)
        assert time.perf_counter() - started < 5
        assert sink.rows == []
        sink.may_go_on.set()
    assert [(step, metrics) for step, metrics, _ in sink.rows] == [(step, {"loss": float(step)}) for step in range(100)]
    assert {thread is threading.current_thread() for _, _, thread in sink.rows} == {False}
    assert sink.closed


def test_a_stuck_sink_is_left_behind(caplog):
    """RELIABILITY 23: closing has a limit, and says what is lost; the queue has one too."""
    sink = Patient()
    background = BackgroundSink(sink, capacity=3, seconds_to_finish=0.2)
    logger = StatsLogger([background])
    with caplog.at_level(logging.WARNING):
        for step in range(10):
            logger.log({}, step)
            while step == 0 and background._rows.qsize():  # until the thread has taken the first
                time.sleep(0.001)
        logger.close()
    behind, lost = (record.getMessage() for record in caplog.records)
    assert behind == "Patient is 3 rows behind: rows are left out until it is done"
    assert lost.endswith("TimeoutError: 3 rows were waiting, and 0.2 seconds were not enough")
    assert background.left_out == 6
    sink.may_go_on.set()
    background._thread.join(5)
    assert not background._thread.is_alive()
    assert [step for step, _, _ in sink.rows] == [0]


def test_a_broken_sink_is_told_of_once(caplog):
    """RELIABILITY 23: like a network that is down."""

    class Down:
        def log(self, metrics, step):
            raise ConnectionError("403 Forbidden")

        def close(self):
            pytest.fail("what is broken is not used again")

    with caplog.at_level(logging.WARNING), StatsLogger([Down()]) as logger:
        for step in range(50):
            logger.log({}, step)
            time.sleep(0.001)
    assert [record.getMessage() for record in caplog.records] == [
        "Down writes no more, training goes on: ConnectionError: 403 Forbidden"
    ]


def test_an_immediate_sink_has_the_row_when_log_returns(tmp_path):
    """RELIABILITY 23: the truth about a run is not in a queue."""
    logger = StatsLogger([JsonLinesSink(tmp_path / "metrics.jsonl")])
    logger.log({"loss": 1.0}, 7)
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [7]
    logger.close()


def test_what_happens_more_often_than_rows_is_averaged(tmp_path):
    """M1: add_stats takes numbers and lists of them; every row begins anew."""
    logger = StatsLogger([JsonLinesSink(tmp_path / "metrics.jsonl")])
    logger.add_stats({"coins": [1, 2], "depth": 4.0, "never": []})
    logger.add_stats({"coins": [6]})
    logger.log({"loss": 1.0}, 1)
    logger.log({"loss": 1.0}, 2)
    logger.close()
    first, second = read_rows(tmp_path / "metrics.jsonl")
    assert (first["coins"], first["depth"]) == (3.0, 4.0)
    assert "never" not in first
    assert second.keys() == {"step", "time", "loss"}


WRITER = """
import sys
from twostep.stats.sinks import JsonLinesSink
sink, step = JsonLinesSink(sys.argv[1]), 0
while True:
    sink.log({f"metric_{n}": step + n / 7 for n in range(30)}, step)
    print(step, flush=True)
    step += 1
"""


def test_killing_loses_no_row_and_spoils_none(tmp_path):
    """RELIABILITY 23: after kill -9 every row that was logged is there and whole."""
    rng = random.Random(0)
    for number in range(3):
        path = tmp_path / f"{number}.jsonl"
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.1))
            writer.kill()
            said = [int(line) for line in writer.stdout.read().split("\n")[:-1]]
        JsonLinesSink(path).close()
        rows = read_rows(path)
        assert [row["step"] for row in rows] == list(range(len(rows)))
        assert all(row["metric_29"] == row["step"] + 29 / 7 for row in rows)
        assert len(rows) >= (said[-1] if said else 0) + 1


class Wandb(types.SimpleNamespace):
    """Weights & Biases as far as it is used."""

    def __init__(self):
        super().__init__(begun=[], rows=[], finished=0)

    def init(self, **how):
        self.begun.append(how)
        logged = {"log": lambda row, step: self.rows.append((step, row)), "finish": self._finish}
        return types.SimpleNamespace(id="walk", **logged)

    def _finish(self):
        self.finished += 1


@pytest.mark.parametrize(("mode", "more"), [("online", {"id": "walk", "resume": "allow"}), ("offline", {})])
def test_weights_and_biases(monkeypatch, tmp_path, mode, more):
    """L19, M1, LB16: rows reach a dashboard, numbers by their names; online a run of the same name goes on."""
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    with StatsLogger([WandbSink(tmp_path, name="walk", mode=mode, config={"seed": 1})]) as logger:
        logger.log({"loss": 0.5, "eval/score": 2.0, "mean_reward": float("nan")}, 64)
    about = {"project": "twostep", "name": "walk", "mode": mode, "config": {"seed": 1}, "dir": str(tmp_path)}
    assert wandb.begun == [about | more]
    assert wandb.rows == [(64, {"train/loss": 0.5, "eval/score": 2.0})]
    assert wandb.finished == 1


def test_without_weights_and_biases(monkeypatch, tmp_path, caplog):
    """RELIABILITY 23, L19: its absence is said once, with the way out."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="pip install wandb"):
        WandbSink(tmp_path).log({}, 0)
    with StatsLogger([WandbSink(tmp_path)]) as logger:
        logger.log({}, 0)
        logger.log({}, 1)
    assert len(caplog.records) == 1


def test_a_sink_that_sleeps_does_not_slow_training(small_trainer):
    """RELIABILITY 23: ten seconds for every row, and the same weights."""

    class Sleeper:
        def log(self, metrics, step):
            time.sleep(10)

        def close(self):
            """Has nothing to write."""

    plain, slowed = small_trainer(), small_trainer()
    plain.train(256)
    started = time.perf_counter()
    slowed.train(256, sinks=[BackgroundSink(Sleeper(), seconds_to_finish=0.1)])
    assert time.perf_counter() - started < 35, "four rows of ten seconds each were not waited for"
    assert all(map(torch.equal, plain.policy.parameters(), slowed.policy.parameters()))
