"""Suites of cases from YAML and dicts, read with the same care as the settings of a run.

name: walking
episodes: 30
cases:
  flat/slow: {env: "my_robot:make", kwargs: {speed: 0.5}}
  flat/fast: {env: "my_robot:make", kwargs: {speed: 2.0}, max_steps: 500}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

from twostep.config.files import read_yaml
from twostep.config.loading import Entry, Source, Vocabulary, build, place
from twostep.errors import ConfigError
from twostep.suites import SimulationCase, SimulationSuite
from twostep.values import show

CASES = ("cases", "simulations")
"""By what names a suite holds its cases."""
_ALIASES = {
    "num_episodes": "episodes",
    "max_episode_steps": "max_steps",
    "npc_policy_uri": "npc",
    "selector": "npc_selector",
}
_EXAMPLE = "cases: {balance/cartpole: {env: CartPole-v1}}"


def _vocabulary(root: type) -> Vocabulary:
    return Vocabulary(
        root=root,
        aliases=_ALIASES,
        sections={"kwargs": "kwargs", "env_overrides": "kwargs"},
        short_forms={},
        only_dotted=frozenset(),
        derived=frozenset(),
        infinite=frozenset(),
    )


_SUITE, _CASE = _vocabulary(SimulationSuite), _vocabulary(SimulationCase)


def load_suite(path: str | os.PathLike[str], changes: Mapping[str, Any] | None = None) -> SimulationSuite:
    """Read a suite from a YAML file; `changes` win over what the suite and its cases say. Errors name the line."""
    return _built(*read_yaml(path, _EXAMPLE), changes or {})


def suite_from_dict(data: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> SimulationSuite:
    """Read a suite from a dict, as `load_suite` reads a file."""
    return _built(data, Source(), changes or {})


def _built(data: Mapping[Any, Any], source: Source, changes: Mapping[str, Any]) -> SimulationSuite:
    given = [name for name in CASES if name in data]
    changed = place(changes, _SUITE)
    entries = place({name: value for name, value in data.items() if name not in CASES}, _SUITE, source) | changed
    if not given:
        raise ConfigError(f"{source.at(())}the suite has no cases: write {_EXAMPLE!r}, say.")
    if len(given) > 1:
        raise ConfigError(
            f"{source.at((given[1],))}the suite gives its cases twice, as {' and '.join(given)}: keep one."
        )
    cases = _cases(data[given[0]], source.inside((given[0],)), given[0], changed)
    return build(entries | {("cases",): Entry(cases, (given[0],), source)}, _SUITE)


def _cases(data: Any, source: Source, above: str, changed: Mapping[tuple[str, ...], Entry]) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        rule = "must be a mapping of cases by name, each indented under it"
        raise ConfigError(f"{source.at(())}{above}={show(data)} {rule}: {_EXAMPLE!r}.")
    return {name: _case(name, value, source, above, changed) for name, value in cast("Mapping[Any, Any]", data).items()}


def _case(name: Any, value: Any, source: Source, above: str, changed: Mapping[tuple[str, ...], Entry]) -> Any:
    inside = source.inside(tuple(str(name).split(".")))
    if isinstance(value, str):
        value = {"env": value}
    if not isinstance(value, Mapping):
        rule = "must be a mapping: write its settings indented under it, 'env: CartPole-v1' at least"
        raise ConfigError(f"{inside.at(())}{above}.{name}={show(value)} {rule}.")
    placed = place(cast("Mapping[Any, Any]", value), _CASE, inside)
    case = build({path: entry for path, entry in placed.items() if path not in changed}, _CASE)
    try:
        SimulationSuite(cases={name: case})
    except ConfigError as error:
        raise ConfigError(f"{inside.at(())}{error}") from None
    return case
