"""SerialVectorEnv against a plain loop over the same environments, and what it says when one of them misbehaves."""

from __future__ import annotations

import re
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from twostep.errors import EnvError
from twostep.protocols import RowEnv, Step
from twostep.vector import SerialVectorEnv, row_seeds


class Counter(gym.Env[np.ndarray, int]):
    """Its observation says `(number, episode, t)`; it is cut after `limit` steps and ends at action 3."""

    def __init__(self, number: int = 0, limit: int = 4) -> None:
        self.number, self.limit, self.episode, self.t = number, limit, -1, 0
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.closed = False

    def _obs(self) -> np.ndarray:
        return np.array([self.number, self.episode, self.t], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {"at": "reset"}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._obs(), 10.0 * self.t + action, action == 3, self.t >= self.limit, {"at": self.t}

    def close(self) -> None:
        self.closed = True


def counters(*limits: int) -> SerialVectorEnv:
    return SerialVectorEnv([Counter(number, limit) for number, limit in enumerate(limits)], check=False)


def keep(step: Step) -> Step:
    """Copy what the environment overwrites."""
    names = ("obs", "episode_starts", "rewards", "terminated", "truncated", "action_masks")
    for name in names:
        value = getattr(step, name)
        if isinstance(value, np.ndarray):
            setattr(step, name, value.copy())
    return step


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_equals_a_plain_loop_row_for_row(env_id: str) -> None:
    """JB3, EB3, MB5, LB6: the true last observation of every episode is handed out; L9: rows never mix."""
    num_rows, num_steps, limit = 3, 120, 30
    envs = [gym.make(env_id, max_episode_steps=limit) for _ in range(num_rows)]
    plain = [gym.make(env_id, max_episode_steps=limit) for _ in range(num_rows)]
    vector: RowEnv = SerialVectorEnv(envs)
    plain[0].action_space.seed(5)
    actions = [np.stack([plain[0].action_space.sample() for _ in range(num_rows)]) for _ in range(num_steps)]
    step = vector.reset(seed=11)
    for row, (env, seed) in enumerate(zip(plain, row_seeds(11, num_rows), strict=True)):
        np.testing.assert_array_equal(_row(step.obs, row), env.reset(seed=seed)[0])
    ends = 0
    for batch in actions:
        step = vector.step(batch)
        finals = dict(enumerate(() if step.final_rows is None else step.final_rows.tolist()))
        finals = {row: position for position, row in finals.items()}
        for row, env in enumerate(plain):
            action = batch[row].item() if isinstance(env.action_space, spaces.Discrete) else batch[row]
            obs, reward, terminated, truncated, info = env.step(action)
            assert step.rewards[row] == np.float32(reward)
            assert step.terminated[row] == terminated
            assert step.truncated[row] == truncated
            assert step.episode_starts[row] == (terminated or truncated) == (row in finals) == (row in step.infos)
            if row in finals:
                np.testing.assert_array_equal(_row(step.final_obs, finals[row]), obs)
                assert step.infos[row] == info
                obs, _ = env.reset()
                ends += 1
            np.testing.assert_array_equal(_row(step.obs, row), obs)
    assert ends >= num_rows
    vector.close()


def _row(obs: Any, row: int) -> Any:
    return tuple(leaf[row] for leaf in obs) if isinstance(obs, tuple) else obs[row]


def test_rows_end_apart_and_start_anew_in_the_same_step() -> None:
    env = counters(2, 3)
    env.reset()
    env.step(np.array([0, 1]))
    step = keep(env.step(np.array([0, 1])))
    assert step.truncated.tolist() == [True, False]
    assert step.final_rows.tolist() == [0]
    assert step.final_obs.tolist() == [[0, 0, 2]]
    assert step.obs.tolist() == [[0, 1, 0], [1, 0, 2]]
    assert step.episode_starts.tolist() == [True, False]
    assert step.infos == {0: {"at": 2}}
    assert step.rewards.tolist() == [20, 21]
    step = env.step(np.array([0, 3]))
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([False, True], [False, True])
    assert step.final_rows.tolist() == [1]
    assert step.obs.tolist() == [[0, 1, 1], [1, 1, 0]]
    step = env.step(np.array([0, 0]))
    assert step.terminated.tolist() == [False, False]


def test_final_observations_stay_while_everything_else_is_overwritten() -> None:
    env = counters(1)
    env.reset()
    first = env.step(np.array([0]))
    second = env.step(np.array([0]))
    assert first.obs is second.obs
    assert first.final_obs.tolist() == [[0, 0, 1]]
    assert second.final_obs.tolist() == [[0, 1, 1]]


class Reusing(Counter):
    """Hands out one array again and again."""

    def __init__(self) -> None:
        super().__init__(limit=2)
        self._memory = np.zeros(3, dtype=np.float32)

    def _obs(self) -> np.ndarray:
        self._memory[:] = (self.number, self.episode, self.t)
        return self._memory


def test_environments_that_reuse_their_memory_are_copied() -> None:
    """LB12: an observation keeps its values although the environment writes the next one into the same array."""
    env = SerialVectorEnv([Reusing(), Reusing()], check=False)
    env.reset()
    env.step(np.array([0, 3]))
    step = env.step(np.array([0, 0]))
    assert step.final_rows.tolist() == [0]
    assert step.final_obs.tolist() == [[0, 0, 2]]
    assert step.obs.tolist() == [[0, 1, 0], [0, 1, 1]]


def test_time_limits_of_gymnasium_are_kept_though_their_wrapper_is_stepped_around() -> None:
    envs = [gym.wrappers.TimeLimit(Counter(row, limit=100), limit) for row, limit in enumerate((2, 3, 5))]
    env = SerialVectorEnv(envs)
    env.reset()
    cuts = []
    for _ in range(12):
        step = env.step(np.array([0, 0, 0]))
        cuts.append(step.truncated.tolist())
        assert not step.terminated.any()
    assert [[t + 1 for t in range(12) if cuts[t][row]] for row in range(3)] == [
        [2, 4, 6, 8, 10, 12],
        [3, 6, 9, 12],
        [5, 10],
    ]
    env.reset()
    assert [env.step(np.array([0, 0, 0])).truncated.any() for _ in range(2)] == [False, True]


def test_a_termination_moves_the_time_limit() -> None:
    env = SerialVectorEnv([gym.wrappers.TimeLimit(Counter(limit=100), 3)], check=False)
    env.reset()
    ends = [env.step(np.array([action])) for action in (0, 3, 0, 0, 0, 0, 0, 3)]
    assert [step.final_rows is not None for step in ends] == [False, True, False, False, True, False, False, True]
    assert (ends[7].terminated.tolist(), ends[7].truncated.tolist()) == ([True], [True])


def test_the_same_seed_gives_the_same_run_and_rows_differ() -> None:
    def run(seed: int | None, constructed: int | None = None) -> np.ndarray:
        env = SerialVectorEnv([gym.make("CartPole-v1") for _ in range(2)], constructed)
        observations = [env.reset(seed).obs.copy()]
        observations += [env.step(np.array([1, 1])).obs.copy() for _ in range(20)]
        return np.stack(observations)

    np.testing.assert_array_equal(run(3), run(3))
    np.testing.assert_array_equal(run(3), run(None, constructed=3))
    assert (run(3) != run(4)).any()
    assert (run(3)[:, 0] != run(3)[:, 1]).any()
    assert (run(None) != run(None)).any(), "without a seed, runs must differ although the check resets with one"


def test_a_reset_without_a_seed_goes_on_with_the_generators() -> None:
    env = SerialVectorEnv([gym.make("CartPole-v1")], seed=1)
    first, second = env.reset().obs.copy(), env.reset().obs.copy()
    assert (first != second).any()


class Seeded(Counter):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.seeds = [*getattr(self, "seeds", []), seed]
        return super().reset(seed=seed)


def test_chosen_environments_begin_anew_and_the_others_go_on() -> None:
    """A7, E18: with the seeds that are given, in the order that is given."""
    env = SerialVectorEnv([Seeded(number, 9) for number in range(3)], check=False)
    assert (env.num_envs, env.num_rows, env.rows_per_env, env.agent_ids, env.possible_agents) == (3, 3, 1, (), ())
    with pytest.raises(EnvError, match="with indices before all environments have begun"):
        env.reset(indices=[0])
    env.reset(4)
    env.step(np.array([0, 0, 3]))
    step = env.reset([7, 8], [2, 0])
    assert step.episode_starts.tolist() == [True, False, True]
    assert step.obs.tolist() == [[0, 1, 0], [1, 0, 1], [2, 2, 0]]
    env.reset(5, [1])
    env.reset(indices=[1])
    env.reset([1, 2, 3])
    first = row_seeds(4, 3)
    assert env.call("seeds") == [[first[0], 8, 1], [first[1], row_seeds(5, 3)[1], None, 2], [first[2], None, 7, 3]]
    assert env.call("number", indices=[2, 0]) == [2, 0]
    step = env.step(np.array([0, 0, 0]))
    assert not step.episode_starts.any()
    for indices in ([3], [-1], [1, 1]):
        with pytest.raises(EnvError, match="each must be one of the 3 environments, named once"):
            env.reset(indices=indices)
    with pytest.raises(EnvError, match="2 seeds came for 1"):
        env.reset([1, 2], [0])


def test_a_chosen_reset_moves_the_time_limit_of_its_row_only() -> None:
    env = SerialVectorEnv([gym.wrappers.TimeLimit(Counter(limit=100), 3) for _ in range(2)], check=False)
    env.reset()
    env.step(np.array([0, 0]))
    env.reset(indices=[1])
    cuts = [env.step(np.array([0, 0])).truncated.tolist() for _ in range(3)]
    assert cuts == [[False, False], [True, False], [False, True]]


def test_row_seeds_do_not_overlap_between_neighbouring_seeds() -> None:
    assert row_seeds(0, 8)[:3] == row_seeds(0, 3)
    assert len({seed for run in range(50) for seed in row_seeds(run, 64)}) == 50 * 64
    assert max(row_seeds(7, 100)) < 2**31
    with pytest.raises(EnvError, match=r"seed=-1.*0 or more"):
        row_seeds(-1, 2)


class Asking(gym.Env[Any, Any]):
    """Records the actions it is given; observations are samples of a given space."""

    def __init__(self, action_space: spaces.Space[Any], observation_space: spaces.Space[Any] | None = None) -> None:
        self.action_space = action_space
        self.observation_space = observation_space or spaces.Discrete(5, start=2)
        self.observation_space.seed(1)
        self.actions: list[Any] = []
        self.observations: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._observe(), {}

    def _observe(self) -> Any:
        self.observations.append(self.observation_space.sample())
        return self.observations[-1]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        return self._observe(), 0.0, False, False, {}


def test_each_action_space_reaches_the_environment_in_its_own_form() -> None:
    space = spaces.Dict(
        {
            "choice": spaces.Discrete(3),
            "parts": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2)]),
            "force": spaces.Box(-1, 1, (2,), np.float32),
        }
    )
    env = SerialVectorEnv([Asking(space), Asking(space)], check=False)
    env.reset()
    force = np.array([[0.5, 2.0], [-1.0, 0.0]], dtype=np.float32)
    parts = (np.array([[1, 2], [0, 0]]), np.array([[0, 1], [1, 1]]))
    env.step({"choice": np.array([2, 0]), "parts": parts, "force": force})
    taken = env.envs[0].actions[0]
    assert type(taken["choice"]) is np.int64, "as the space samples it"
    assert taken["choice"] == 2
    assert taken["parts"][0].tolist() == [1, 2]
    assert taken["parts"][1].dtype == np.int8
    assert taken["force"].dtype == np.float32
    assert taken["force"].tolist() == [0.5, 2.0]
    force[:] = 9
    assert taken["force"].tolist() == [0.5, 2.0], "an action kept by the environment must not change with the caller's"
    assert env.envs[1].actions[0]["parts"][0].tolist() == [0, 0]


def test_trees_of_observations_are_stored_leaf_by_leaf() -> None:
    space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (2, 2, 3), np.uint8),
            "rest": spaces.Tuple([spaces.Discrete(4), spaces.MultiBinary(3), spaces.Box(-1, 1, (), np.float64)]),
        }
    )
    env = SerialVectorEnv([Asking(spaces.Discrete(2), space) for _ in range(3)], check=False)
    env.reset()
    step = env.step(np.array([0, 1, 0]))
    assert step.obs["camera"].dtype == np.uint8
    for row, single in enumerate(env.envs):
        last = single.observations[-1]
        np.testing.assert_array_equal(step.obs["camera"][row], last["camera"])
        for position in range(3):
            np.testing.assert_array_equal(step.obs["rest"][position][row], last["rest"][position])


class Masking(Counter):
    """Allows only the action `t % 4`, said in one of the three places; `broken` overrides what it says."""

    def __init__(self, place: str, limit: int = 3) -> None:
        super().__init__(limit=limit)
        self.place, self.broken = place, None
        if place == "obs":
            self.observation_space = spaces.Dict(
                {"action_mask": spaces.MultiBinary(4), "speed": spaces.Box(-9, 9, (1,), np.float32)}
            )
        if place == "method":
            self.action_masks = self._mask

    def _mask(self) -> Any:
        return self.broken if self.broken is not None else np.arange(4) == self.t % 4

    def _tell(self, obs: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if self.place == "obs":
            obs = {"action_mask": self._mask().astype(np.int8), "speed": np.ones(1, dtype=np.float32)}
        return obs, {**info, "action_mask": self._mask()} if self.place == "info" else info

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._tell(*super().reset(seed=seed))

    def step(self, action: int) -> Any:
        obs, reward, _, truncated, info = super().step(action)
        obs, info = self._tell(obs, info)
        return obs, reward, False, truncated, info


@pytest.mark.parametrize("place", ["info", "method", "obs"])
def test_masks_come_from_info_method_or_observation_and_follow_resets(place: str) -> None:
    env = SerialVectorEnv([Masking(place, 2), Masking(place, 3)])
    step = env.reset()
    allowed = [step.action_masks.argmax(axis=1).tolist()]
    for _ in range(3):
        step = env.step(step.action_masks.argmax(axis=1))
        assert step.action_masks.dtype == np.bool_
        assert step.action_masks.sum(axis=1).tolist() == [1, 1]
        allowed.append(step.action_masks.argmax(axis=1).tolist())
    assert allowed == [[0, 0], [1, 1], [0, 2], [1, 0]]
    if place == "obs":
        assert step.obs["action_mask"].argmax(axis=1).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (np.zeros(4, dtype=bool), "forbids all 4 actions.*At least one"),
        (np.ones(5, dtype=bool), r"shape \[5\].*4 booleans"),
        (np.ones(1, dtype=bool), r"shape \[1\].*4 booleans"),
        (np.array([0, 0, 0, 0.0]), "dtype float64.*4 booleans"),
    ],
)
def test_a_mask_that_goes_wrong_later_is_named_with_its_row_and_step(broken: np.ndarray, rule: str) -> None:
    env = SerialVectorEnv([Masking("info"), Masking("info")])
    env.reset()
    env.step(np.array([0, 0]))
    env.envs[1].broken = broken
    with pytest.raises(EnvError, match=f"env 1, after step 2: the mask.*{rule}"):
        env.step(np.array([1, 1]))


def test_a_mask_that_vanishes_is_named() -> None:
    env = SerialVectorEnv([Masking("info"), Masking("info")])
    env.reset()
    env.envs[1].place = "nowhere"
    with pytest.raises(EnvError, match="env 1: info has no 'action_mask' now"):
        env.step(np.array([0, 0]))


class MaskingParts(Counter):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.MultiDiscrete([2, 3])
        self.mask: Any = np.array([1, 0, 0, 1, 1], dtype=np.int8)

    def action_masks(self) -> Any:
        return self.mask

    def step(self, action: Any) -> Any:
        return super().step(int(action[1]))


def test_masks_of_multi_discrete_actions_are_joined_and_each_part_needs_a_choice() -> None:
    env = SerialVectorEnv([MaskingParts()])
    assert env.reset().action_masks.tolist() == [[True, False, False, True, True]]
    env.envs[0].mask = (np.array([0, 1]), np.array([1, 0, 0]))
    assert env.step(np.array([[0, 1]])).action_masks.tolist() == [[False, True, True, False, False]]
    env.envs[0].mask = np.array([1, 1, 0, 0, 0])
    with pytest.raises(EnvError, match=r"part 1 of MultiDiscrete.*At least one"):
        env.step(np.array([[0, 1]]))


class Failing(Counter):
    def __init__(self, when: str) -> None:
        super().__init__(limit=2)
        self.when = when

    def reset(self, **kwargs: Any) -> Any:
        if self.when == "reset" and self.episode == 0:
            raise RuntimeError("no track")
        return super().reset(**kwargs)

    def step(self, action: int) -> Any:
        result = super().step(action)
        if self.when == "step" and self.t == 2:
            raise RuntimeError("wheel lost")
        if self.when == "shape" and self.t == 2:
            return np.zeros(7, dtype=np.float32), *result[1:]
        if self.when == "four" and self.t == 2:
            return result[:4]
        return result


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes came with Python 3.11")
@pytest.mark.parametrize(
    ("when", "message", "call"), [("step", "wheel lost", r"step\(1\)"), ("reset", "no track", "reset")]
)
def test_errors_of_an_environment_stay_as_they_are_with_a_note_of_where(when: str, message: str, call: str) -> None:
    env = SerialVectorEnv([Counter(), Failing(when)], check=False)
    env.reset(seed=5)
    env.step(np.array([0, 1]))
    with pytest.raises(RuntimeError, match=message) as caught:
        env.step(np.array([0, 1]))
    note = "".join(caught.value.__notes__)
    assert f"env 1 (seed {row_seeds(5, 2)[1]}), episode " in note
    assert re.search(call, note)


@pytest.mark.parametrize(("when", "message"), [("shape", r"\(7,\).*must fit Box"), ("four", "got 4.*step returns")])
def test_what_cannot_be_stored_is_one_clear_error(when: str, message: str) -> None:
    env = SerialVectorEnv([Failing(when)], check=False)
    env.reset()
    env.step(np.array([0]))
    with pytest.raises(EnvError, match=rf"env 0 .*episode 1, step 2 of it, in step\(2\).*{message}"):
        env.step(np.array([2]))


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.array([0]), "1 actions came for 2 environments"),
        (np.array([0, 1, 0]), "3 actions came for 2"),
        (np.array([0.0, 1.0]), "dtype float64.*integer"),
        (np.array([[0], [1]]), r"shape \[2, 1\].*one integer per row"),
    ],
)
def test_actions_of_a_wrong_form_are_refused_at_once(actions: np.ndarray, message: str) -> None:
    """EB8: too few actions raise instead of waiting for an environment that was never sent one."""
    env = counters(3, 3)
    env.reset()
    with pytest.raises(EnvError, match=message):
        env.step(actions)


def test_array_actions_of_a_wrong_shape_are_refused() -> None:
    env = SerialVectorEnv([gym.make("Pendulum-v1")])
    env.reset()
    with pytest.raises(EnvError, match=r"shape \[1, 2\].*each row must have shape \[1\]"):
        env.step(np.zeros((1, 2), dtype=np.float32))


def test_what_cannot_be_a_vector_is_refused() -> None:
    with pytest.raises(EnvError, match="0 environments"):
        SerialVectorEnv([])
    same = Counter()
    with pytest.raises(EnvError, match="listed more than once among 2"):
        SerialVectorEnv([same, same])
    assert not same.closed, "what the caller made is the caller's to close"
    with pytest.raises(EnvError, match="env 1 has action_space Discrete"):
        SerialVectorEnv([MaskingParts(), Counter()])
    with pytest.raises(EnvError, match="step was called before reset"):
        counters(2).step(np.array([0]))


def test_environments_made_by_functions_are_closed_when_one_of_them_fails() -> None:
    made: list[Counter] = []

    def make() -> Counter:
        if len(made) == 2:
            raise RuntimeError("out of licences")
        made.append(Counter())
        return made[-1]

    with pytest.raises(RuntimeError, match="out of licences"):
        SerialVectorEnv([make, make, make])
    assert [env.closed for env in made] == [True, True]


def test_calls_reach_every_environment_through_its_wrappers() -> None:
    env = SerialVectorEnv([gym.wrappers.TimeLimit(Counter(number), 9) for number in range(2)])
    assert env.call("number") == [0, 1]
    assert env.call("_obs")[1].tolist() == [1, -1, 0]
    assert env.call("has_wrapper_attr", "limit") == [True, True]


def test_closing_twice_is_harmless_and_closes_all() -> None:
    singles = [Counter(), Counter()]
    env = SerialVectorEnv(singles)
    env.close()
    env.close()
    assert all(single.closed for single in singles)


class Plain:
    """Not a gymnasium.Env, but it walks like one."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.ones(2, dtype=np.float32), 1.0, False, False, {}


def test_environments_need_not_subclass_gymnasium() -> None:
    env = SerialVectorEnv([Plain(), Plain()])
    env.reset(seed=0)
    assert env.step(np.array([0, 1])).obs.tolist() == [[1, 1], [1, 1]]
    assert env.call("action_space") == [spaces.Discrete(2)] * 2
    env.close()
