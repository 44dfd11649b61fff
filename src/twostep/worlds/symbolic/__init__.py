"""Symbolic: the laws behind data are found again, written token by token."""

from twostep.worlds.symbolic.config import SymbolicConfig
from twostep.worlds.symbolic.discoveries import Discovery, best_of
from twostep.worlds.symbolic.env import SymbolicEnv
from twostep.worlds.symbolic.grammar import OPERATORS, Grammar, Limits
from twostep.worlds.symbolic.laws import LAWS, Dataset, Law
from twostep.worlds.symbolic.rows import SymbolicRows

__all__ = [
    "LAWS",
    "OPERATORS",
    "Dataset",
    "Discovery",
    "Grammar",
    "Law",
    "Limits",
    "SymbolicConfig",
    "SymbolicEnv",
    "SymbolicRows",
    "best_of",
]
