"""What is searched: settings by any of their names, each over a range or a few values.

>>> parse_space("lr,clip=0.1/0.2/0.3,update_epochs=2..10")

A name alone takes the range that is usual for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from twostep.config import VOCABULARY, TrainingConfig
from twostep.config.loading import Source
from twostep.errors import ConfigError
from twostep.values import convert, parse_text, show

NICKNAMES = {"clip": "clip_coef", "ent": "ent_coef", "bptt": "bptt_length"}
_WIDE = 10.0
"""From this ratio of its ends on, a range is gone through by factors instead of by sums."""


@dataclass(frozen=True)
class Dimension:
    """One setting and what it may be: values, or all numbers between two ends."""

    name: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False

    @property
    def by_factors(self) -> bool:
        """Whether equal factors, not equal differences, are equally likely."""
        return self.low > 0 and self.high / self.low >= _WIDE

    def suggest(self, trial: Any) -> Any:
        """Let a trial of Optuna choose."""
        if self.values:
            return trial.suggest_categorical(self.name, self.values)
        if self.whole:
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.by_factors)
        return trial.suggest_float(self.name, self.low, self.high, log=self.by_factors)

    def ends(self) -> tuple[Any, ...]:
        """Return values that every other lies between, or all there are."""
        return self.values or tuple(int(end) if self.whole else end for end in (self.low, self.high))

    def __str__(self) -> str:
        if self.values:
            return f"{self.name}={'/'.join(map(str, self.values))}"
        low, high = self.ends()
        return f"{self.name}={low}..{high}"


@dataclass(frozen=True)
class _Usual:
    """What a setting is searched over where nothing else is said."""

    over: str
    grid: str


USUAL = {
    "ppo.lr": _Usual("3e-5..3e-3", "1e-4/3e-4/1e-3"),
    "ppo.clip_coef": _Usual("0.05..0.4", "0.1/0.2/0.3"),
    "ppo.ent_coef": _Usual("1e-4..3e-2", "0.005/0.01/0.02"),
    "ppo.bptt_length": _Usual("8/16/24/32/48", "16/24/32"),
    "ppo.gamma": _Usual("0.9/0.95/0.98/0.99/0.995/0.999", "0.98/0.99/0.995"),
    "ppo.gae_lambda": _Usual("0.8..0.99", "0.9/0.95/0.98"),
    "ppo.vf_coef": _Usual("0.1..2.0", "0.25/0.5/1.0"),
    "ppo.update_epochs": _Usual("2..16", "4/8/12"),
    "ppo.num_minibatches": _Usual("1/2/4/8/16/32", "2/4/8"),
    "ppo.rollout_steps": _Usual("32/64/128/256/512/1024/2048", "128/512/2048"),
    "ppo.max_grad_norm": _Usual("0.2..2.0", "0.3/0.5/1.0"),
    "agent.hidden_size": _Usual("32/64/128/256", "64/128/256"),
    "agent.memory_size": _Usual("32/64/128/256", "64/128/256"),
    "agent.init_std": _Usual("0.2..1.0", "0.25/0.5/1.0"),
}
"""The grid over lr, clip, ent and bptt has 81 points: what is known to matter most for recurrent locomotion."""


def parse_space(text: str, *, grid: bool = False) -> tuple[Dimension, ...]:
    """Read what is searched; `grid` takes a few values instead of a range where a name stands alone."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ConfigError(f"space={show(text)} names no setting: lr,clip,ent,bptt is a good start.")
    dimensions = tuple(_dimension(part, grid) for part in parts)
    names = [dimension.name for dimension in dimensions]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"space={show(text)} names {twice[0]} twice: keep one.")
    return dimensions


def grid_points(dimensions: tuple[Dimension, ...]) -> list[dict[str, Any]]:
    """Return every combination of the values."""
    if ranges := [dimension for dimension in dimensions if not dimension.values]:
        raise ConfigError(f"A grid needs values, but {ranges[0]} is a range: list some, {ranges[0].name}=A/B/C.")
    names = [dimension.name for dimension in dimensions]
    return [dict(zip(names, point, strict=True)) for point in product(*(one.values for one in dimensions))]


def with_params(config: TrainingConfig, params: Mapping[str, Any]) -> TrainingConfig:
    """Return settings with those of a trial; a minibatch keeps its number of sequences where their length changes."""
    ppo, counted = config.ppo, ("ppo.minibatch_size", "ppo.num_minibatches")
    sequences: dict[str, Any] = {}
    if "ppo.bptt_length" in params and ppo.minibatch_size is not None and not any(name in params for name in counted):
        sequences = {"ppo.minibatch_sequences": max(1, ppo.minibatch_size // ppo.bptt_length)}
    return TrainingConfig.from_dict(config.to_dict(), {**params, **sequences})


def _dimension(part: str, grid: bool) -> Dimension:
    written, equals, over = part.partition("=")
    path = VOCABULARY.resolve(tuple(NICKNAMES.get(written.strip(), written.strip()).split(".")), Source())
    name = ".".join(path)
    if VOCABULARY.holds_settings(path):
        raise ConfigError(f"space: {written} is a group of settings: name one of them, {name}.NAME=A/B.")
    if not equals:
        usual = USUAL.get(name)
        if usual is None:
            raise ConfigError(f"space: nothing is usual for {name}: say what it may be, {written}=LOW..HIGH or A/B/C.")
        over = usual.grid if grid else usual.over
    annotation = VOCABULARY.fields[path].annotation if path in VOCABULARY.fields else Any
    low, dots, high = over.partition("..")
    if not dots:
        return Dimension(name, tuple(_value(name, one, annotation) for one in over.split("/")))
    ends = [_value(name, end, annotation) for end in (low, high)]
    if not all(isinstance(end, (int, float)) and not isinstance(end, bool) and math.isfinite(end) for end in ends):
        raise ConfigError(f"space: {part} must lie between two numbers; list other values, {written}=A/B/C.")
    if ends[0] >= ends[1]:
        raise ConfigError(f"space: {part} must rise: {written}={high}..{low}?")
    return Dimension(name, low=ends[0], high=ends[1], whole=all(isinstance(end, int) for end in ends))


def _value(name: str, text: str, annotation: Any) -> Any:
    return parse_text(text.strip()) if annotation is Any else convert(name, text.strip(), annotation)
