"""Walking robots on grids of terrains: every cell is played as often as any other, and told apart."""

from collections import Counter

import pytest
from PIL import Image

from twostep import PPOTrainer, make_env
from twostep.cli import main
from twostep.cli.evaluations import Evaluations
from twostep.cli.terrains import cells_of
from twostep.config import TrainingConfig
from twostep.evaluation.intervals import mean_interval, rate_interval
from twostep.evaluation.terrain_picture import plot_terrains
from twostep.evaluation.terrains import MEASURES, TerrainScores, evaluate_terrains
from twostep.policies.actor_critic import make_policy
from twostep.stats.sinks import read_rows

pytest.importorskip("mujoco")


def ended(terrain, difficulty, success, distance=1.0, fell=False):
    numbers = {"success": success, "distance": distance, "velocity_error": 0.1, "yaw_rate_error": 0.2, "fell": fell}
    return {"terrain": terrain, "difficulty": difficulty, **numbers}


def test_scores_are_told_by_type_with_intervals():
    """L26: success, distance, errors of tracking and falls of each type of terrain."""
    infos = [ended("flat", 0, True, distance) for distance in (1.0, 2.0, 6.0)]
    infos += [ended("stairs", 1, False, 0.5, fell=True), ended("stairs", 2, True, 1.5)]
    scores = TerrainScores([("flat", 0), ("stairs", 1), ("stairs", 2)], infos)
    assert scores.values("distance", "stairs") == [0.5, 1.5]
    assert scores.values("success", "stairs", 2) == [1.0]
    assert scores.success == pytest.approx(4 / 5)
    success, distance, *_ = MEASURES
    assert success.interval([1.0, 0.0]) == (0.5, rate_interval(0.5, 2))
    assert distance.interval([1.0, 2.0, 6.0]) == (3.0, mean_interval([1.0, 2.0, 6.0]))
    heading, flat, stairs, whole = scores.table().splitlines()
    assert "velocity error, m/s" in heading
    assert "100%" in flat
    assert "3.00" in flat
    assert "50%" in stairs
    assert whole.split()[:3] == ["all", "5", "80%"]


def test_every_cell_is_played_as_often():
    """L26: also where there are fewer rows than episodes."""
    cells = [("flat", 0), ("stairs", 1), ("stairs", 2)]

    def make(rows):
        made.append(rows)
        return make_env("quadruped", rows, 0, terrains=["flat", "stairs"], num_levels=3, max_seconds=0.1, threads=1)

    made: list[int] = []
    policy = make_policy(make(1), seed=0)
    scores = evaluate_terrains(policy, make, cells, 10, most_rows=6)
    assert made[1:] == [6]
    played = Counter((info["terrain"], info["difficulty"]) for info in scores.infos)
    assert played == dict.fromkeys(cells, 4)


def test_what_was_trained_is_what_is_played():
    kwargs = {"terrains": ["flat", "gaps"], "num_levels": 4, "levels": [1, 2]}
    plain = TrainingConfig.from_dict({"env": {"id": "quadruped", "kwargs": kwargs}})
    assert cells_of(plain) == [("flat", 1), ("gaps", 1), ("gaps", 2)]
    taught = TrainingConfig.from_dict({"env": {"id": "quadruped", "kwargs": kwargs}, "curriculum": "terrain_grid"})
    assert cells_of(taught) == [("flat", 0), *(("gaps", level) for level in range(4))]


def test_the_grid_is_a_picture(tmp_path):
    infos = [ended("flat", 0, True), *(ended("gaps", level, level < 2) for level in range(4))]
    scores = TerrainScores([("flat", 0), *(("gaps", level) for level in range(4))], infos)
    path = plot_terrains(scores, tmp_path / "deep" / "terrains.png")
    picture = Image.open(path).convert("RGB")
    colors = picture.getcolors(2**20)
    assert colors is not None
    common = [color for count, color in colors if count > 500]
    assert any(green > 1.2 * red for red, green, _ in common), "successes are green"
    assert any(red > 2 * green for red, green, _ in common), "failures are red"


def test_the_command_tells_of_terrains(tmp_path, capsys):
    """L26: from training to the table and the picture in the run's folder."""
    words = ["train", "quadruped", "--num_envs", "4", "--total_timesteps", "64", "--rollout_steps", "16"]
    world = {"terrains": "flat,stairs", "num_levels": "3", "levels": "0,1", "max_seconds": "0.1", "threads": "1"}
    for name, value in world.items():
        words += [f"--env.kwargs.{name}", value]
    assert main([*words, "--run_dir", str(tmp_path), "--no_tensorboard", "--no_progress"]) == 0
    capsys.readouterr()
    assert main(["eval", str(tmp_path), "--episodes", "6"]) == 0
    said = capsys.readouterr().out
    assert "6 episodes of quadruped, 95 % intervals" in said
    assert "stairs  4" in said
    assert len(list(tmp_path.glob("*/terrains.png"))) == 1


def test_evaluations_on_the_way_are_of_all_terrains(tmp_path):
    """L26: the best agent is that of whole episodes on every type and difficulty, not that of flat ground."""
    kwargs = {"terrains": ["flat", "stairs"], "num_levels": 2, "max_seconds": 0.1, "threads": 1}
    config = TrainingConfig.from_dict(
        {"env": {"id": "quadruped", "kwargs": kwargs | {"chance": {"bodies": 1}}}, "curriculum": "terrain_grid"}
        | {"num_envs": 2, "eval_every": 1, "eval_episodes": 6}
    )
    env = make_env("quadruped", 2, 0, **config.env.kwargs)
    evaluations = Evaluations(config, tmp_path)
    assert evaluations.run(PPOTrainer(make_policy(env, seed=0), env, device="cpu"))
    evaluations.close()
    env.close()
    (row,) = read_rows(tmp_path / "evaluations.jsonl")
    assert {"success/flat", "success/stairs", "progress", "fell"} <= set(row)
    assert row["score"] == row["success"]
    assert row["episodes"] == 6
    assert evaluations.best == (row["success"], row["progress"])
