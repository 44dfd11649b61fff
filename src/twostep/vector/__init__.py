"""Environments, stepped as one: in this process, in others, or inside another library's vector."""

from twostep.seeds import row_seeds
from twostep.vector.checker import check_env
from twostep.vector.groups import make_group
from twostep.vector.gym_vector import GymVectorAdapter
from twostep.vector.make import as_env, make_env
from twostep.vector.parallel import AgentsVectorEnv
from twostep.vector.processes import VectorEnv
from twostep.vector.serial import SerialVectorEnv

__all__ = [
    "AgentsVectorEnv",
    "GymVectorAdapter",
    "SerialVectorEnv",
    "VectorEnv",
    "as_env",
    "check_env",
    "make_env",
    "make_group",
    "row_seeds",
]
