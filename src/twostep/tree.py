"""Nested observations, actions and memories as trees: dicts and tuples whose leaves are arrays or tensors.

Dict keys are walked in sorted order, so two trees of the same structure always list their leaves alike.
`None` and `()` are trees without leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

Tree = Any
"""A leaf, or a dict / tuple of trees."""


def tree_map(fn: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `fn` to every leaf of `tree` together with the matching leaves of `others`."""
    kind = _KINDS.get(type(tree)) or _kind(tree)
    if kind is _LEAF:
        return fn(tree, *others)
    if kind is _MAPPING:
        return {key: tree_map(fn, tree[key], *(other[key] for other in others)) for key in sorted(tree)}
    if kind is _TUPLE:
        return tuple([tree_map(fn, *branches) for branches in zip(tree, *others, strict=True)])
    return None


def tree_leaves(tree: Tree) -> list[Any]:
    """List the leaves in the one order that every function here uses."""
    kind = _KINDS.get(type(tree)) or _kind(tree)
    if kind is _LEAF:
        return [tree]
    if kind is _MAPPING:
        return [leaf for key in sorted(tree) for leaf in tree_leaves(tree[key])]
    return [leaf for branch in tree for leaf in tree_leaves(branch)] if kind is _TUPLE else []


def tree_items(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield `(path, leaf)`; a path joins dict keys and tuple positions with slashes."""
    if isinstance(tree, Mapping):
        for key in sorted(tree):
            yield from tree_items(tree[key], f"{prefix}/{key}" if prefix else str(key))
    elif isinstance(tree, tuple):
        for position, branch in enumerate(tree):
            yield from tree_items(branch, f"{prefix}/{position}" if prefix else str(position))
    elif tree is not None:
        yield prefix, tree


_LEAF, _MAPPING, _TUPLE, _NOTHING = "leaf", "mapping", "tuple", "nothing"
_KINDS: dict[type, str] = {dict: _MAPPING, tuple: _TUPLE, type(None): _NOTHING}
"""What trees of each type are, once it was asked: instance checks cost more than most of what is done with leaves."""


def _kind(tree: Tree) -> str:
    kind = _MAPPING if isinstance(tree, Mapping) else _TUPLE if isinstance(tree, tuple) else _LEAF
    _KINDS[type(tree)] = kind
    return kind


def tree_filled(tree: Tree, leaves: Iterable[Any]) -> Tree:
    """Return a tree like `tree` whose leaves are those given, in the order of `tree_leaves`."""
    supply = iter(leaves)
    return tree_map(lambda _: next(supply), tree)


def tree_stack(stack: Callable[[list[Any]], Any], trees: list[Tree]) -> Tree:
    """Join trees of one structure leaf by leaf, with `stack` given the list of matching leaves."""
    return tree_map(lambda *leaves: stack(list(leaves)), trees[0], *trees[1:])


def tree_structure(tree: Tree) -> str:
    """Describe the structure in words a person can compare: `{camera, speed}`, `(leaf, leaf)`, `leaf`."""
    if isinstance(tree, Mapping):
        parts = [key if _is_leaf(tree[key]) else f"{key}: {tree_structure(tree[key])}" for key in sorted(tree)]
        return "{" + ", ".join(parts) + "}"
    if isinstance(tree, tuple):
        return "(" + ", ".join(tree_structure(branch) for branch in tree) + ")"
    return "nothing" if tree is None else "leaf"


def _is_leaf(tree: Tree) -> bool:
    return not isinstance(tree, (Mapping, tuple)) and tree is not None
