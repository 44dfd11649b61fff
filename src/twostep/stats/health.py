"""What the numbers of an update mean, in words that need no book."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

State = Literal["good", "fair", "poor"]

BRISK_KL = 0.02
FAST_KL = 0.05
FAIR_EXPLAINED_VARIANCE = 0.5
GOOD_EXPLAINED_VARIANCE = 0.7
HIGH_CLIPFRAC = 0.3
WIDE = 0.5
GONE = 0.05
RATIO_TOLERANCE = 0.2  # what bf16 may reach; learning itself stops at a fault, in fp32 at 1e-3
NATS_TO_A_TWENTIETH = math.log(20.0)


@dataclass(frozen=True)
class Advice:
    """One finding."""

    topic: str
    state: State
    words: str
    """The finding itself: `calm`, `good`."""
    measure: str
    """The number behind it, named."""
    hint: str = ""
    """What to do about it, where something should be done."""


def health(metrics: Mapping[str, float], entropy_range: tuple[float, float] | None = None) -> list[Advice]:
    """Judge one update by its metrics; what was not measured is not judged.

    `entropy_range` is the entropy of a policy that has decided and of one that has not, as the function of that name
    gives it; without it exploration is not judged.
    """
    found: list[Advice] = []
    if (kl := _measured(metrics, "approx_kl")) is not None:
        found.append(_pace(kl))
    if (variance := _measured(metrics, "explained_variance")) is not None:
        found.append(_value_estimate(variance))
    entropy = _measured(metrics, "entropy")
    if entropy is not None and entropy_range is not None:
        found.append(_exploration(entropy, entropy_range))
    if (clipped := _measured(metrics, "clipfrac")) is not None:
        found.append(_clipping(clipped))
    if (error := _measured(metrics, "ratio_error")) is not None:
        found.append(_ratio(error))
    return found


def entropy_range(action_space: Any, first_entropy: float) -> tuple[float, float] | None:
    """Return the entropies between which exploration is judged.

    Choices lie between 0 and the entropy of the first update. Continuous actions count as decided when each one's
    deviation has fallen to a twentieth of what it was.
    """
    kind = type(action_space).__name__
    if not math.isfinite(first_entropy):
        return None
    if kind == "Box":
        return first_entropy - NATS_TO_A_TWENTIETH * max(1, math.prod(action_space.shape)), first_entropy
    if kind in ("Discrete", "MultiDiscrete", "MultiBinary") and first_entropy > 0:
        return 0.0, first_entropy
    return None


def _measured(metrics: Mapping[str, float], name: str) -> float | None:
    value = metrics.get(name, math.nan)
    return value if math.isfinite(value) else None


def _pace(kl: float) -> Advice:
    measure = f"KL {kl:.3f}"
    if kl < BRISK_KL:
        return Advice("policy moves", "good", "calm", measure)
    if kl < FAST_KL:
        return Advice("policy moves", "fair", "brisk", measure)
    return Advice("policy moves", "poor", "too fast", measure, "lower lr or clip_coef")


def _value_estimate(variance: float) -> Advice:
    measure = f"explained variance {variance:.2f}"
    if variance > GOOD_EXPLAINED_VARIANCE:
        return Advice("value estimate", "good", "good", measure)
    if variance >= FAIR_EXPLAINED_VARIANCE:
        return Advice("value estimate", "fair", "fair", measure)
    return Advice("value estimate", "poor", "poor", measure, "normal at first; later try more update_epochs")


def _exploration(entropy: float, between: tuple[float, float]) -> Advice:
    low, high = between
    width = (entropy - low) / (high - low)
    measure = f"entropy {entropy:.2f}"
    if width > WIDE:
        return Advice("exploration", "good", "wide", measure)
    if width > GONE:
        return Advice("exploration", "good", "narrowing", measure)
    return Advice("exploration", "fair", "gone", measure, "fine once it succeeds; else raise ent_coef")


def _clipping(clipped: float) -> Advice:
    measure = f"{clipped:.0%} of steps clipped"
    if clipped <= HIGH_CLIPFRAC:
        return Advice("clipping", "good", "light", measure)
    return Advice("clipping", "fair", "heavy", measure, "lower lr or update_epochs")


def _ratio(error: float) -> Advice:
    measure = f"ratio error {error:.0e}" if error else "ratio exactly 1"
    if error <= RATIO_TOLERANCE:
        return Advice("ratio check", "good", "ok", measure)
    return Advice("ratio check", "poor", "failed", measure, "the policy that learns is not the one that acted")
