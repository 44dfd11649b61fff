"""What is in saved experience: numbers, remarks in words, a picture."""

from twostep.inspection.drawing import plot_rollout
from twostep.inspection.remarks import Remark, remarks
from twostep.inspection.summary import RolloutSummary, summarize

__all__ = ["Remark", "RolloutSummary", "plot_rollout", "remarks", "summarize"]
