"""How good a policy is: over whole episodes, and in matches against somebody."""

from twostep.evaluation.episodes import EpisodeStats, evaluate

__all__ = ["EpisodeStats", "evaluate"]
