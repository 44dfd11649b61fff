"""The best expression that was written for each law."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

Rank = tuple[bool, float, float]


def rank_of(found: bool, complexity: int, error: float) -> Rank:
    """Sort what is found before what is not, then the simple, and what is not found by what it leaves."""
    return not found, float(complexity) if found else 0.0, error


@dataclass(frozen=True)
class Discovery:
    """An expression and how well it describes a law's data."""

    law: str
    expression: str
    """As people write it, with its factor."""
    words: tuple[str, ...]
    """In prefix order, as `Grammar.parse` takes them."""
    scale: float
    error: float
    """Root of the mean square of what is left, in deviations of the target."""
    complexity: int
    found: bool
    """Whether no more error is left than the data themselves have."""
    expressions: int = 0
    """How many expressions were written for this law until then."""

    @property
    def rank(self) -> Rank:
        """What sorts discoveries of one law, the best first."""
        return rank_of(self.found, self.complexity, self.error)

    def to_dict(self) -> dict[str, Any]:
        """Return plain containers that JSON can hold."""
        return asdict(self) | {"words": list(self.words)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Discovery:
        """Read what `to_dict` wrote."""
        words: dict[str, Any] = {"words": tuple(values["words"])}
        return cls(**(values | words))


def best_of(discoveries: Iterable[Discovery]) -> dict[str, Discovery]:
    """Return the best of all for each law."""
    best: dict[str, Discovery] = {}
    for one in discoveries:
        if one.law not in best or one.rank < best[one.law].rank:
            best[one.law] = one
    return best
