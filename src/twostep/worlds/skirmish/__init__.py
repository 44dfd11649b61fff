"""Skirmish: two teams of mechs fight for a zone, in an arena with walls, by what each team sees."""

from twostep.worlds.skirmish.config import CLASSES, EnvConfig, HeuristicConfig, RewardWeights
from twostep.worlds.skirmish.env import SkirmishEnv
from twostep.worlds.skirmish.heuristic import HeuristicPolicy
from twostep.worlds.skirmish.replay import load_replay, save_replay
from twostep.worlds.skirmish.rows import SkirmishRows

__all__ = [
    "CLASSES",
    "EnvConfig",
    "HeuristicConfig",
    "HeuristicPolicy",
    "RewardWeights",
    "SkirmishEnv",
    "SkirmishRows",
    "load_replay",
    "save_replay",
]
