"""Trees: one order of leaves everywhere, structures that can be compared, and no surprises from empty ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.tree import tree_filled, tree_items, tree_leaves, tree_map, tree_stack, tree_structure

TREES = st.recursive(
    st.integers() | st.none(),
    lambda inner: (
        st.dictionaries(st.text("abc", min_size=1), inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=8,
)
NESTED = {"speed": 3, "camera": {"right": 2, "left": 1}, "arms": (4, {"x": 5}), "nothing": None}


def test_leaves_come_in_sorted_order_whatever_the_order_of_keys():
    """Two trees of one structure list their leaves alike."""
    shuffled = dict(reversed(NESTED.items()))
    assert list(tree_items(NESTED)) == [
        ("arms/0", 4),
        ("arms/1/x", 5),
        ("camera/left", 1),
        ("camera/right", 2),
        ("speed", 3),
    ]
    assert list(tree_items(shuffled)) == list(tree_items(NESTED))
    assert next(tree_items(NESTED, "obs")) == ("obs/arms/0", 4)
    assert list(tree_items(7, "obs")) == [("obs", 7)]


def test_map_takes_matching_leaves():
    tree = {"a": (1, 2), "b": 3}
    assert tree_map(lambda x, y, z: x + y + z, tree, {"b": 30, "a": (10, 20)}, {"a": (0, 1), "b": 2}) == {
        "a": (11, 23),
        "b": 35,
    }


@pytest.mark.parametrize("empty", [None, (), {}])
def test_trees_without_leaves(empty):
    """A feed-forward policy has the state (): nothing may be called on it."""
    assert tree_leaves(empty) == []
    assert tree_map(lambda _: 1 / 0, empty) == empty


def test_differing_structures_are_not_mapped_silently():
    """A missing branch raises; it is not cut off, as zip would."""
    with pytest.raises(ValueError, match="shorter"):
        tree_map(lambda x, y: x, (1, 2), (1,))
    with pytest.raises(KeyError):
        tree_map(lambda x, y: x, {"a": 1}, {"b": 1})


@settings(max_examples=60, deadline=None)
@given(tree=TREES)
def test_mapping_filling_and_stacking_keep_the_structure(tree):
    doubled = tree_map(lambda leaf: 2 * leaf, tree)
    assert tree_structure(doubled) == tree_structure(tree)
    assert tree_leaves(doubled) == [2 * leaf for leaf in tree_leaves(tree)]
    assert tree_filled(tree, tree_leaves(doubled)) == doubled
    assert tree_leaves(tree_stack(sum, [tree, tree, tree])) == [3 * leaf for leaf in tree_leaves(tree)]


def test_structure_in_words():
    """What error messages show to tell two structures apart."""
    assert tree_structure(NESTED) == "{arms: (leaf, {x}), camera: {left, right}, nothing: nothing, speed}"
    assert [tree_structure(tree) for tree in (1, None, (), (1, None), [1, 2])] == [
        "leaf",
        "nothing",
        "()",
        "(leaf, nothing)",
        "leaf",
    ]
