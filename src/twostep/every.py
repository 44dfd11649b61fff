"""Work that is due whenever so many steps have passed."""

from __future__ import annotations


class Every:
    """Tells when a threshold was crossed: once per crossing, however many steps lie between two questions.

    Args:
        interval: Steps between thresholds; 0 is never.
        step: Where counting begins; thresholds up to there lie behind.
    """

    def __init__(self, interval: int, step: int = 0) -> None:
        self.interval = interval
        self._passed = step // interval if interval else 0

    def due(self, step: int) -> bool:
        """Say whether a threshold was crossed since the last time this was asked."""
        passed = step // self.interval if self.interval else 0
        crossed, self._passed = passed > self._passed, passed
        return crossed
