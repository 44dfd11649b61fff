"""Where matches take place."""

from __future__ import annotations

import numpy as np
import pytest

from twostep.worlds.skirmish import CLASSES, EnvConfig
from twostep.worlds.skirmish.arena import draw_arena


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("config", [EnvConfig(), EnvConfig(size=30.0, walls=30, team=("heavy",) * 4, zone_radius=7.5)])
def test_arenas_are_the_same_for_both_teams_and_leave_room(config: EnvConfig, seed: int) -> None:
    """A half turn of the arena swaps its walls; starting places and the zone are free, and gaps wide enough."""
    arena = draw_arena(config, seed)
    widest = max(CLASSES[name].radius for name in config.team)
    turned = config.size - arena.walls[:, [2, 3, 0, 1]]
    for wall in turned:
        assert np.abs(arena.walls - wall).max(axis=1).min() < 1e-4
    for at, wall in enumerate(arena.walls):
        outside_x = np.maximum(wall[0] - arena.x, arena.x - wall[2])
        outside_y = np.maximum(wall[1] - arena.y, arena.y - wall[3])
        assert (np.maximum(outside_x, outside_y) >= widest).all()
        middle = config.size / 2
        apart = np.hypot(*(middle - np.clip(middle, wall[[0, 1]], wall[[2, 3]])))
        assert apart > config.zone_radius
        for other in np.delete(arena.walls, at, axis=0):
            gap = max(other[0] - wall[2], wall[0] - other[2], other[1] - wall[3], wall[1] - other[3])
            assert gap > 2 * widest
    depth = np.stack([arena.x[0], config.size - arena.x[1]]) / config.size
    assert ((depth >= 0.05 - 1e-6) & (depth <= 0.13 + 1e-6)).all()
    height = arena.y / config.size
    assert ((height >= 0.2 - 1e-6) & (height <= 0.8 + 1e-6)).all()


def test_seeds_draw_different_arenas() -> None:
    walls = [draw_arena(EnvConfig(), seed).walls.tolist() for seed in range(10)]
    assert len({str(wall) for wall in walls}) == 10
