"""Memory that processes share: every column at a place of its own, and actions that fit row for row."""

from __future__ import annotations

import os

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.errors import EnvError
from twostep.tree import tree_leaves
from twostep.vector.shared import ActionWriter, SharedRows, bytes_needed, mapped, nameless_file

TREE = spaces.Dict(
    {
        "choice": spaces.Discrete(3),
        "push": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.MultiBinary(3)]),
    }
)
leaf_spaces = st.sampled_from(
    [
        spaces.Box(0, 255, (3, 5), np.uint8),
        spaces.Box(-1, 1, (), np.float64),
        spaces.Discrete(4),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(5),
        TREE,
    ]
)


@given(obs=leaf_spaces, action=leaf_spaces, num_rows=st.integers(1, 7), cut=st.integers(0, 6))
@settings(max_examples=60, deadline=None)
def test_no_two_columns_overlap_and_all_views_see_the_same(obs, action, num_rows, cut):
    """L9, A7: what one process writes through its rows is what the other reads in the whole, and nothing else moves."""
    file = nameless_file()
    os.ftruncate(file, bytes_needed(obs, action, num_rows))
    whole = SharedRows.over(mapped(file), obs, action, num_rows)
    other = SharedRows.over(mapped(file), obs, action, num_rows)
    os.close(file)
    leaves = [leaf for name in sorted(whole.columns) for leaf in tree_leaves(whole.columns[name])]
    others = [leaf for name in sorted(other.columns) for leaf in tree_leaves(other.columns[name])]
    for number, leaf in enumerate(leaves):
        leaf[...] = number % 2
    for number, leaf in enumerate(others):
        assert (leaf == number % 2).all()
        assert leaf.ctypes.data % 64 == others[0].ctypes.data % 64
    cut = min(cut, num_rows)
    other.rows(cut, num_rows).rewards[...] = 7
    assert whole.rewards.tolist() == [whole.rewards[0] if row < cut else 7 for row in range(num_rows)]


@pytest.mark.parametrize(
    ("space", "actions", "message"),
    [
        (spaces.Discrete(3), np.zeros(3, dtype=np.int64), r"3 actions came for 2 rows.*shape \[2\]"),
        (spaces.Discrete(3), np.zeros(2), r"dtype float64 cannot be taken.*int64 can hold"),
        (spaces.Box(-1, 1, (2,)), np.zeros((2, 3)), r"shape \[2, 3\].*must have shape \[2, 2\]"),
        (TREE, {"choice": np.zeros(2, dtype=int)}, r"came as \{choice\}.*needs \{choice, push: \(leaf, leaf\)\}"),
        (
            TREE,
            {"choice": np.zeros(2, dtype=int), "push": (np.zeros((2, 2)), np.zeros((1, 3), dtype=int))},
            r"1 actions\[push/1\] came for 2 rows",
        ),
    ],
)
def test_actions_that_do_not_fit_are_refused(space, actions, message):
    """EB8."""
    memory = SharedRows.over(bytearray(bytes_needed(spaces.Discrete(2), space, 2)), spaces.Discrete(2), space, 2)
    with pytest.raises(EnvError, match=message):
        ActionWriter(space, memory.actions).write(actions)


def test_actions_are_copied_in_the_dtype_of_the_space():
    memory = SharedRows.over(bytearray(bytes_needed(spaces.Discrete(2), TREE, 2)), spaces.Discrete(2), TREE, 2).actions
    push = np.array([[0.5, 1], [2, 3]])
    ActionWriter(TREE, memory).write({"push": (push, np.ones((2, 3), dtype=np.int16)), "choice": [2, 1]})
    push[:] = 9
    assert memory["choice"].tolist() == [2, 1]
    assert (memory["push"][0].dtype, memory["push"][0].tolist()) == (np.float32, [[0.5, 1], [2, 3]])
    assert memory["push"][1].dtype == np.int8
