"""Which episodes ended inside a rollout, with their returns: worked out once per rollout, not once per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from twostep.rollout import Episode

Columns = Mapping[str, np.ndarray]


class EpisodeTracker:
    """Carries the return and length of running episodes from one rollout to the next."""

    def __init__(self, num_rows: int) -> None:
        self.returns = np.zeros(num_rows)
        self.lengths = np.zeros(num_rows, dtype=np.int64)
        self.incomplete = np.zeros(num_rows, dtype=np.bool_)
        """Whose running episode has lost steps, so that its return will not be known."""

    def reset(self) -> None:
        """Forget running episodes."""
        self.returns[:] = 0.0
        self.lengths[:] = 0
        self.incomplete[:] = False

    def lose(self, rows: Any, begun: Any) -> None:
        """Note that what happened in some rows is lost; of those in `begun` a new episode has begun since."""
        self.returns[rows], self.lengths[rows] = 0.0, 0
        self.incomplete[rows] = ~begun

    def state_dict(self) -> dict[str, Any]:
        """Return what running episodes have brought so far."""
        return {name: getattr(self, name).copy() for name in ("returns", "lengths", "incomplete")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        for name, column in state.items():
            getattr(self, name)[:] = column

    def episodes(self, columns: Columns, infos: Mapping[tuple[int, int], dict[str, Any]]) -> list[Episode]:
        """Return the episodes that ended in these `[T, B]` columns, in the order in which they ended.

        An episode that was broken off by a failure (`truncated` in a step that is not `valid`) is none of them: nobody
        knows what it would have been worth. Other steps that are not valid change nothing.
        """
        valid = columns["valid"]
        returns = np.cumsum(np.where(valid, columns["rewards"], 0.0), axis=0, dtype=np.float64) + self.returns
        lengths = np.cumsum(valid, axis=0, dtype=np.int64) + self.lengths
        broken_off = columns["truncated"] & ~valid
        ended = (columns["terminated"] | columns["truncated"]) & valid
        found: list[Episode] = []
        past_returns, past_lengths = np.zeros_like(self.returns), np.zeros_like(self.lengths)
        for t, row in np.argwhere(ended | broken_off).tolist():
            if self.incomplete[row]:
                self.incomplete[row] = False
            elif ended[t, row]:
                episode_return = float(returns[t, row] - past_returns[row])
                length = int(lengths[t, row] - past_lengths[row])
                found.append(Episode(episode_return, length, row, t, _plain(infos.get((t, row), {}))))
            past_returns[row], past_lengths[row] = returns[t, row], lengths[t, row]
        self.returns, self.lengths = returns[-1] - past_returns, lengths[-1] - past_lengths
        return found


def _plain(info: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what JSON can hold: numbers, texts and truth values."""
    plain: dict[str, Any] = {}
    for name, value in info.items():
        scalar = value.item() if isinstance(value, (np.generic, np.ndarray)) and np.size(value) == 1 else value
        if isinstance(scalar, (bool, int, float, str)):
            plain[name] = scalar
    return plain
