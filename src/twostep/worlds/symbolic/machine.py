"""The values of many expressions at once, and how well they fit data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from twostep.worlds.symbolic.grammar import OPERATORS, Array, Grammar

ERROR_OF_NOTHING = np.inf


def values(grammar: Grammar, tokens: Array, inputs: Array) -> Array:
    """Return what whole expressions `[M, L]` say at the points of `inputs` `[V, N]`, as `[M, N]`.

    There may be fewer inputs than the grammar has variables: those that are missing have no value.

    They are read from their ends: a variable or constant is put on the row's stack, an operator takes its parts from
    there. What has no value is NaN or infinite.
    """
    rows, points = len(tokens), inputs.shape[1]
    constants = np.asarray(grammar.constants)[:, None].repeat(points, 1)
    missing = np.full((grammar.num_variables - len(inputs), points), np.nan)
    leaves = np.concatenate((inputs, missing, constants))
    stack = np.empty((rows, (tokens.shape[1] + 1) // 2 + 1, points))
    height = np.zeros(rows, dtype=np.int64)
    with np.errstate(all="ignore"):
        for column in tokens.T[::-1]:
            for token in np.unique(column[column >= 0]).tolist():
                here = np.flatnonzero(column == token)
                top = height[here]
                if token < grammar.num_leaves:
                    stack[here, top] = leaves[token]
                    height[here] += 1
                    continue
                operator = OPERATORS[grammar.words[token]]
                if operator.arity == 1:
                    stack[here, top - 1] = operator.apply(stack[here, top - 1])
                else:
                    stack[here, top - 2] = operator.apply(stack[here, top - 1], stack[here, top - 2])
                    height[here] -= 1
    return stack[:, 0]


class Fit(NamedTuple):
    """How well expressions `[M]` describe data."""

    scale: Array
    """The factor that makes each fit best in the sense of least squares, or 1."""
    error: Array
    """Root of the mean square of what is left, in deviations of the data; infinite where a value is missing."""


def fit(said: Array, targets: Array, *, scaled: bool) -> Fit:
    """Compare values `[M, N]` with targets `[N]`, each times the factor that serves it best where `scaled`."""
    usable = np.isfinite(said).all(1)
    with np.errstate(all="ignore"):
        largest = np.abs(said).max(1)
        usable &= (largest > 0) & (largest < 1e150)  # beyond that squares overflow
        unit = np.where(usable, largest, 1.0)
        shape = np.where(usable[:, None], said, 0.0) / unit[:, None]
        scale = unit
        if scaled:
            scale = (shape * targets).sum(1) / np.maximum((shape**2).sum(1), 1e-300)
        left = targets - shape * scale[:, None]
        error = np.sqrt((left**2).mean(1)) / targets.std()
        return Fit(scale / unit, np.where(usable, error, ERROR_OF_NOTHING))


def quality(errors: Array) -> Array:
    """Return which part of the targets' deviation expressions explain, from 0 to 1.

    A constant explains nothing, and neither does what has no value: both are worth 0, so nothing is gained by writing
    something short that cannot go wrong.
    """
    return np.maximum(0.0, 1.0 - errors)
