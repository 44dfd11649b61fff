"""What torchrun tells each of the processes that it starts."""

from __future__ import annotations

import os
from typing import NamedTuple

_TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class Launch(NamedTuple):
    """Which of several processes this is; the first of one where nobody says."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Its number on its machine."""
    restarts: int = 0
    """How often all of them were started again because one had failed."""
    local_size: int = 1
    """How many of them are on its machine."""

    def share(self, total: int) -> int:
        """Return how many of so many things are this process's; shares differ by one at most."""
        return total * (self.rank + 1) // self.size - total * self.rank // self.size


def launch() -> Launch:
    """Read it from the environment."""
    if not all(name in os.environ for name in _TOLD):
        return Launch()
    told = {"TORCHELASTIC_RESTART_COUNT": "0", "LOCAL_WORLD_SIZE": os.environ["WORLD_SIZE"], **os.environ}
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT", "LOCAL_WORLD_SIZE")
    return Launch(*(int(told[name]) for name in names))
