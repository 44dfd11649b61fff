"""How good a policy is: episodes, matches against somebody, suites of cases; and which of several ways is better."""

from twostep.evaluation.comparison import Comparison, at_the_end, compare, over_training
from twostep.evaluation.comparison_picture import plot_comparison
from twostep.evaluation.episodes import EpisodeStats, evaluate
from twostep.evaluation.evaluator import BackgroundEvaluator, Evaluated, PolicyEvaluator
from twostep.evaluation.matches import EvalStats, evaluate_vs_heuristic
from twostep.evaluation.scores import CaseScores, CategoryScores, SuiteScores

__all__ = [
    "BackgroundEvaluator",
    "CaseScores",
    "CategoryScores",
    "Comparison",
    "EpisodeStats",
    "EvalStats",
    "Evaluated",
    "PolicyEvaluator",
    "SuiteScores",
    "at_the_end",
    "compare",
    "evaluate",
    "evaluate_vs_heuristic",
    "over_training",
    "plot_comparison",
]
