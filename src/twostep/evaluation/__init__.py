"""How good a policy is: over whole episodes, and in matches against somebody; and which of several ways is better."""

from twostep.evaluation.comparison import Comparison, at_the_end, compare, over_training
from twostep.evaluation.comparison_picture import plot_comparison
from twostep.evaluation.episodes import EpisodeStats, evaluate
from twostep.evaluation.matches import EvalStats, evaluate_vs_heuristic

__all__ = [
    "Comparison",
    "EpisodeStats",
    "EvalStats",
    "at_the_end",
    "compare",
    "evaluate",
    "evaluate_vs_heuristic",
    "over_training",
    "plot_comparison",
]
