"""Expressions of the world symbolic: always valid, always within limits, worth what they say, written as they mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.errors import ConfigError
from twostep.worlds.symbolic import LAWS, OPERATORS, Dataset, Grammar, Limits
from twostep.worlds.symbolic.drafts import Drafts
from twostep.worlds.symbolic.machine import fit, quality, values
from twostep.worlds.symbolic.writing import infix, scaled

SCALAR = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "square": lambda a: a * a,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "sin": math.sin,
    "cos": math.cos,
}
ALL = Grammar(3, (1.0, 2.0), tuple(OPERATORS), Limits(15, 20, 7))
NAMES = ("a", "b", "c")


@st.composite
def grammars(draw):
    operators = draw(st.lists(st.sampled_from(list(OPERATORS)), unique=True))
    variables = draw(st.integers(0, 4))
    constants = tuple(float(number) for number in range(draw(st.integers(0 if variables else 1, 3))))
    limits = Limits(draw(st.integers(1, 20)), draw(st.integers(1, 30)), draw(st.integers(1, 8)))
    return Grammar(variables, constants, tuple(operators), limits)


def written(grammar, rows, seed):
    """Write expressions at random under the mask, and say how deep each went."""
    drafts, rng = Drafts(grammar, rows), np.random.default_rng(seed)
    deepest = np.zeros(rows, dtype=int)
    while drafts.open.any():
        allowed = drafts.allowed()
        assert allowed.any(1).all()
        going = np.flatnonzero(drafts.open)
        deepest[going] = np.maximum(deepest, drafts.depth)[going]
        tokens = np.where(allowed, rng.random(allowed.shape), -1).argmax(1)
        drafts.write(going, tokens[going])
    return drafts, deepest


def read(grammar, words):
    """Take one expression off the front of the words, as nested lists: an independent reading of the grammar."""
    word = words.pop(0)
    return [word, *(read(grammar, words) for _ in range(OPERATORS[word].arity if word in OPERATORS else 0))]


def scalar(tree, point):
    """Work one expression out at one point by recursion; None where it has no value."""
    word, *parts = tree
    if not parts:
        return point[int(word[1:])] if word.startswith("x") else float(word)
    inner = [scalar(part, point) for part in parts]
    if None in inner:
        return None
    try:
        value = SCALAR[word](*inner)
    except (ArithmeticError, ValueError):
        return None
    return value if math.isfinite(value) else None


def size(tree):
    word, *parts = tree
    depth = 1 + max((size(part)[1] for part in parts), default=0)
    cost = (OPERATORS[word].complexity if word in OPERATORS else 1) + sum(size(part)[0] for part in parts)
    return cost, depth


@settings(max_examples=60, deadline=None)
@given(grammar=grammars(), seed=st.integers(0, 2**32 - 1))
def test_every_masked_sequence_is_a_whole_expression_within_its_limits(grammar, seed):
    """JB14: whatever was allowed, the rest fits; the mask is never empty; sizes are what a reader counts."""
    drafts, deepest = written(grammar, 16, seed)
    for row in range(16):
        tokens = drafts.tokens[row, : drafts.length[row]]
        words = [grammar.words[token] for token in tokens]
        tree = read(grammar, words)
        assert not words, "nothing is left over"
        cost, depth = size(tree)
        assert (cost, depth) == (drafts.complexity[row], deepest[row])
        assert len(tokens) <= grammar.limits.tokens
        assert cost <= grammar.limits.complexity
        assert depth <= grammar.limits.depth
        assert grammar.parse(tuple(grammar.words[token] for token in tokens)).tolist() == tokens.tolist()


def test_the_mask_forbids_nothing_that_would_fit():
    """Each forbidden token would break a limit even with the smallest rest."""
    grammar = Grammar(1, (), ("add", "sin"), Limits(5, 5, 3))
    add, sin = grammar.words.index("add"), grammar.words.index("sin")
    drafts = Drafts(grammar, 1)
    row = np.array([0])
    assert drafts.allowed().all()
    drafts.write(row, np.array([add]))
    assert drafts.allowed().all(), "add add x x x: 5 tokens, and add sin x x costs 5"
    drafts.write(row, np.array([sin]))
    assert drafts.allowed()[0].tolist() == [True, False, False], "a second sin would cost 7"
    drafts.write(row, np.array([0]))
    assert drafts.allowed()[0].tolist() == [True, False, False]


def test_parent_and_sibling_are_those_of_the_next_place():
    drafts = Drafts(ALL, 1)
    seen = []
    for word in ("add", "mul", "x0", "sqrt", "x1", "sin", "x2"):
        name = [ALL.words[token] if token >= 0 else None for token in (drafts.parent[0], drafts.sibling[0])]
        seen.append((word, *name, int(drafts.depth[0])))
        drafts.write(np.array([0]), np.array([ALL.words.index(word)]))
    assert seen == [
        ("add", None, None, 1),
        ("mul", "add", None, 2),
        ("x0", "mul", None, 3),
        ("sqrt", "mul", "x0", 3),
        ("x1", "sqrt", None, 4),
        ("sin", "add", "mul", 2),
        ("x2", "sin", None, 3),
    ]
    assert drafts.open[0] == 0


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_values_are_those_of_a_recursion_by_hand(seed):
    """Many at once against one at a time at one point at a time."""
    drafts, _ = written(ALL, 32, seed)
    inputs = np.random.default_rng(seed).uniform(-2, 2, (3, 4))
    said = values(ALL, drafts.tokens, inputs)
    for row in range(32):
        tree = read(ALL, [ALL.words[token] for token in drafts.tokens[row, : drafts.length[row]]])
        for point in range(4):
            expected = scalar(tree, inputs[:, point].tolist())
            if expected is not None:
                assert said[row, point] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_what_is_written_means_what_was_evaluated(seed):
    """Read as Python, with `^` for powers, every expression gives the values that it was judged by."""
    drafts, _ = written(ALL, 8, seed)
    inputs = np.random.default_rng(seed).uniform(0.5, 2, (3, 5))
    said = values(ALL, drafts.tokens, inputs)
    functions = {name: getattr(np, name) for name in ("sqrt", "exp", "log", "sin", "cos")}
    for row in range(8):
        text = infix(ALL, drafts.tokens[row], NAMES)
        with np.errstate(all="ignore"):
            there = eval(text.replace("^", "**"), functions | dict(zip(NAMES, inputs, strict=True)))
        usable = np.isfinite(said[row])
        assert np.broadcast_to(there, 5)[usable] == pytest.approx(said[row][usable], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("mul x0 sqrt x0", "a * sqrt(a)"),
        ("div x0 mul x1 x2", "a / (b * c)"),
        ("mul div x0 x1 x2", "a / b * c"),
        ("sub x0 sub x1 x2", "a - (b - c)"),
        ("square add x0 1", "(a + 1)^2"),
        ("square square x0", "(a^2)^2"),
        ("mul add x0 x1 neg x2", "(a + b) * (-c)"),
        ("neg mul x0 x1", "-(a * b)"),
        ("exp neg x0", "exp(-a)"),
    ],
)
def test_expressions_are_written_with_no_more_brackets_than_needed(words, text):
    assert infix(ALL, ALL.parse(tuple(words.split())), NAMES) == text


def test_a_factor_stands_in_front():
    assert scaled(1.0, "a + b") == "a + b"
    assert scaled(6.2832, "sqrt(l / g)") == "6.283 * sqrt(l / g)"
    assert scaled(6.674e-11, "a + b") == "6.6740e-11 * (a + b)"


def test_fitting_finds_the_best_factor_and_tells_how_much_is_left():
    """Against a search over factors; a constant explains nothing, and no value is as bad as can be."""
    rng = np.random.default_rng(0)
    targets = rng.normal(2.0, 1.0, 50)
    said = np.stack([targets * 3, targets + rng.normal(0, 0.1, 50), np.ones(50), np.full(50, np.nan), np.zeros(50)])
    found = fit(said, targets, scaled=True)
    assert found.scale[0] == pytest.approx(1 / 3)
    assert found.error[0] == pytest.approx(0.0, abs=1e-12)
    for factor in np.linspace(0.5, 1.5, 101):
        assert found.error[1] <= np.sqrt(np.mean((targets - factor * said[1]) ** 2)) / targets.std() + 1e-12
    assert found.error[2] == pytest.approx(1.0)
    assert np.isinf(found.error[3:]).all()
    assert quality(found.error)[[0, 2, 3]].tolist() == pytest.approx([1, 0, 0])
    unscaled = fit(said, targets, scaled=False)
    assert unscaled.scale[:3].tolist() == pytest.approx([1, 1, 1])
    assert unscaled.error[0] > 1


def test_huge_and_tiny_values_are_fitted_without_overflow():
    targets = np.linspace(1, 2, 9)
    found = fit(np.stack([targets * 1e140, targets * 1e-140, targets * 1e160]), targets, scaled=True)
    assert found.error[:2] == pytest.approx([0, 0], abs=1e-9)
    assert np.isinf(found.error[2])


EXACT_WORDS = {
    "free_fall": "mul x0 square x1",
    "kepler": "mul x0 sqrt x0",
    "pendulum": "sqrt div x0 x1",
    "ideal_gas": "div mul x0 x1 x2",
    "gravity": "div mul x0 x1 square x2",
    "orbit": "mul x0 sqrt div x0 x1",
    "lens": "div x0 add 1 div x0 x1",
    "lorentz": "div x0 sqrt sub 1 square x1",
    "oscillator": "add mul x0 square x1 mul x2 square x3",
    "throw": "mul x1 sub x0 div mul x2 x1 2",
    "damped": "div mul x0 cos x2 exp mul x1 x2",
    "radiation": "div mul x0 square x0 sub exp div x0 x1 1",
}


@pytest.mark.parametrize("law", LAWS)
def test_every_law_can_be_said(law):
    """With the default words and limits, and the data of another day are explained by the same expression."""
    from twostep.worlds.symbolic import SymbolicConfig

    grammar = SymbolicConfig(law=law).grammar
    tokens = grammar.parse(tuple(EXACT_WORDS[law].split()))
    assert len(tokens) <= grammar.limits.tokens
    for seed in (0, 1):
        data = LAWS[law].dataset(64, seed)
        assert fit(values(grammar, tokens[None], data.inputs), data.targets, scaled=True).error[0] <= data.tolerance


def test_laws_are_measured_the_same_way_for_the_same_seed():
    one, same, other = (LAWS["orbit"].dataset(32, seed) for seed in (3, 3, 4))
    assert np.array_equal(one.inputs, same.inputs)
    assert not np.array_equal(one.inputs, other.inputs)
    assert one.target == "T"


def test_data_and_words_that_cannot_be_used_are_refused():
    """J38: by the name of the data and the way out."""
    with pytest.raises(ConfigError, match=r"Transpose"):
        Dataset("mine", ("a",), np.ones((5, 1)), np.arange(5.0))
    with pytest.raises(ConfigError, match="not finite"):
        Dataset("mine", ("a",), np.ones((1, 2)), np.array([1, np.inf]))
    with pytest.raises(ConfigError, match="every constant"):
        Dataset("mine", ("a",), np.ones((1, 5)), np.ones(5))
    with pytest.raises(ConfigError, match="whole expression"):
        ALL.parse(("add", "x0"))
    with pytest.raises(ConfigError, match="whole expression"):
        ALL.parse(("x0", "x0"))
    with pytest.raises(ConfigError, match="'tan' is no word"):
        ALL.parse(("tan", "x0"))
