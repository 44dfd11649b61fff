"""What a world of expressions is made of: the laws to be found, the words to say them in, the reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from twostep.errors import ConfigError, EnvError
from twostep.worlds.settings import check_kinds, require, settings_from
from twostep.worlds.symbolic.grammar import Grammar, Limits
from twostep.worlds.symbolic.laws import Dataset, Law, Task, dataset_of

if TYPE_CHECKING:
    from twostep.worlds.symbolic.env import SymbolicEnv
    from twostep.worlds.symbolic.rows import SymbolicRows


@dataclass(frozen=True, kw_only=True)
class SymbolicConfig:
    """Everything that makes one search for laws different from another."""

    law: Task | Sequence[Task] = "pendulum"
    """What is to be found: a law's name, a `Law`, a `Dataset`, or several of them, of which each episode draws one."""
    points: int = 64
    """How many points of each law are measured."""
    data_seed: int = 0
    """Where they lie."""
    constants: tuple[float, ...] = (1.0, 2.0)
    """Numbers that may be written."""
    operators: tuple[str, ...] = ("add", "sub", "mul", "div", "square", "sqrt", "exp", "log", "sin", "cos")
    """Operators that may be written."""
    max_tokens: int = 15
    """Longest expression, in tokens."""
    max_complexity: int = 30
    """Most that the tokens of an expression may cost: 2 for exp, log, sin and cos, 1 for all others."""
    max_depth: int = 10
    """Longest way from the whole expression down to a variable or constant."""
    fit_scale: bool = True
    """Whether expressions are compared with the data up to the factor that serves them best."""
    exact_bonus: float = 1.0
    """Reward for an expression that leaves no more error than the data themselves have."""
    size_penalty: float = 0.02
    """What an expression of the largest complexity costs; others cost their part of it."""
    invalid_penalty: float = 1.0
    """What it costs to write a token that is not allowed, which ends the episode."""
    num_variables: int = 0
    """Variables that can be written; 0 takes as many as the laws have. More leave room for tasks set later."""
    show_data: bool = False
    """Whether the observation tells what the data are like, which tells laws apart (`data_features`)."""
    seed: int | None = None
    """What the first reset without a seed uses; it decides nothing but which of several laws is drawn."""

    def __post_init__(self) -> None:
        """Take lists for tuples, and refuse what cannot work."""
        for name in ("constants", "operators"):
            value: Any = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, (str, float, int)) else tuple(value))
        check_kinds(self)
        require(self, "points", 2 <= self.points <= 100_000, "from 2 to 100000", "64 is the default")
        require(self, "data_seed", self.data_seed >= 0, "0 or more", "0 is the default")
        require(self, "max_tokens", 1 <= self.max_tokens <= 1000, "from 1 to 1000", "15 is the default")
        require(self, "max_complexity", self.max_complexity >= 1, "1 or more", "30 is the default")
        require(self, "max_depth", self.max_depth >= 1, "1 or more", "10 is the default")
        for name in ("exact_bonus", "size_penalty", "invalid_penalty"):
            require(self, name, getattr(self, name) >= 0, "0 or more", "see its documentation")
        needed = max(len(task.variables) for task in self.tasks)
        rule = f"0 or at least {needed}, which the laws have"
        require(self, "num_variables", self.num_variables == 0 or self.num_variables >= needed, rule, "0 finds out")
        require(self, "seed", self.seed is None or self.seed >= 0, "0 or more, or None", "None draws one")
        assert len(self.grammar)

    @cached_property
    def tasks(self) -> tuple[Dataset, ...]:
        """The data of every law."""
        law: Any = self.law
        listed = (law,) if isinstance(law, (str, Law, Dataset)) else tuple(law)
        if not listed:
            raise ConfigError("law is empty, so there is nothing to find. law='pendulum' is the default.")
        tasks = tuple(dataset_of(task, self.points, self.data_seed) for task in listed)
        names = [task.name for task in tasks]
        if len(set(names)) < len(names):
            raise ConfigError(f"law names {', '.join(names)}, but each must have a name of its own.")
        return tasks

    @cached_property
    def grammar(self) -> Grammar:
        """The words that expressions are written in."""
        variables = self.num_variables or max(len(task.variables) for task in self.tasks)
        limits = Limits(self.max_tokens, self.max_complexity, self.max_depth)
        return Grammar(variables, self.constants, self.operators, limits)

    def make(self) -> SymbolicEnv:
        """Make the environment."""
        from twostep.worlds.symbolic.env import SymbolicEnv

        return SymbolicEnv(self)

    def make_rows(self, num_envs: int, *, agent_ids: None = None) -> SymbolicRows:
        """Make many expressions as one environment; there are no agents to name."""
        from twostep.worlds.symbolic.rows import SymbolicRows

        if agent_ids is not None:
            raise EnvError(f"agent_ids={agent_ids!r} was given, but an expression has a single writer. Leave it out.")
        return SymbolicRows(self, num_envs)

    def to_dict(self) -> dict[str, Any]:
        """Return plain containers that JSON and YAML can hold; only laws that have a name here can be written."""
        law: Any = self.law
        names = list(law) if isinstance(law, (list, tuple)) else [law]
        if not all(isinstance(name, str) for name in names):
            raise ConfigError("law holds data or a law of your own, which cannot be written. Pass them in Python.")
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return plain | {"law": law if isinstance(law, str) else names}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SymbolicConfig:
        """Read what `to_dict` wrote, or any part of it; names it does not know are refused."""
        return settings_from(cls, values, "symbolic")
