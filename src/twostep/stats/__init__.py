"""What a run tells: rows of metrics to files and services, a live display, a picture of the learning curve."""

from twostep.stats.background import BackgroundSink
from twostep.stats.console import Progress
from twostep.stats.logger import StatsLogger
from twostep.stats.plots import plot_learning_curve
from twostep.stats.sinks import CsvSink, JsonLinesSink, TensorBoardSink, WandbSink

__all__ = [
    "BackgroundSink",
    "CsvSink",
    "JsonLinesSink",
    "Progress",
    "StatsLogger",
    "TensorBoardSink",
    "WandbSink",
    "plot_learning_curve",
]
