"""The one number, besides the data, that collecting and learning share: which policy acted."""

from __future__ import annotations

import secrets

_BITS_OF_UPDATES = 22


def first_version() -> int:
    """Return a number of which no other policy's versions come near; every update adds 1 to it."""
    return secrets.randbits(40) << _BITS_OF_UPDATES


def updates_of(version: int) -> int:
    """Return how many updates, and states loaded, lie between the policy's first version and this one."""
    return version & ((1 << _BITS_OF_UPDATES) - 1)
