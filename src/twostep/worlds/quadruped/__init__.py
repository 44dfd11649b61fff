"""Quadruped: robots of twelve joints walk as they are commanded, over ground of growing difficulty (needs MuJoCo)."""

from twostep.worlds.quadruped.config import Chance, QuadrupedConfig, RewardWeights
from twostep.worlds.quadruped.env import QuadrupedEnv
from twostep.worlds.quadruped.filming import Film
from twostep.worlds.quadruped.rows import QuadrupedRows
from twostep.worlds.quadruped.terrain import TYPES, Terrain

__all__ = ["TYPES", "Chance", "Film", "QuadrupedConfig", "QuadrupedEnv", "QuadrupedRows", "RewardWeights", "Terrain"]
