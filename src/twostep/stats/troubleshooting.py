"""What to change where an update's measures stay out of their healthy range, in words and with numbers to try."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from twostep.stats.health import Advice, entropy_range, health

PATIENCE = 10
"""How many more updates with a finding than without it make it more than chance."""
GRACE = 20
"""Updates within which a critic may be poor: it has not seen much yet."""
NEARLY_ALL = 0.8
NOTICEABLE = 0.1


Settings = Mapping[str, Any]
"""The settings of PPO by their names."""


class Troubleshooter:
    """Watches updates and says of each trouble once what it is and what to try; again only after it was over.

    What is healthy is `health`'s to say, what to try follows from the settings as they are.
    """

    def __init__(self, action_space: Any = None) -> None:
        self.action_space = action_space
        self.present: dict[str, str] = {}
        """Troubles that last, by topic: what was said of each."""
        self._entropies: tuple[float, float] | None = None
        self._lasting: Counter[str] = Counter()
        self._updates = 0

    def take_in(self, metrics: Mapping[str, float], settings: Settings, *, rewarded: bool = True) -> list[str]:
        """Look at one update, learned with these settings, and return what there is to say anew.

        `rewarded` tells whether any reward so far was not 0.
        """
        self._updates += 1
        if self._entropies is None and "entropy" in metrics:
            self._entropies = entropy_range(self.action_space, metrics["entropy"])
        found: dict[str, str] = {}
        for advice in health(metrics, self._entropies):
            remedy = _REMEDIES.get((advice.topic, advice.words))
            found[advice.topic] = "" if remedy is None else _in_words(advice, remedy(settings))
        if self._updates <= GRACE:
            found.pop("value estimate", None)
        alike = _learned_from_nothing(metrics)
        found["rewards"] = _NOTHING.format("All returns are alike" if alike else "Every reward was 0 so far")
        found["rewards"] *= alike or not rewarded
        return [words for topic, words in found.items() if self._is_news(topic, words)]

    def _is_news(self, topic: str, words: str) -> bool:
        """Count an update with a trouble, or without it where there are no words for it."""
        self._lasting[topic] = min(PATIENCE, max(0, self._lasting[topic] + (1 if words else -1)))
        if not self._lasting[topic]:
            self.present.pop(topic, None)
        if self._lasting[topic] < PATIENCE or topic in self.present:
            return False
        self.present[topic] = words
        return True


def where_time_went(collecting: float, learning: float, seconds: float) -> str:
    """Say which part of a run both phases took, and what makes it faster where one of them takes nearly all."""
    words = f"{collecting / seconds:.0%} of the time collecting, {learning / seconds:.0%} learning"
    rest = 1 - (collecting + learning) / seconds
    words += f", {rest:.0%} beginning and saving" if rest > NOTICEABLE else ""
    if collecting > NEARLY_ALL * seconds:
        return f"{words}: more num_envs at once, or num_workers, make it faster"
    if learning > NEARLY_ALL * seconds:
        return f"{words}: fewer update_epochs, larger minibatches, or precision=bf16 on a GPU make it faster"
    return words


def out_of_memory(num_envs: int, settings: Settings, lessons: int | None = None) -> str:
    """Say what needs less memory; `lessons` is how many rollouts a student keeps, where it learns from a teacher."""
    fewer = f"environments, num_envs={max(1, num_envs // 2)}"
    shorter = f"bptt_length={max(1, settings['bptt_length'] * 2 // 3)}; or precision=bf16"
    if lessons is not None:
        parts = f"num_minibatches={2 * settings['num_minibatches']}, groups of half as many rows"
        kept = f"keep={lessons // 2}, of past rollouts; " if lessons > 1 else ""
        return f"The device has not enough memory. Try {parts}; fewer {fewer}; {kept}{shorter}."
    pieces = f"accumulate={2 * settings['accumulate']}, which computes the same"
    return f"The device has not enough memory. Try {pieces}; fewer {fewer}; a smaller minibatch_size; {shorter}."


def _learned_from_nothing(metrics: Mapping[str, float]) -> bool:
    return math.isnan(metrics.get("explained_variance", 0.0)) and math.isfinite(metrics.get("loss", math.nan))


_NOTHING = (
    "{}: nothing tells one action from another. Is the simulator there, does the environment give rewards and end "
    "episodes?"
)


def _in_words(advice: Advice, remedy: str) -> str:
    return f"{advice.topic} {advice.words} for {PATIENCE} updates and more, {advice.measure}: {remedy}."


def _slower(settings: Settings) -> str:
    """Name what makes steps smaller: a schedule that follows the KL would override another rate at once."""
    name = "desired_kl" if settings["lr_schedule"] == "adaptive_kl" else "lr"
    return f"{name}={settings[name] / 3:.1g} instead of {settings[name]:g}"


def _too_fast(settings: Settings) -> str:
    tried = [_slower(settings)]
    tried += ["clip_coef=0.1"] * (settings["clip_coef"] > 0.1)
    tried += ["target_kl=0.03, which ends an update early"] * (settings["target_kl"] is None)
    return f"try {', '.join(tried)}, or larger minibatches"


def _poor_values(settings: Settings) -> str:
    tried = [f"vf_coef={2 * settings['vf_coef']:g} instead of {settings['vf_coef']:g}"]
    tried += ["normalize_returns, where rewards are large or small"] * (not settings["normalize_returns"])
    return f"try {', '.join(tried)}, or more update_epochs, and look whether rewards make sense"


def _gone(settings: Settings) -> str:
    now = settings["ent_coef"]
    tried = f"ent_coef={2 * now or 0.01:g} instead of {now:g}"
    return f"fine once it succeeds; else try {tried}, or a deviation of actions that is learned or larger"


def _heavy(settings: Settings) -> str:
    fewer = max(1, settings["update_epochs"] // 2)
    return f"try {_slower(settings)}, or update_epochs={fewer}"


_REMEDIES: dict[tuple[str, str], Callable[[Settings], str]] = {
    ("policy moves", "too fast"): _too_fast,
    ("value estimate", "poor"): _poor_values,
    ("exploration", "gone"): _gone,
    ("clipping", "heavy"): _heavy,
}
