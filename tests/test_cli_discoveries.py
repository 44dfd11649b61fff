"""Training that looks for one law stops once it is written."""

from __future__ import annotations

import numpy as np
import pytest

from twostep import make_env
from twostep.cli.discoveries import is_found


@pytest.mark.parametrize(("law", "searched", "found"), [("kepler", "kepler", True), ("kepler", ["kepler"], False)])
def test_the_search_for_one_law_ends_with_it(law, searched, found):
    """Kepler's law is short enough for chance to write it; a search for several is never over before its end."""
    env = make_env("symbolic", 64, seed=0, law=law)
    step = env.reset()
    assert not is_found(searched, env)
    generator = np.random.default_rng(0)
    for _ in range(600):
        chances = step.action_masks * generator.random(step.action_masks.shape)
        step = env.step(chances.argmax(-1))
        if is_found("kepler", env):
            break
    assert is_found(searched, env) == found
