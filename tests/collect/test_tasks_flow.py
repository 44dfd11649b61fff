"""Tasks of a curriculum go down with resets and come up with episodes."""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from twostep import (
    LearningProgressCurriculum,
    PPOTrainer,
    RolloutCollector,
    StagedCurriculum,
    SuccessRateCurriculum,
    TerrainGrid,
    UniformCurriculum,
    VectorEnv,
    load_rollouts,
    make_env,
    make_policy,
    save_rollouts,
)
from twostep.errors import ConfigError, EnvError, TwostepError
from twostep.worlds.lock import CombinationLock

LOCKS = {str(length): {"length": length} for length in (1, 2, 3)}


def collector(env: Any, curriculum: Any, **settings: Any) -> RolloutCollector:
    settings = {"seed": 0, "env_seed": 0, "num_steps": 64} | settings
    return RolloutCollector(env, make_policy(env, seed=0), curriculum=curriculum, **settings)


def locks(**settings: Any) -> Any:
    return make_env(lambda: CombinationLock(3), 4, 0, **settings)


class Recorded(UniformCurriculum):
    """Remembers what came up."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.completed: list[tuple[str, float]] = []

    def complete_task(self, id: str, score: float) -> None:
        self.completed.append((id, score))
        super().complete_task(id, score)


def test_every_episode_carries_the_task_that_it_played() -> None:
    """J42, M3: an episode's task is the one its environment was told at its reset, and its score reaches that task."""
    curriculum = Recorded(LOCKS, seed=0)
    collecting = collector(locks(), curriculum)
    for _ in range(3):
        rollout = collecting.rollout()
        for episode in rollout.episodes:
            shown = rollout.obs[episode.step, episode.row, -1].item()
            assert episode.task is not None
            assert round(shown * 3) == LOCKS[episode.task]["length"]
        assert curriculum.completed == [(episode.task, episode.ret) for episode in rollout.episodes]
        curriculum.completed.clear()
    assert {episode.task for episode in rollout.episodes} == set(LOCKS)


def test_a_score_may_be_a_number_of_the_info_or_a_function() -> None:
    for score, expected in (("success", lambda one: one.ret), (lambda one: -one.length, lambda one: -one.length)):
        curriculum = Recorded(LOCKS, seed=0)
        rollout = collector(locks(), curriculum, task_score=score).rollout()
        assert curriculum.completed == [(one.task, expected(one)) for one in rollout.episodes]
    with pytest.raises(EnvError, match=r"no 'won' to score it by, only.*'success'"):
        collector(locks(), Recorded(LOCKS), task_score="won").rollout()


def test_episodes_without_a_curriculum_have_no_task(tmp_path: Any) -> None:
    assert {one.task for one in collector(locks(), None).rollout().episodes} == {None}
    rollout = collector(locks(), UniformCurriculum(LOCKS, seed=0)).rollout()
    save_rollouts(rollout, tmp_path / "one.safetensors")
    kept = load_rollouts(tmp_path / "one.safetensors")
    assert [one.task for one in kept.episodes] == [one.task for one in rollout.episodes]


@pytest.mark.parametrize("num_workers", [1, 3])
def test_any_number_of_workers_gives_the_same(num_workers: int) -> None:
    """J42: what is drawn, played and learned from does not depend on where environments run."""
    results = []
    for workers in (0, num_workers):
        env = locks(num_workers=workers)
        try:
            curriculum = SuccessRateCurriculum(LOCKS, history=3, promote_above=0.5, demote_below=0.0)
            trainer = PPOTrainer(
                make_policy(env, seed=0), env, curriculum=curriculum, seed=0, n_epochs=1, rollout_steps=32, device="cpu"
            )
            trainer.train(4 * 32 * 4)
            weights = [parameter.detach().numpy().tobytes() for parameter in trainer.policy.parameters()]
            results.append((curriculum.state_dict(), weights))
        finally:
            env.close()
    assert str(results[0]) == str(results[1])
    assert results[0][0]["level"] > 0


def test_what_is_broken_off_is_not_completed() -> None:
    """J42: an episode that a failure has cut short says nothing about its task; the next one plays the task to come."""
    curriculum = Recorded({str(length): {"length": length} for length in (30, 40)}, seed=0)
    with VectorEnv(2, lambda: CombinationLock(40, 2), num_workers=2, restarts=2, start_method="forkserver") as env:
        collecting = collector(env, curriculum, num_steps=1)
        collecting.rollout()
        rows = collecting.tasks
        assert rows is not None
        to_come = rows.coming[1].id()
        curriculum.completed.clear()
        os.kill(env.pids[1], signal.SIGKILL)
        rollout = collecting.rollout()
        assert not rollout.valid[0, 1]
        assert 1 not in [episode.row for episode in rollout.episodes]
        assert rows.playing[1].id() == to_come
        assert round(40 * collecting.step.obs[1, -1]) == int(to_come)


class Walk(gym.Env[np.ndarray, int]):
    """Goes as far as its difficulty lets it: all the way at 0, half at 1, nowhere at 2."""

    observation_space = spaces.Box(-1, 5, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.task = {"difficulty": 0}

    def set_task(self, task: dict[str, Any]) -> None:
        self.task = task

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        done = self.t == 3
        way = {0: 1.0, 1: 0.5, 2: 0.0}[self.task["difficulty"]] if done else 0.0
        return np.zeros(1, dtype=np.float32), 1.0, False, done, {"displacement": way}


def test_a_terrain_grid_climbs_by_what_environments_report() -> None:
    """L26, N22: per-type levels follow the displacement that the last infos say."""
    grid = TerrainGrid(("flat", "stairs"), 3, min_attempts=3, seed=0)
    env = make_env(lambda: Walk(), 4, 0)
    collecting = collector(env, grid, task_score="displacement")
    seen = set()
    for _ in range(12):
        collecting.rollout()
        seen.add(tuple(grid.levels.values()))
    assert (1, 1) in seen or (1, 0) in seen
    assert max(max(levels) for levels in seen) == 1, "halfway is no success"


class Pair:
    """Two agents that see their level; `b` ends a step before `a`, with whom the environment begins anew."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self.possible_agents, self.agents, self.level = ["a", "b"], [], 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return Walk.observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return Walk.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.level, self.t, self.agents = (options or {}).get("level", 0), 0, ["a", "b"]
        return self.seen(), {agent: {} for agent in self.agents}

    def seen(self) -> dict[str, Any]:
        return {agent: np.array([self.level], dtype=np.float32) for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        self.t += 1
        there, seen = self.agents, self.seen()
        ends = {agent: self.t >= (3 if agent == "a" else 2) for agent in there}
        self.agents = [agent for agent in there if not ends[agent]]
        rewards = dict.fromkeys(there, float(self.level))
        return seen, rewards, ends, dict.fromkeys(there, False), {agent: {} for agent in there}


def test_agents_of_one_environment_play_one_task_each_with_a_score_of_its_own() -> None:
    """M3: with many agents the episode of each counts, and a task changes only where all begin anew."""
    curriculum = Recorded({"one": {"level": 1}, "two": {"level": 2}}, seed=0)
    rollout = collector(make_env(Pair, 2, 0), curriculum, num_steps=12).rollout()
    assert len(rollout.episodes) == 2 * 2 * 4
    for episode in rollout.episodes:
        length = 3 if episode.row % 2 == 0 else 2
        assert (episode.length, episode.ret) == (length, length * {"one": 1, "two": 2}[episode.task or ""])
    by_time = {(one.row, one.step): one.task for one in rollout.episodes}
    assert all(by_time[row - 1, step + 1] == task for (row, step), task in by_time.items() if row % 2)
    assert {task for task, _ in curriculum.completed} == {"one", "two"}


def test_a_vector_that_cannot_be_told_is_refused() -> None:
    env = make_env("skirmish", 2)
    with pytest.raises(EnvError, match=r"SkirmishRows has no method assign\(tasks\)"):
        collector(env, UniformCurriculum({"a": {}}))


# ---------------------------------------------------------------- the trainer


def trainer(curriculum: Any, **settings: Any) -> PPOTrainer:
    env = locks()
    settings = {"seed": 0, "n_epochs": 1, "rollout_steps": 32, "device": "cpu"} | settings
    return PPOTrainer(make_policy(env, seed=0), env, curriculum=curriculum, **settings)


def test_a_trainer_follows_its_progress() -> None:
    """J17: the schedule of stages, with the counter of steps."""
    curriculum = StagedCurriculum(LOCKS)
    history = trainer(curriculum).train(128 * 10)
    assert history["curriculum/level"] == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_settings_of_a_run_say_the_curriculum() -> None:
    config = {"curriculum": {"kind": "staged", "tasks": LOCKS, "score": "success"}, "ppo": {"rollout_steps": 32}}
    env = locks()
    one = PPOTrainer.from_config(config, env, make_policy(env, seed=0), device="cpu")
    assert type(one.curriculum) is StagedCurriculum
    assert one.train(128)["curriculum/level"] == [0]


def test_metrics_of_the_curriculum_are_logged() -> None:
    history = trainer(UniformCurriculum(LOCKS, seed=0)).train(256)
    assert history["curriculum/chance/2"] == pytest.approx([1 / 3] * 2)
    attempts = sum(history[f"curriculum/attempts/{name}"][-1] for name in LOCKS)
    assert attempts == history["episodes"][-1]


def test_a_checkpoint_holds_the_curriculum(tmp_path: Any) -> None:
    """M13: a curriculum goes on where its checkpoint was saved; a trainer without that curriculum's tasks says so."""
    curriculum = SuccessRateCurriculum(LOCKS, history=3, promote_above=0.5, demote_below=0.0)
    first = trainer(curriculum)
    first.train(1024)
    assert curriculum.level > 0
    path = first.save_checkpoint(tmp_path / "checkpoint")
    again = SuccessRateCurriculum(LOCKS, history=3, promote_above=0.5, demote_below=0.0)
    trainer(again).load_checkpoint(path)
    assert str(again.state_dict()) == str(curriculum.state_dict())
    with pytest.raises(ConfigError, match="Make it with the same tasks"):
        trainer(SuccessRateCurriculum({"1": {"length": 1}})).load_checkpoint(path)
    bare = trainer(None).save_checkpoint(tmp_path / "bare")
    with pytest.raises(TwostepError, match="curriculum"):
        trainer(again).load_checkpoint(bare)


@pytest.mark.parametrize("workers", [(0, 0), (2, 2), (0, 2)])
def test_resuming_goes_on_with_the_same_tasks_bit_for_bit(workers: tuple[int, int], tmp_path: Any) -> None:
    """M13, J42: a run with a curriculum that was stopped equals one that was not, also when environments move."""

    def train(num_workers: int, steps: int, resume: Any = None, save: Any = None) -> Any:
        env = locks(num_workers=num_workers)
        try:
            curriculum = LearningProgressCurriculum(LOCKS, seed=3)
            settings = {"seed": 0, "n_epochs": 1, "rollout_steps": 16, "device": "cpu"}
            one = PPOTrainer(make_policy(env, seed=0), env, curriculum=curriculum, **settings)
            if resume is not None:
                one.load_checkpoint(resume)
            one.train(steps)
            if save is not None:
                one.save_checkpoint(save)
            weights = [parameter.detach().numpy().tobytes() for parameter in one.policy.parameters()]
            return weights, str(curriculum.state_dict())
        finally:
            env.close()

    before, after = workers
    train(before, 320, save=tmp_path / "halfway")
    assert train(after, 640, resume=tmp_path / "halfway") == train(before, 640)


@pytest.mark.parametrize("make", [UniformCurriculum, lambda tasks: TerrainGrid(("flat",), 2)])
def test_random_states_of_curricula_fit_into_checkpoints(make: Any, tmp_path: Any) -> None:
    curriculum = make(LOCKS)
    one = trainer(curriculum)
    path = one.save_checkpoint(tmp_path / "checkpoint")
    other = make(LOCKS)
    trainer(other).load_checkpoint(path)
    assert [curriculum.get_task().id() for _ in range(20)] == [other.get_task().id() for _ in range(20)]
