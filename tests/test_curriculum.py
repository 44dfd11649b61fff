"""Curricula against simulated successes: where they go, what they draw, and whether they go on from their state."""

from __future__ import annotations

import json
import math
from heapq import heapify, heapreplace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep import (
    LearningProgressCurriculum,
    LowRewardCurriculum,
    StagedCurriculum,
    SuccessRateCurriculum,
    TerrainGrid,
    UniformCurriculum,
)
from twostep.curriculum import CurriculumConfig, make_curriculum
from twostep.curriculum.terrain import LONGEST
from twostep.errors import ConfigError

TASKS = {"short": {"length": 2}, "middle": {"length": 5}, "long": {"length": 9}}
KINDS = {
    "uniform": lambda: UniformCurriculum(TASKS, seed=3),
    "staged": lambda: StagedCurriculum(TASKS),
    "success_rate": lambda: SuccessRateCurriculum(TASKS, history=4),
    "low_reward": lambda: LowRewardCurriculum(TASKS, seed=3),
    "learning_progress": lambda: LearningProgressCurriculum(TASKS, seed=3),
    "terrain_grid": lambda: TerrainGrid(("flat", "stairs"), 3, min_attempts=2, seed=3),
}
DRAWN = ("uniform", "low_reward", "learning_progress")
kinds = pytest.mark.parametrize("kind", KINDS)
scores = st.floats(-100, 100)


def play(curriculum: Any, scores: list[float]) -> list[str]:
    """Complete what is drawn with one score after the other; return what was drawn."""
    drawn = []
    for number, score in enumerate(scores):
        curriculum.set_progress(number / len(scores))
        task = curriculum.get_task()
        task.complete(score)
        drawn.append(task.id())
    return drawn


@kinds
def test_tasks_say_who_they_are(kind: str) -> None:
    """M3: `task.id()`, `.name()`, `.short_name()`, `.env_cfg()`, `.complete(score)`."""
    curriculum = KINDS[kind]()
    task = curriculum.get_task()
    assert task.name() == task.id()
    assert task.id().endswith(task.short_name())
    known = curriculum.grid if kind == "terrain_grid" else TASKS
    assert task.id() in known
    assert kind == "terrain_grid" or task.env_cfg() == TASKS[task.id()]
    task.complete(1.0)
    attempts = {name: value for name, value in curriculum.metrics().items() if "/attempts/" in name}
    assert sum(attempts.values()) == 1


def test_tasks_without_names_are_called_by_their_number() -> None:
    curriculum = StagedCurriculum([{"length": 2}, {"length": 3}], after=[0.5])
    assert curriculum.get_task().id() == "0"
    assert curriculum.get_task().env_cfg() == {"length": 2}


def test_short_names_are_the_last_part() -> None:
    assert UniformCurriculum({"navigation/maze": {}}).get_task().short_name() == "maze"


@kinds
@settings(max_examples=25)
@given(first=st.lists(scores, max_size=40), then=st.lists(scores, max_size=40))
def test_a_state_goes_on_as_if_nothing_had_happened(kind: str, first: list[float], then: list[float]) -> None:
    """M13: what is drawn and measured after loading a state is what would have been; the state is plain JSON."""
    one, other = KINDS[kind](), KINDS[kind]()
    play(one, first)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert str(one.state_dict()) == str(other.state_dict())
    assert play(one, then) == play(other, then)
    assert str(one.state_dict()) == str(other.state_dict())
    assert str(one.metrics()) == str(other.metrics())


@pytest.mark.parametrize("kind", DRAWN)
@settings(max_examples=40)
@given(played=st.lists(st.tuples(st.sampled_from(list(TASKS)), scores), max_size=60))
def test_chances_are_chances(kind: str, played: list[tuple[str, float]]) -> None:
    """Whatever the scores, also negative ones: chances are finite, not negative, and sum to one."""
    curriculum = KINDS[kind]()
    for task, score in played:
        curriculum.complete_task(task, score)
    chances = curriculum.chances()
    assert np.isfinite(chances).all()
    assert (chances >= 0).all()
    assert chances.sum() == pytest.approx(1)
    curriculum.get_task()


@kinds
def test_the_same_seed_draws_the_same(kind: str) -> None:
    assert play(KINDS[kind](), [0.5] * 30) == play(KINDS[kind](), [0.5] * 30)


def test_weights_decide_how_often_tasks_are_drawn() -> None:
    curriculum = UniformCurriculum(TASKS, [1, 0, 3], seed=0)
    drawn = play(curriculum, [0.0] * 4000)
    assert "middle" not in drawn
    assert drawn.count("long") / 4000 == pytest.approx(0.75, abs=0.03)


def test_stages_begin_beyond_their_part_of_training() -> None:
    """J17: level 1, from more than 30 % of training on level 2, from more than 60 % on level 3."""
    curriculum = StagedCurriculum(TASKS)
    levels = {}
    for part in (0.0, 0.3, 0.31, 0.6, 0.61, 1.0, 1.2):
        curriculum.set_progress(part)
        levels[part] = curriculum.get_task().id()
    assert levels == {
        0.0: "short",
        0.3: "short",
        0.31: "middle",
        0.6: "middle",
        0.61: "long",
        1.0: "long",
        1.2: "long",
    }


def test_success_promotes_and_failure_demotes() -> None:
    """J42: promote above 0.8, demote below 0.3, judged by the last 10 episodes of a level."""
    curriculum = SuccessRateCurriculum(TASKS)
    play(curriculum, [1.0] * 9)
    assert curriculum.level == 0, "nine episodes are not enough"
    play(curriculum, [1.0])
    assert curriculum.level == 1
    play(curriculum, [1.0] * 8 + [0.0] * 2)
    assert curriculum.level == 1, "0.8 is not above 0.8"
    play(curriculum, [1.0])
    assert curriculum.level == 1, "the oldest success leaves, the two failures stay"
    play(curriculum, [0.0] * 5)
    assert curriculum.level == 1, "0.3 is not below 0.3"
    play(curriculum, [0.0])
    assert curriculum.level == 0
    assert not curriculum.recent, "a level is judged by its own episodes only"


def test_late_episodes_of_another_level_decide_nothing() -> None:
    curriculum = SuccessRateCurriculum(TASKS, history=2)
    late = [curriculum.get_task() for _ in range(10)]
    for task in late:
        task.complete(1.0)
    assert curriculum.level == 1
    assert not curriculum.recent
    assert curriculum.metrics()["curriculum/attempts/short"] == 10


@settings(max_examples=40)
@given(st.lists(st.floats(0, 1), max_size=200))
def test_levels_stay_among_the_tasks(successes: list[float]) -> None:
    curriculum = SuccessRateCurriculum(TASKS, history=2)
    for success in successes:
        assert curriculum.get_task().id() == list(TASKS)[curriculum.level]
        curriculum.get_task().complete(success)


def test_low_reward_prefers_what_goes_worst_beside_its_best() -> None:
    """M3: the weight is best / mean, and means move by 0.01."""
    curriculum = LowRewardCurriculum(TASKS)
    for task, better, worse in (("short", 1.0, 1.0), ("middle", 1.0, 0.5), ("long", 1.0, 0.0)):
        curriculum.complete_task(task, worse)
        curriculum.complete_task(task, better)
    means = [1.0, 0.5 + 0.005, 0.01]
    expected = np.array([1.01 / (mean + 0.01) for mean in means])
    np.testing.assert_allclose(curriculum.chances(), expected / expected.sum())


def test_low_reward_counts_negative_scores_from_the_worst() -> None:
    curriculum = LowRewardCurriculum({"a": {}, "b": {}})
    for task, score in (("a", -200.0), ("a", -100.0), ("b", -100.0)):
        curriculum.complete_task(task, score)
    a, b = curriculum.chances()
    assert a > b


def test_learning_progress_follows_what_changes() -> None:
    """M3: |fast mean - slow mean|; what is mastered and what is hopeless stand still."""
    curriculum = LearningProgressCurriculum(TASKS, explore=0.0)
    for number in range(50):
        curriculum.complete_task("short", 1.0)
        curriculum.complete_task("middle", number / 50)
        curriculum.complete_task("long", 0.0)
    np.testing.assert_allclose(curriculum.chances(), [0, 1, 0])
    kept = LearningProgressCurriculum(TASKS, explore=0.3)
    kept.load_state_dict(curriculum.state_dict())
    np.testing.assert_allclose(kept.chances(), [0.1, 0.8, 0.1])


def test_what_has_no_score_yet_is_tried() -> None:
    for curriculum in (LearningProgressCurriculum(TASKS, seed=0), LowRewardCurriculum(TASKS, seed=0)):
        curriculum.complete_task("short", 1.0)
        assert set(play(curriculum, [1.0] * 60)) == set(TASKS)


def climb(grid: TerrainGrid, kind: str, scores: list[float]) -> list[int]:
    """Complete a type at its level with one score after the other; return its levels."""
    levels = []
    for score in scores:
        grid.complete_task(f"{kind}/{grid.levels[kind]}", score)
        levels.append(grid.levels[kind])
    return levels


def test_every_terrain_starts_flat() -> None:
    """L26, N22: all types begin at difficulty 0."""
    grid = TerrainGrid(seed=1)
    drawn = [grid.get_task() for _ in range(300)]
    assert {task.env_cfg()["difficulty"] for task in drawn} == {0}
    assert {task.env_cfg()["terrain"] for task in drawn} == set(grid.types)
    np.testing.assert_array_equal(grid.get_difficulty_distribution(), [1.0] + [0.0] * 9)


def test_terrains_climb_and_fall_each_by_its_own_success() -> None:
    """N22: promoted above 0.5, demoted below 0.3, after more than 10 attempts; the other types stay where they are."""
    grid = TerrainGrid(("flat", "stairs"), 3)
    assert climb(grid, "stairs", [1.0] * 11) == [0] * 10 + [1]
    assert grid.levels == {"flat": 0, "stairs": 1}
    assert climb(grid, "stairs", [0.0] * 11) == [1] * 10 + [0]
    assert climb(grid, "stairs", [0.0] * 50)[-1] == 0, "never below the grid"
    np.testing.assert_array_equal(TerrainGrid(("a", "b"), 2).get_difficulty_distribution(), [1.0, 0.0])


def test_between_the_limits_nothing_moves() -> None:
    """N22: a type that succeeds in 40 % of its attempts stays."""
    grid = TerrainGrid(("stairs",), 3)
    climb(grid, "stairs", [1.0] * 11)
    assert set(climb(grid, "stairs", [1.0, 0.0, 0.0, 1.0, 0.0] * 40)) == {1}
    assert grid.grid["stairs/1"].attempts <= LONGEST


def test_success_without_distance_is_not_enough() -> None:
    """L26: a mean displacement of at most the limit keeps a type where it is."""
    grid = TerrainGrid(("stairs",), 3, success_at=0.4)
    assert set(climb(grid, "stairs", [0.45] * 60)) == {0}
    assert set(climb(grid, "stairs", [0.9] * 11)) > {0}


def test_a_solved_terrain_goes_on_from_a_random_level() -> None:
    """L26, N22: whoever masters the highest level is put anywhere on its row."""
    landed = set()
    for seed in range(40):
        grid = TerrainGrid(("stairs",), 3, seed=seed)
        levels = climb(grid, "stairs", [1.0] * 33)
        assert levels[21] == 2
        assert grid.metrics()["curriculum/solved/stairs"] == 1
        landed.add(levels[-1])
    assert landed == {0, 1, 2}


@pytest.mark.parametrize("success", [0.7, 0.9])
def test_a_level_is_not_judged_by_the_episodes_that_end_first(success: float) -> None:
    """L26, N22: of 4096 robots those that fall are back long before those that succeed, and say nothing of them."""
    grid, random, rows = TerrainGrid(("stairs", "gaps"), 10, seed=0), np.random.default_rng(0), 4096
    levels: list[dict[str, int]] = [dict(grid.levels)]

    def begin(row: int, now: float) -> tuple[float, int, Any, bool]:
        succeeds = bool(random.random() < success)
        return now + (1.0 if succeeds else 0.1 * float(random.random())), row, grid.get_task(), succeeds

    running = [begin(row, 0.0) for row in range(rows)]
    heapify(running)
    while running[0][0] < 4:
        now, row, task, succeeds = running[0]
        task.complete(0.95 if succeeds else 0.1)
        heapreplace(running, begin(row, now))
        if grid.levels != levels[-1]:
            levels.append(dict(grid.levels))
    for kind in grid.types:
        assert [now[kind] for now in levels] == sorted(now[kind] for now in levels), "never demoted"
        assert 2 <= grid.levels[kind] <= 5, "about once in an episode"
    assert sum(cell.running for cell in grid.grid.values()) == rows


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 1), st.floats(-1, 2)), max_size=100), st.integers(1, 4))
def test_never_outside_of_the_grid(played: list[tuple[int, float]], num_levels: int) -> None:
    """N22: whatever the scores, every type has a level that exists, and all are accounted for."""
    grid = TerrainGrid(("flat", "stairs"), num_levels, min_attempts=1, seed=0)
    for which, score in played:
        climb(grid, grid.types[which], [score])
        assert all(0 <= level < num_levels for level in grid.levels.values())
        assert grid.get_task().id() in grid.grid
    assert grid.get_difficulty_distribution().sum() == pytest.approx(1)


def test_statistics_of_every_type_are_exported() -> None:
    """L26, N22: level, attempts, success and displacement by type."""
    grid = TerrainGrid(("flat", "stairs"), 3)
    climb(grid, "flat", [1.0, 0.0])
    metrics = grid.metrics()
    assert metrics["curriculum/attempts/flat"] == 2
    assert metrics["curriculum/success/flat"] == 0.5
    assert metrics["curriculum/displacement/flat"] == pytest.approx(0.9)
    assert math.isnan(metrics["curriculum/success/stairs"])
    assert metrics["curriculum/level"] == metrics["curriculum/level/stairs"] == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: UniformCurriculum({}), "tasks is empty"),
        (lambda: UniformCurriculum(TASKS, [1, 2]), "a number for each of 3 tasks"),
        (lambda: UniformCurriculum(TASKS, [0, 0, 0]), "not all 0"),
        (lambda: StagedCurriculum(TASKS, [0.5]), "2 rising parts"),
        (lambda: StagedCurriculum(TASKS, [0.6, 0.3]), "rising"),
        (lambda: SuccessRateCurriculum(TASKS, history=0), "history=0"),
        (lambda: SuccessRateCurriculum(TASKS, demote_below=0.9), "must not be above promote_above=0.8"),
        (lambda: LowRewardCurriculum(TASKS, rate=2), "rate=2 must be between 0 and 1"),
        (lambda: LearningProgressCurriculum(TASKS, slow=0.5), "below fast"),
        (lambda: LearningProgressCurriculum(TASKS, explore=-1), "explore=-1"),
        (lambda: TerrainGrid(()), "one or more names"),
        (lambda: TerrainGrid(("a", "a")), "each once"),
        (lambda: TerrainGrid(num_levels=0), "num_levels=0"),
        (lambda: TerrainGrid(demote_below=0.7), "between 0 and 0.5"),
        (lambda: SuccessRateCurriculum(TASKS).complete_task("lang", 1), "no task 'lang'.*short, middle, long"),
        (lambda: SuccessRateCurriculum(TASKS).complete_task("long", math.nan), "must be finite"),
        (lambda: TerrainGrid().complete_task("flat/10", 1), "no task 'flat/10'"),
        (lambda: UniformCurriculum(TASKS).load_state_dict(UniformCurriculum({"a": 1}).state_dict()), "the same tasks"),
        (lambda: TerrainGrid().load_state_dict(TerrainGrid(("flat",)).state_dict()), "the same types"),
    ],
)
def test_what_cannot_work_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@kinds
def test_settings_describe_every_kind(kind: str) -> None:
    curriculum = make_curriculum(CurriculumConfig(kind=kind, tasks=TASKS), seed=0)
    assert type(curriculum) is type(KINDS[kind]())


def test_settings_without_a_curriculum_make_none() -> None:
    assert make_curriculum(CurriculumConfig()) is None
    with pytest.raises(ConfigError, match=r"tasks={}.*kind='uniform'"):
        CurriculumConfig(kind="uniform")
