"""Expressions as people write them."""

from __future__ import annotations

import numpy as np

from twostep.worlds.symbolic.grammar import NOTHING, OPERATORS, Array, Grammar

_SIGNS = {"add": ("+", 1), "sub": ("-", 1), "mul": ("*", 2), "div": ("/", 2)}
"""What stands between two parts, and how tightly it binds."""
_SIGN, _POWER, _WHOLE = 2, 4, 5
_FOUR_DIGITS = 1e-3, 1e5


def infix(grammar: Grammar, tokens: Array, variables: tuple[str, ...]) -> str:
    """Write one whole expression with its variables' names: `a * sqrt(a)`."""
    parts: list[tuple[str, int]] = []
    for token in tokens[tokens != NOTHING][::-1].tolist():
        word = grammar.words[token]
        if token < grammar.num_variables:
            parts.append((variables[token], _WHOLE))
        elif token < grammar.num_leaves:
            parts.append((word, _WHOLE if grammar.constants[token - grammar.num_variables] >= 0 else _SIGN))
        elif OPERATORS[word].arity == 1:
            parts.append(_of_one(word, *parts.pop()))
        else:
            parts.append(_of_two(word, parts.pop(), parts.pop()))
    return parts[0][0]


def _of_one(word: str, part: str, binding: int) -> tuple[str, int]:
    if word == "neg":
        return f"-{_enclosed(part, binding < _POWER)}", _SIGN
    if word == "square":
        return f"{_enclosed(part, binding <= _POWER)}^2", _POWER
    return f"{word}({part})", _WHOLE


def _of_two(word: str, left: tuple[str, int], right: tuple[str, int]) -> tuple[str, int]:
    sign, binding = _SIGNS[word]
    takes_turns = word in ("add", "mul")
    first = _enclosed(left[0], left[1] < binding)
    second = _enclosed(right[0], right[1] < binding or (right[1] == binding and not takes_turns))
    if second.startswith("-"):
        second = f"({second})"
    return f"{first} {sign} {second}", binding


def _enclosed(part: str, needed: bool) -> str:
    return f"({part})" if needed else part


def scaled(scale: float, text: str) -> str:
    """Write an expression with the factor in front of it, which is left out where it is 1."""
    if np.isclose(scale, 1.0, rtol=1e-9):
        return text
    low, high = _FOUR_DIGITS
    number = f"{scale:.4g}" if low <= abs(scale) < high else f"{scale:.4e}"
    return f"{number} * ({text})" if " + " in text or " - " in text else f"{number} * {text}"
