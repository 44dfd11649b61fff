"""Gymnasium's vectors and EnvPool's: whatever their way to reset, the same transitions come out."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from twostep.errors import EnvError
from twostep.protocols import RowEnv
from twostep.tree import tree_items
from twostep.vector import GymVectorAdapter, SerialVectorEnv, make_env, row_seeds

MODES = ["NextStep", "SameStep", "Disabled"]


class Counter(gym.Env[Any, int]):
    """Its observation says `(episode, t)` and a number drawn from its generator; it masks action `t % 3`.

    Lengths of episodes vary by what the generator draws. With `reuse` one array is handed out again and again.
    """

    def __init__(self, limit: int = 5, nested: bool = False, masks: bool = False, reuse: bool = False) -> None:
        self.limit, self.nested, self.masks, self.reuse, self.episode, self.t = limit, nested, masks, reuse, -1, 0
        box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space = (
            spaces.Dict({"a": box, "b": spaces.Tuple([box, spaces.Discrete(99)])}) if nested else box
        )
        self.action_space = spaces.Discrete(3)
        self._memory = np.zeros(3, dtype=np.float32)

    def _obs(self) -> Any:
        if not self.reuse:
            self._memory = np.zeros(3, dtype=np.float32)
        self._memory[:] = (self.episode, self.t, self.np_random.random())
        if not self.nested:
            return self._memory
        return {"a": self._memory, "b": (self._memory, self.t)}

    def _info(self, ended: bool = False) -> dict[str, Any]:
        mask = np.zeros(3, dtype=np.int8) if ended else (np.arange(3) != self.t % 3).astype(np.int8)
        info: dict[str, Any] = {"t": self.t, "score": {"sum": float(self.t)}}
        return {**info, "action_mask": mask} if self.masks else info

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        self._length = int(self.np_random.integers(2, 9))
        return self._obs(), self._info()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        terminated, truncated = self.t >= self._length, self.t >= self.limit
        return self._obs(), self.t + 0.1 * action, terminated, truncated, self._info(terminated or truncated)


def plain(tree: Any, row: int) -> Any:
    return [(path, np.array(leaf[row]).tolist()) for path, leaf in tree_items(tree)]


def transitions(env: RowEnv, seed: int | None, num_steps: int) -> dict[int, list[Any]]:
    """List the true transitions of each row as `Step` tells them; actions depend on the row's own past."""
    step = env.reset(seed)
    assert step.episode_starts.all()
    taken: dict[int, list[Any]] = defaultdict(list)
    rows = range(env.num_rows)
    for _ in range(num_steps):
        before = [plain(step.obs, row) for row in rows]
        starts = step.episode_starts.tolist()
        masks = None if step.action_masks is None else step.action_masks.tolist()
        actions = np.array([(len(taken[row]) * 7 + row) % env.action_space.n for row in rows])
        step = env.step(actions)
        finals = {} if step.final_rows is None else {row: at for at, row in enumerate(step.final_rows.tolist())}
        for row in rows:
            if step.valid is not None and not step.valid[row]:
                assert step.rewards[row] == 0
                assert not step.terminated[row]
                assert not step.truncated[row]
                assert step.episode_starts[row]
                continue
            after = plain(step.final_obs, finals[row]) if row in finals else plain(step.obs, row)
            ends = (bool(step.terminated[row]), bool(step.truncated[row]))
            assert (row in step.infos) == any(ends)
            mask = None if masks is None else masks[row]
            reward = float(step.rewards[row])
            taken[row].append((starts[row], before[row], mask, reward, ends, after, str(step.infos.get(row))))
    return taken


def require_equal(one: dict[int, list[Any]], other: dict[int, list[Any]], least: int) -> None:
    assert one.keys() == other.keys()
    for row in one:
        shared = min(len(one[row]), len(other[row]))
        assert shared >= least
        assert one[row][:shared] == other[row][:shared]
        assert sum(any(transition[4]) for transition in one[row][:shared]) >= 3


def require_chained(taken: dict[int, list[Any]]) -> None:
    """Each CartPole transition begins where the one before it led to, unless that one ended an episode."""
    for row in taken.values():
        for this, following in itertools.pairwise(row):
            ended = any(this[4])
            assert following[0] == ended
            assert (this[5] == following[1]) != ended
            assert this[3] == 1.0


FACTORIES: dict[str, Callable[[], gym.Env[Any, Any]]] = {
    "counter": Counter,
    "reusing": lambda: Counter(reuse=True),
    "nested": lambda: Counter(nested=True),
    "masked": lambda: Counter(masks=True),
    "CartPole": lambda: gym.make("CartPole-v1", max_episode_steps=12),
}


# Gymnasium's SameStep hands out the last observation uncopied: one that is reused is lost before anybody sees it.
@pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name in FACTORIES for mode in MODES if (name, mode) != ("reusing", "SameStep")]
)
def test_every_autoreset_mode_gives_the_transitions_of_the_serial_vector(name: str, mode: str) -> None:
    """JB3, EB3, MB5, LB6: final observations; L9: episodes of rows begin where they say; LB12: reused arrays."""
    expected = transitions(SerialVectorEnv([FACTORIES[name]] * 3, check=False), 4, 60)
    vector = SyncVectorEnv([FACTORIES[name]] * 3, copy=False, autoreset_mode=mode)
    adapter = GymVectorAdapter(vector)
    require_equal(expected, transitions(adapter, 4, 60), least=45)
    adapter.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_worker_processes_give_the_same_transitions() -> None:
    expected = transitions(SerialVectorEnv([FACTORIES["nested"]] * 2, check=False), 4, 30)
    for mode in MODES:
        adapter = GymVectorAdapter(AsyncVectorEnv([FACTORIES["nested"]] * 2, autoreset_mode=mode))
        require_equal(expected, transitions(adapter, 4, 30), least=20)
        adapter.close()
        adapter.close()


def test_only_next_step_mode_has_phantoms_one_after_each_end() -> None:
    steps: dict[str, list[Any]] = {}
    for mode in MODES:
        adapter = GymVectorAdapter(SyncVectorEnv([lambda: Counter(limit=2)], autoreset_mode=mode), seed=1)
        adapter.reset()
        steps[mode] = [adapter.step(np.array([0])) for _ in range(6)]
    assert [step.valid is None or bool(step.valid[0]) for step in steps["NextStep"]] == [True, True, False] * 2
    assert [bool(step.episode_starts[0]) for step in steps["NextStep"]] == [False, False, True] * 2
    assert all(step.final_rows is None for step in steps["NextStep"])
    for mode in ("SameStep", "Disabled"):
        assert all(step.valid is None for step in steps[mode])
        assert [step.final_rows is not None for step in steps[mode]] == [False, True] * 3


def test_envpool_gives_its_phantoms_away() -> None:
    pytest.importorskip("envpool")
    env = make_env("envpool:CartPole-v1", 3, seed=7)
    assert env.num_rows == 3
    assert env.observation_space.shape == (4,)
    taken = transitions(env, None, 300)
    again = transitions(make_env("envpool:CartPole-v1", 3, seed=7), 7, 300)
    require_equal(taken, again, least=200)
    other = transitions(make_env("envpool:CartPole-v1", 3, seed=8), None, 120)
    assert other[0] != taken[0]
    require_chained(taken)
    env.close()
    env.close()


def test_envpool_says_when_a_seed_comes_too_late() -> None:
    pytest.importorskip("envpool")
    env = make_env("envpool:CartPole-v1", 2, seed=7)
    with pytest.warns(UserWarning, match="seeds are fixed"):
        env.reset(seed=3)
    env.close()


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning")
def test_envpool_answering_for_some_rows_only_is_refused() -> None:
    envpool = pytest.importorskip("envpool")
    with pytest.raises(EnvError, match=r"batch_size=2 of its 4.*batch_size=4"):
        GymVectorAdapter(envpool.make_gymnasium("CartPole-v1", num_envs=4, batch_size=2))


def test_a_vector_that_brings_itself_is_seeded_by_one_number() -> None:
    def run(seed: int) -> dict[int, list[Any]]:
        return transitions(make_env("CartPole-v1", 2, seed, vectorization="vector_entry_point"), None, 300)

    require_equal(run(3), run(3), least=250)
    require_chained(run(3))
    assert run(3) != run(4)


def test_masks_are_read_in_every_mode_and_not_asked_of_ended_rows() -> None:
    """At an end the environment forbids everything, as games do; the policy must still have something to choose."""
    for mode in MODES:
        adapter = GymVectorAdapter(SyncVectorEnv([FACTORIES["masked"]] * 2, autoreset_mode=mode), seed=0)
        step = adapter.reset()
        for _ in range(30):
            assert step.action_masks.any(axis=1).all()
            step = adapter.step(np.array([0, 1]))
            first = step.episode_starts
            assert (step.action_masks[first] == [False, True, True]).all()


def test_a_mask_forbidding_everything_is_refused() -> None:
    class Stuck(Counter):
        """Forbids everything in the middle of an episode."""

        def _info(self, ended: bool = False) -> dict[str, Any]:
            return {"action_mask": np.full(3, self.t < 2)}

    adapter = GymVectorAdapter(SyncVectorEnv([lambda: Stuck(masks=True), lambda: Stuck(masks=True, limit=99)]), seed=3)
    adapter.reset()
    adapter.step(np.array([0, 0]))
    with pytest.raises(EnvError, match="env 0, for the next action: the mask forbids all 3 actions"):
        adapter.step(np.array([0, 0]))


def test_infos_of_ended_rows_are_taken_apart() -> None:
    adapter = GymVectorAdapter(SyncVectorEnv([lambda: Counter(limit=2), lambda: Counter(limit=99)]), seed=1)
    adapter.reset()
    adapter.step(np.array([0, 0]))
    step = adapter.step(np.array([0, 0]))
    assert step.infos[0] == {"t": 2, "score": {"sum": 2.0}}
    assert type(step.infos[0]["t"]) is int


class Nameless(gym.vector.VectorEnv[Any, Any, Any]):
    """A vector of one's own, without any of Gymnasium's machinery."""

    def __init__(self, infos: dict[str, Any] | None = None, mode: Any = None) -> None:
        self.num_envs = 2
        self.single_observation_space = spaces.Box(-1, 1, (1,), np.float64)
        self.single_action_space = spaces.Discrete(2)
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.infos = infos or {}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.seed = seed
        return np.zeros((2, 1)), {}

    def step(self, actions: Any) -> Any:
        self.actions = actions
        return np.ones((2, 1)), np.ones(2), np.array([False, True]), np.array([False, False]), self.infos


def test_a_missing_mode_is_an_error_with_a_way_out() -> None:
    with pytest.raises(EnvError, match=r"metadata\['autoreset_mode'\] is None.*autoreset_mode= to GymVectorAdapter"):
        GymVectorAdapter(Nameless())
    assert GymVectorAdapter(Nameless(), autoreset_mode="next_step").autoreset == "next_step"


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, "SameStep", "same_step", "SAME_STEP"])
def test_modes_may_be_enums_or_strings(mode: Any) -> None:
    assert GymVectorAdapter(Nameless(mode=mode)).autoreset == "same_step"


def test_final_observations_may_come_as_one_batch() -> None:
    adapter = GymVectorAdapter(Nameless({"final_obs": np.array([[5.0], [6.0]])}, "SameStep"), seed=9)
    adapter.reset()
    assert adapter.env.seed == row_seeds(9, 1)[0]
    step = adapter.step(np.array([0, 1]))
    assert step.final_rows.tolist() == [1]
    assert step.final_obs.tolist() == [[6.0]]
    assert step.rewards.dtype == np.float32
    assert step.infos == {1: {}}


def test_same_step_without_final_observations_is_an_error() -> None:
    for infos in ({}, {"final_obs": np.array([None, None])}):
        adapter = GymVectorAdapter(Nameless(infos, "SameStep"))
        adapter.reset()
        with pytest.raises(EnvError, match=r"Rows \[1\] ended, but infos has no 'final_obs'"):
            adapter.step(np.array([0, 1]))


def test_batches_of_a_wrong_length_are_refused() -> None:
    """EB8."""
    adapter = GymVectorAdapter(Nameless(mode="NextStep"))
    adapter.reset()
    with pytest.raises(EnvError, match=r"actions has shape \[3\], but there are 2 environments"):
        adapter.step(np.zeros(3, dtype=np.int64))
    adapter.env.num_envs = 3
    with pytest.raises(EnvError, match=r"obs has shape \[2, 1\], but there are 3 environments"):
        GymVectorAdapter(adapter.env).reset()


def test_the_environment_may_keep_its_actions() -> None:
    adapter = GymVectorAdapter(Nameless(mode="NextStep"))
    adapter.reset()
    actions = np.array([1, 1])
    adapter.step(actions)
    actions[:] = 0
    assert adapter.env.actions.tolist() == [1, 1]


def test_what_a_phantom_says_is_never_taken_for_an_action() -> None:
    """EB4: ignored actions give no reward and no end, even where the environment says otherwise."""
    adapter = GymVectorAdapter(Nameless(mode="NextStep"))
    adapter.reset()
    assert adapter.step(np.array([0, 0])).terminated.tolist() == [False, True]
    step = adapter.step(np.array([0, 0]))
    assert step.valid.tolist() == [True, False]
    assert step.rewards.tolist() == [1, 0]
    assert step.terminated.tolist() == [False, False]
    assert step.episode_starts.tolist() == [False, True]
    assert step.infos == {}


def test_resetting_some_rows_leaves_the_others_alone() -> None:
    """LB12: a reset may wipe the very array that the step handed out."""

    class Wiping(Nameless):
        def step(self, actions: Any) -> Any:
            self.memory = np.array([[5.0], [6.0]])
            return self.memory, np.ones(2), np.array([False, False]), np.array([False, True]), {}

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            if options is None:
                return np.zeros((2, 1)), {}
            assert options["reset_mask"].tolist() == [False, True]
            self.memory[:] = -1.0
            return self.memory, {}

    adapter = GymVectorAdapter(Wiping(mode="Disabled"))
    adapter.reset()
    step = adapter.step(np.array([0, 0]))
    assert step.obs.tolist() == [[5.0], [-1.0]]
    assert step.final_obs.tolist() == [[6.0]]
    assert step.episode_starts.tolist() == [False, True]
