"""How good a policy is: over whole episodes, and in matches against somebody."""

from twostep.evaluation.episodes import EpisodeStats, evaluate
from twostep.evaluation.matches import EvalStats, evaluate_vs_heuristic

__all__ = ["EpisodeStats", "EvalStats", "evaluate", "evaluate_vs_heuristic"]
