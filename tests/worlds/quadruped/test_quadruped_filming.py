"""Robots as pictures: the one that is asked for, on the ground where it is; or a word about what is missing."""

from types import SimpleNamespace

import numpy as np
import pytest

from twostep import EnvError, make_env
from twostep.cli import main
from twostep.cli.terrains import hardest
from twostep.evaluation.terrains import TerrainScores
from twostep.worlds.quadruped import Film, filming

pytest.importorskip("mujoco")
WORLD = {"terrains": ["flat", "stairs"], "num_levels": 3, "threads": 1, "chance": {"phase": False}}


@pytest.fixture
def filmed():
    env = make_env("quadruped", 2, 0, **WORLD)
    env.assign({0: {"terrain": "flat", "difficulty": 0}, 1: {"terrain": "stairs", "difficulty": 2}})
    env.reset(0)
    try:
        film = Film(env.world.terrain, env.world.physics)
    except EnvError as error:
        pytest.skip(str(error))
    yield env, film
    film.close()
    film.close()
    env.close()


def share_of(pixels, color):
    """Return the part of a picture that has about this colour, in any light."""
    direction = pixels / np.linalg.norm(pixels + 1e-6, axis=-1, keepdims=True)
    return float((direction @ (np.array(color) / np.linalg.norm(color)) > 0.995).mean())


def test_a_picture_shows_the_robot_where_it_is(filmed):
    """The trunk is blue; on stairs there is less sky, and what moves looks otherwise."""
    env, film = filmed
    flat, stairs = film.picture(0), film.picture(1)
    assert flat.shape == (filming.HEIGHT, filming.WIDTH, 3)
    assert flat.dtype == np.uint8
    for pixels in (flat, stairs):
        assert 0.005 < share_of(pixels.astype(float), (0.12, 0.37, 0.66)) < 0.2
    assert not np.array_equal(flat, stairs)
    for _ in range(10):
        env.step(np.full((2, 12), 0.5))
    assert not np.array_equal(flat, film.picture(0))
    again = film.picture(1)
    assert np.array_equal(again, film.picture(1)) or np.abs(again.astype(int) - film.picture(1)).mean() < 5.0


def test_the_ground_of_a_cell_is_that_of_the_world():
    env = make_env("quadruped", 1, 0, **WORLD)
    terrain = env.world.terrain
    cell = filming.Cell(terrain, 1, 2)
    places = np.random.default_rng(0).uniform(0.0, filming.CELL, (2, 100))
    corner = np.array([[2 * filming.CELL], [1 * filming.CELL]])
    np.testing.assert_allclose(cell.height(*places), terrain.height(*(places + corner)), atol=1e-4)
    assert not cell.is_flat
    assert filming.Cell(terrain, 0, 2).is_flat
    env.close()


def test_what_is_missing_for_drawing_is_said(monkeypatch):
    def missing(name):
        raise ImportError(f"no {name}\nhere")

    monkeypatch.setattr(filming, "import_module", missing)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    nothing = SimpleNamespace()
    with pytest.raises(EnvError, match=r"egl: no mujoco.egl here; osmesa: no mujoco.osmesa here. Install EGL"):
        Film(nothing, nothing)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(EnvError, match=r"without a screen: osmesa: no mujoco.osmesa here. Install EGL"):
        Film(nothing, nothing)


def test_the_command_films_every_type(tmp_path, capsys, filmed):
    """From a run to the grid of successes and a film in its folder."""
    words = ["train", "quadruped", "--num_envs", "2", "--total_timesteps", "32", "--rollout_steps", "16"]
    for name, value in {"terrains": "flat,stairs", "num_levels": "2", "max_seconds": "0.2", "threads": "1"}.items():
        words += [f"--env.kwargs.{name}", value]
    assert main([*words, "--run_dir", str(tmp_path), "--no_tensorboard", "--no_progress"]) == 0
    capsys.readouterr()
    assert main(["play", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "stairs  2" in said
    assert len(list(tmp_path.glob("*/terrains.gif"))) == len(list(tmp_path.glob("*/terrains.png"))) == 1


def test_what_is_filmed_is_as_hard_as_it_goes():
    cells = [("stairs", level) for level in range(4)]
    infos = [
        {"terrain": "stairs", "difficulty": level, "success": wins}
        for level, wins in ((0, True), (1, False), (2, True), (3, False))
    ]
    assert hardest(TerrainScores(cells, infos), "stairs") == ("stairs", 2)
    assert hardest(TerrainScores(cells, [info | {"success": False} for info in infos]), "stairs") == ("stairs", 0)
