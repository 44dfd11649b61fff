"""The words that expressions are made of, how long they may become, and which word may come next.

Expressions are written in prefix order: `("div", "x0", "x1")` is x0 / x1. Words are counted: variables first, then
constants, then operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from twostep.errors import ConfigError

Array = np.ndarray[Any, Any]
NOTHING = -1
"""Stands where there is no word."""
LEAF_COMPLEXITY = 1


class Operator(NamedTuple):
    """What a word does to the values of the parts behind it."""

    arity: int
    complexity: int
    apply: Callable[..., Array]
    """Of arrays; what has no value becomes NaN or infinite."""


OPERATORS: dict[str, Operator] = {
    "add": Operator(2, 1, np.add),
    "sub": Operator(2, 1, np.subtract),
    "mul": Operator(2, 1, np.multiply),
    "div": Operator(2, 1, np.divide),
    "neg": Operator(1, 1, np.negative),
    "square": Operator(1, 1, np.square),
    "sqrt": Operator(1, 1, np.sqrt),
    "exp": Operator(1, 2, np.exp),
    "log": Operator(1, 2, np.log),
    "sin": Operator(1, 2, np.sin),
    "cos": Operator(1, 2, np.cos),
}


@dataclass(frozen=True)
class Limits:
    """How large an expression may become."""

    tokens: int
    complexity: int
    depth: int
    """Longest way from the whole down to a variable or constant, both counted."""


@dataclass(frozen=True)
class Grammar:
    """The words of a task and what they cost; `limits` hold for every expression."""

    num_variables: int
    constants: tuple[float, ...]
    operators: tuple[str, ...]
    limits: Limits

    def __post_init__(self) -> None:
        """Refuse words that are not there."""
        for name in self.operators:
            if name not in OPERATORS:
                raise ConfigError(f"operators names {name!r}, but must be some of {', '.join(OPERATORS)}.")

    @cached_property
    def words(self) -> tuple[str, ...]:
        """What each token is called."""
        variables = tuple(f"x{number}" for number in range(self.num_variables))
        return (*variables, *(f"{value:g}" for value in self.constants), *self.operators)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def num_leaves(self) -> int:
        """Tokens below this number are variables and constants."""
        return self.num_variables + len(self.constants)

    @cached_property
    def arity(self) -> Array:
        """How many parts follow each token, `[n]`."""
        return np.array([0] * self.num_leaves + [OPERATORS[name].arity for name in self.operators])

    @cached_property
    def complexity(self) -> Array:
        """What each token adds to the complexity of an expression, `[n]`."""
        operators = [OPERATORS[name].complexity for name in self.operators]
        return np.array([LEAF_COMPLEXITY] * self.num_leaves + operators)

    def parse(self, words: tuple[str, ...]) -> Array:
        """Return the tokens of an expression's words, `[L]`."""
        unknown = [word for word in words if word not in self.words]
        if unknown:
            raise ConfigError(f"{unknown[0]!r} is no word of this grammar, which has {', '.join(self.words)}.")
        tokens = np.array([self.words.index(word) for word in words], dtype=np.int16)
        missing = 1 + np.cumsum(self.arity[tokens] - 1)
        if not len(words) or missing[-1] or not missing[:-1].all():
            raise ConfigError(f"{' '.join(words)!r} is not one whole expression in prefix order, such as 'mul x0 x1'.")
        return tokens
