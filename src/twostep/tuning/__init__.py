"""The search for settings that learn best: trials drawn by Optuna, trained in processes, kept in a folder."""

from twostep.tuning.crew import Channel, Crew, Order
from twostep.tuning.report import write_report
from twostep.tuning.space import Dimension, parse_space
from twostep.tuning.study import Study, StudySettings

__all__ = ["Channel", "Crew", "Dimension", "Order", "Study", "StudySettings", "parse_space", "write_report"]
