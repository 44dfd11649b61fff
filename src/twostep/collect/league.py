"""Past selves to play against: frozen copies of a policy, how matches against each went, and whom to play next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from twostep.errors import ConfigError, PolicyError
from twostep.policies.adapters import as_policy
from twostep.policies.copies import frozen_copy

HEURISTIC = "heuristic"
"""The name of the environment's own scripted player, who is in every league."""
MEMORY = 0.98
"""What an earlier match counts at the next one: win rates are those of about the last 50."""

Numbers = npt.NDArray[np.float64]
Weighting = Callable[[Numbers], Numbers]
"""From the win rates against all copies to how often each is to be met; only proportions matter."""


def prefer_hard(win_rates: Numbers) -> Numbers:
    """Meet those most whom the policy beats least; who is always beaten is met no more."""
    return (1.0 - win_rates) ** 2


def prefer_even(win_rates: Numbers) -> Numbers:
    """Meet those most against whom it could go either way."""
    return win_rates * (1.0 - win_rates)


def all_alike(win_rates: Numbers) -> Numbers:
    """Meet all copies equally often."""
    return np.ones_like(win_rates)


@dataclass
class Results:
    """How matches against one opponent went."""

    matches: int = 0
    wins: float = 0.0
    """Won matches and half of the drawn ones; older ones count less."""
    recent: float = 0.0
    """Matches, counted like `wins`."""

    @property
    def win_rate(self) -> float:
        """Part of recent matches won, drawn ones as half; begins at a half, and a single match moves it only a bit."""
        return (self.wins + 1.0) / (self.recent + 2.0)

    def add(self, score: float) -> None:
        """Take in a match: 1 for won, 0.5 for drawn, 0 for lost."""
        self.matches += 1
        self.wins = MEMORY * self.wins + score
        self.recent = MEMORY * self.recent + 1.0


@dataclass(eq=False)
class Member:
    """Somebody to play against."""

    name: str
    policy: Any = None
    """A copy that never changes; None for the heuristic."""
    results: Results = field(default_factory=Results)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of somebody's weights, with a name and results."""
        return {
            "name": self.name,
            "version": self.policy.version,
            "tensors": dict(self.policy.state_dict()),
            "results": asdict(self.results),
        }


class League:
    """Frozen copies of a policy and the environment's heuristic, as opponents.

    Args:
        policy: The policy that learns. Copies of it, and of others built alike, can join.
        size: How many copies are kept. A newcomer takes the place of the one that is beaten most, of two alike the
            older one.
        heuristic_share: Part of the matches that are played against the heuristic, so that it is not forgotten. Until
            the first copy joins, all are.
        weighting: Which copies are met how often.

    A league draws nothing by itself and knows no environment: `SelfPlay` is where it plays.
    """

    def __init__(
        self, policy: Any, size: int = 8, *, heuristic_share: float = 0.25, weighting: Weighting = prefer_hard
    ) -> None:
        if size < 1:
            raise ConfigError(f"size={size} must be 1 or more: a league without copies is only the heuristic.")
        if not 0 <= heuristic_share <= 1:
            raise ConfigError(
                f"heuristic_share={heuristic_share} must be between 0 and 1: 0.25 plays every fourth match against it."
            )
        self.policy, self.size, self.heuristic_share = as_policy(policy), size, heuristic_share
        self.weighting = weighting
        self.heuristic = Member(HEURISTIC)
        self.members: list[Member] = []
        """The copies, oldest first."""
        self._num_joined = 0

    def add(self, policy: Any = None, name: str | None = None) -> str:
        """Let a copy of `policy`, or of the one that learns, join as it is now; return its name."""
        policy = self.policy if policy is None else as_policy(policy)
        self._require_alike(policy)
        name = f"past_{self._num_joined}" if name is None else name
        if name in self.results:
            raise ConfigError(f"name={name!r} is taken: there are {', '.join(self.results)}. Choose another, or none.")
        self._num_joined += 1
        if len(self.members) == self.size:
            self.members.remove(max(self.members, key=lambda member: member.results.win_rate))
        self.members.append(Member(name, frozen_copy(policy)))
        return name

    def _require_alike(self, policy: Any) -> None:
        own, other = (
            {name: tuple(tensor.shape) for name, tensor in one.state_dict().items()} for one in (self.policy, policy)
        )
        if own != other:
            different = sorted(name for name in {*own, *other} if own.get(name) != other.get(name))
            raise PolicyError(
                f"This policy is built differently from the league's: {different[0]} is {other.get(different[0])} "
                f"instead of {own.get(different[0])}. Members must be alike; make another league for it."
            )

    @property
    def results(self) -> dict[str, Results]:
        """How the policy did against each opponent, the heuristic first."""
        return {member.name: member.results for member in (self.heuristic, *self.members)}

    def chances(self) -> Numbers:
        """Return how likely the heuristic, then each copy, is met next."""
        if not self.members:
            return np.ones(1)
        rates = np.array([member.results.win_rate for member in self.members])
        weights = np.asarray(self.weighting(rates), dtype=np.float64)
        if weights.shape != rates.shape or not np.isfinite(weights).all() or (weights < 0).any():
            raise ConfigError(
                f"weighting returned {weights.tolist()} for the win rates {rates.round(3).tolist()}, but must return a "
                f"finite number, 0 or more, for each: {prefer_hard.__name__} is the default."
            )
        weights = weights / weights.sum() if weights.sum() > 0 else np.full(len(rates), 1 / len(rates))
        return np.concatenate([[self.heuristic_share], (1 - self.heuristic_share) * weights])

    def draw(self, count: int, random: np.random.Generator) -> list[Member]:
        """Draw so many opponents, independently of one another."""
        everybody = [self.heuristic, *self.members]
        return [everybody[at] for at in random.choice(len(everybody), size=count, p=self.chances()).tolist()]

    def metrics(self) -> dict[str, float]:
        """Return what there is to log: the win rates against the heuristic and against the copies."""
        metrics = {"league_size": float(len(self.members))}
        if self.heuristic.results.matches:
            metrics["win_rate_heuristic"] = self.heuristic.results.win_rate
        met = [member.results.win_rate for member in self.members if member.results.matches]
        return metrics | ({"win_rate_past": float(np.mean(met)), "win_rate_hardest": min(met)} if met else {})

    def state_dict(self) -> dict[str, Any]:
        """Return everything about the league but the policy that learns."""
        return {
            "joined": self._num_joined,
            "heuristic": asdict(self.heuristic.results),
            "members": [member.state_dict() for member in self.members],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the members and results that `state_dict` told of."""
        self._num_joined = state["joined"]
        self.heuristic = Member(HEURISTIC, results=Results(**state["heuristic"]))
        self.members = [self.restored(kept) for kept in state["members"][-self.size :]]

    def restored(self, kept: dict[str, Any]) -> Member:
        """Return the copy that a member's `state_dict` told of."""
        policy = frozen_copy(self.policy)
        try:
            policy.load_state_dict(kept["tensors"])
        except RuntimeError as error:
            raise PolicyError(
                f"{kept['name']} does not fit into the league's policy, which must be built as it was: {error}"
            ) from error
        policy.version = kept["version"]
        return Member(kept["name"], policy, Results(**kept["results"]))
