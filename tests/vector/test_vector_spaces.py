"""Memory and actions of arbitrary nested spaces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.errors import EnvError
from twostep.tree import tree_items
from twostep.vector.spaces import action_splitter, cast_actions, observation_memory, require_supported_space, row_slots

LEAVES = st.one_of(
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), st.integers(-2, 2)),
    st.builds(spaces.MultiBinary, st.integers(1, 3)),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 4), min_size=1, max_size=3)),
    st.builds(
        lambda shape, dtype: spaces.Box(0, 9, shape, dtype),
        st.lists(st.integers(1, 3), max_size=3).map(tuple),
        st.sampled_from([np.float32, np.float64, np.uint8, np.int64]),
    ),
)
SPACES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(spaces.Dict),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)


def equal(one: Any, other: Any) -> bool:
    pairs = zip(tree_items(one), tree_items(other), strict=True)
    return all(path == there and np.array_equal(leaf, leaf_there) for (path, leaf), (there, leaf_there) in pairs)


@settings(max_examples=40, deadline=None)
@given(SPACES, st.integers(1, 4))
def test_memory_keeps_what_its_slots_are_given(space: spaces.Space[Any], num_rows: int) -> None:
    space.seed(0)
    samples = [space.sample() for _ in range(num_rows)]
    memory = observation_memory(space, num_rows)
    for slot, sample in zip(row_slots(memory, num_rows), samples, strict=True):
        slot[...] = sample
    expected = concatenate(space, samples, create_empty_array(space, num_rows))
    assert equal(memory, expected)


@settings(max_examples=40, deadline=None)
@given(SPACES, st.integers(1, 4))
def test_batches_of_actions_split_into_the_actions_of_the_rows(space: spaces.Space[Any], num_rows: int) -> None:
    space.seed(0)
    samples = [space.sample() for _ in range(num_rows)]
    batch = concatenate(space, samples, create_empty_array(space, num_rows))
    rows = action_splitter(space)(batch)
    assert len(rows) == num_rows
    for action, sample in zip(rows, samples, strict=True):
        assert equal(action, sample)
        assert space.contains(action)
    assert equal(cast_actions(space, batch), batch)


@pytest.mark.parametrize(
    "space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2)), spaces.Graph(spaces.Discrete(2), None)]
)
def test_spaces_without_a_fixed_shape_are_refused_with_their_path(space: spaces.Space[Any]) -> None:
    with pytest.raises(EnvError, match=r"obs\['a'\]\[1\] is .* not supported.*Box, Discrete"):
        require_supported_space(spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2), space])}), "obs")
