"""Environments, stepped as one: in this process, or inside another library's vector."""

from twostep.vector.checker import check_env
from twostep.vector.gym_vector import GymVectorAdapter
from twostep.vector.make import as_env, make_env
from twostep.vector.serial import SerialVectorEnv
from twostep.vector.spaces import row_seeds

__all__ = ["GymVectorAdapter", "SerialVectorEnv", "as_env", "check_env", "make_env", "row_seeds"]
