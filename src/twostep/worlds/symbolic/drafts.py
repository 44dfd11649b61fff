"""Expressions while they are written: which place is filled next, and what may stand there."""

from __future__ import annotations

import numpy as np

from twostep.worlds.symbolic.grammar import LEAF_COMPLEXITY, NOTHING, Array, Grammar


class Drafts:
    """B expressions that grow by a token each, always at the first place that is still open.

    Every expression can be finished within the limits whatever was allowed before: a place left open is counted as the
    variable or constant that could close it. The places wait on a stack per row, the next one on top.
    """

    def __init__(self, grammar: Grammar, num_rows: int) -> None:
        self.grammar = grammar
        longest = grammar.limits.tokens
        self.tokens = np.full((num_rows, longest), NOTHING, dtype=np.int16)
        self.length = np.zeros(num_rows, dtype=np.int64)
        self.complexity = np.zeros(num_rows, dtype=np.int64)
        self.open = np.zeros(num_rows, dtype=np.int64)
        """Places that nothing stands in yet; an expression without any is finished."""
        self._rows = np.arange(num_rows)
        # One place below the stack's bottom takes what is written past it, and two above what is not needed.
        self._depth = np.zeros((num_rows, longest + 3), dtype=np.int64)
        self._parent = np.full((num_rows, longest + 3), NOTHING)
        self._sibling = np.full((num_rows, longest + 3), NOTHING)
        self._is_first = np.zeros((num_rows, longest + 3), dtype=np.bool_)
        """Whether a place is the first of two."""
        self._net_cost = grammar.complexity + (grammar.arity - 1) * LEAF_COMPLEXITY
        self.begin(self._rows)

    def begin(self, rows: Array) -> None:
        """Start these expressions anew: one open place and nothing else."""
        self.tokens[rows] = NOTHING
        self.length[rows] = self.complexity[rows] = 0
        self.open[rows] = 1
        self._depth[rows, 1] = 1
        self._parent[rows, 1] = self._sibling[rows, 1] = NOTHING
        self._is_first[rows, 1] = False

    def write(self, rows: Array, tokens: Array) -> None:
        """Put allowed tokens, one for each of `rows`, in their next places."""
        arity = self.grammar.arity[tokens]
        top = self.open[rows]
        depth = self._depth[rows, top] + 1
        self.tokens[rows, self.length[rows]] = tokens
        self.length[rows] += 1
        self.complexity[rows] += self.grammar.complexity[tokens]
        first = rows[self._is_first[rows, top]]
        self._sibling[first, self.open[first] - 1] = tokens[self._is_first[rows, top]]
        for place in (top, top + 1):  # of two new places the upper one is the first; what is too much is never read
            self._depth[rows, place] = depth
            self._parent[rows, place] = tokens
            self._sibling[rows, place] = NOTHING
        self._is_first[rows, top] = False
        self._is_first[rows, top + 1] = arity == 2
        self.open[rows] = top - 1 + arity

    def allowed(self) -> Array:
        """Return which tokens may come next, `[B, n]`: those after which the rest still fits."""
        limits, arity = self.grammar.limits, self.grammar.arity
        spare_tokens = limits.tokens - self.length - self.open
        spare_complexity = limits.complexity - self.complexity - self.open * LEAF_COMPLEXITY
        deepest = self.depth >= limits.depth
        allowed = arity <= spare_tokens[:, None]
        allowed &= self._net_cost <= spare_complexity[:, None]
        return allowed & ((arity == 0) | ~deepest[:, None])

    @property
    def depth(self) -> Array:
        """How deep the next place lies, `[B]`; the whole expression's is 1."""
        return self._depth[self._rows, self.open]

    @property
    def parent(self) -> Array:
        """The token whose part comes next, `[B]`; `NOTHING` for the whole expression."""
        return self._parent[self._rows, self.open]

    @property
    def sibling(self) -> Array:
        """The token with which the first part of the same parent begins, `[B]`; `NOTHING` where there is none."""
        return self._sibling[self._rows, self.open]
