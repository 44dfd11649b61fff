"""The one number, besides the data, that collecting and learning share: which policy acted."""

from __future__ import annotations

import secrets


def first_version() -> int:
    """Return a number of which no other policy's versions come near; every update adds 1 to it."""
    return secrets.randbits(40) << 22
