"""What actions are, and the orders they stand for.

Discrete: `MultiDiscrete([5, 5, 3])`, a choice each of
    move: stand, forwards, backwards, left, right;
    turn: hard left, left, none, right, hard right;
    fire: hold, at the nearest, at the weakest (fewest hit points).
Continuous: `Box(-1, 1, (5,))`: forwards, left, turn (left is positive), fire (above 0), at the weakest (above 0).
The weapon picks its target by itself, among the enemies that can be hit at that moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from gymnasium import spaces

from twostep.worlds.skirmish.geometry import Array

FORWARD = np.array([0, 1, -1, 0, 0], dtype=np.float32)
LEFT = np.array([0, 0, 0, 1, -1], dtype=np.float32)
TURN = np.array([1, 0.3, 0, -0.3, -1], dtype=np.float32)

Control = Literal["discrete", "continuous"]


@dataclass(slots=True)
class Orders:
    """What mechs are told to do in one step; all arrays have one shape."""

    forward: Array
    """-1 to 1, in parts of the full speed; so is `left`."""
    left: Array
    turn: Array
    """-1 to 1, to the left, in parts of the full turn rate."""
    fire: Array
    """bool."""
    weakest: Array
    """bool: at the weakest of the targets instead of the nearest."""


def action_space(control: Control) -> spaces.Space[Array]:
    """Return the space of one agent's actions."""
    if control == "discrete":
        return spaces.MultiDiscrete([len(FORWARD), len(TURN), 3])
    return spaces.Box(-1.0, 1.0, (5,), np.float32)


def decode(actions: Array, control: Control) -> Orders:
    """Turn actions `[..., n]` into orders `[...]`."""
    if control == "discrete":
        move, turn, fire = actions[..., 0], actions[..., 1], actions[..., 2]
        return Orders(FORWARD[move], LEFT[move], TURN[turn], fire > 0, fire > 1)
    bounded = np.minimum(np.maximum(actions, np.float32(-1)), np.float32(1))
    forward, left, turn, fire, weakest = (bounded[..., part] for part in range(5))
    return Orders(forward, left, turn, fire > 0, weakest > 0)


def encode(orders: Orders, control: Control) -> Array:
    """Turn orders `[...]` into the actions `[..., n]` that come closest."""
    if control == "discrete":
        ahead, aside = np.abs(orders.forward), np.abs(orders.left)
        along = np.where(orders.forward > 0, 1, 2)
        across = np.where(orders.left > 0, 3, 4)
        move = np.where(ahead >= aside, along, across)
        move = np.where(np.maximum(ahead, aside) < 0.3, 0, move)
        steep = np.abs(orders.turn)
        size = (steep > 0.15).astype(np.int64) + (steep > 0.65)
        turn = 2 - np.where(orders.turn > 0, size, -size)
        return np.stack([move, turn, orders.fire * (1 + orders.weakest)], axis=-1)
    fire, weakest = (np.where(flag, np.float32(1), np.float32(-1)) for flag in (orders.fire, orders.weakest))
    parts = [part.astype(np.float32, copy=False) for part in (orders.forward, orders.left, orders.turn)]
    return np.stack([*parts, fire, weakest], axis=-1)
