"""Environments from names, paths, functions and objects, and one clear line where something is missing."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from twostep.errors import ConfigError, EnvError
from twostep.protocols import Step
from twostep.vector import AgentsVectorEnv, GymVectorAdapter, SerialVectorEnv, as_env, make_env, row_seeds
from twostep.worlds.skirmish import EnvConfig, HeuristicPolicy, SkirmishEnv, SkirmishRows


def first_obs(env: Any) -> Any:
    return env.reset().obs.copy()


def test_an_id_gives_that_many_rows_and_remembers_its_seed() -> None:
    env = make_env("CartPole-v1", 3, seed=5)
    assert isinstance(env, SerialVectorEnv)
    assert env.num_rows == 3
    assert env.spec_name == "CartPole-v1"
    assert env.observation_space.shape == (4,)
    assert env.action_space == spaces.Discrete(2)
    expected = [gym.make("CartPole-v1").reset(seed=seed)[0] for seed in row_seeds(5, 3)]
    np.testing.assert_array_equal(first_obs(env), expected)
    assert (first_obs(env) != expected).any(), "only the first reset uses the seed"
    env.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_gymnasium_vectors_start_from_the_same_seeds(vectorization: Any) -> None:
    env = make_env("CartPole-v1", 2, seed=5, vectorization=vectorization)
    assert isinstance(env, GymVectorAdapter)
    np.testing.assert_array_equal(first_obs(env), first_obs(make_env("CartPole-v1", 2, seed=5)))
    env.close()


def test_arguments_and_wrappers_reach_every_environment() -> None:
    wrappers = [
        gym.wrappers.FlattenObservation,
        lambda env: gym.wrappers.TransformReward(env, lambda reward: reward + 1000),
    ]
    env = make_env("Pendulum-v1", 2, g=1.5, wrappers=wrappers)
    assert isinstance(env, SerialVectorEnv)
    assert env.call("g") == [1.5, 1.5]
    env.reset()
    assert (env.step(np.zeros((2, 1), dtype=np.float32)).rewards > 900).all()


class Tiny(gym.Env[Any, Any]):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, level: int = 0) -> None:
        self.level = level

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, dtype=np.float32), 0.0, False, False, {}


cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Sleepy(Tiny):
    """Hangs in the episode of one seed."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.hangs = seed == row_seeds(0, 1)[0]
        return super().reset()

    def step(self, action: int) -> Any:
        time.sleep(100 * self.hangs)
        return super().step(action)


def test_functions_and_classes_are_called_once_per_environment() -> None:
    for maker in (Tiny, lambda level: Tiny(level)):
        env = make_env(maker, 3, level=4)
        assert isinstance(env, SerialVectorEnv)
        assert env.call("level") == [4, 4, 4]
    assert make_env(Tiny).spec_name == "Tiny"


def test_how_workers_are_treated_can_be_said_with_any_way_to_make_environments() -> None:
    """A1, A2: a worker that hangs is replaced where that is allowed."""
    env = make_env(Sleepy, 1, num_workers=1, restarts=1, step_timeout=0.5, start_method="forkserver")
    with env:
        env.reset(0)
        step = env.step(np.array([1]))
        assert (step.valid.tolist(), step.truncated.tolist(), env.failures) == ([False], [True], 1)
    with pytest.raises(EnvError, match="start_method='fork', but must be"):
        make_env(Tiny, 1, num_workers=1, start_method="fork")
    with pytest.raises(EnvError, match="restarts=-1"):
        make_env(Tiny, 1, num_workers=1, restarts=-1)


def test_a_path_names_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "import gymnasium as gym\ndef make(length=10):\n    return gym.make('CartPole-v1', max_episode_steps=length)\n"
    )
    text += "class Sub:\n    pass\n"
    (tmp_path / "tracks_of_mine.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    env = make_env("tracks_of_mine:make", 2, length=3)
    env.reset()
    assert [env.step(np.array([0, 1])).truncated.all() for _ in range(3)] == [False, False, True]
    with pytest.raises(EnvError, match="no environment 'tracks_of_mine:mak'"):
        make_env("tracks_of_mine:mak")
    monkeypatch.delitem(sys.modules, "tracks_of_mine")


def test_a_module_may_register_an_id_when_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import gymnasium as gym\n"
    text += "gym.register('Mine-v3', entry_point='gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=2)\n"
    (tmp_path / "registers_mine.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    env = make_env("registers_mine:Mine-v3")
    env.reset()
    assert [env.step(np.array([0])).truncated[0] for _ in range(2)] == [False, True]
    assert gym.registry["Mine-v3"].order_enforce, "the registered spec must stay as it was"
    gym.registry.pop("Mine-v3")
    monkeypatch.delitem(sys.modules, "registers_mine")


def test_objects_are_taken_as_they_are() -> None:
    single = Tiny()
    assert make_env(single).envs == [single]
    vector = gym.make_vec("CartPole-v1", 3, vectorization_mode="sync")
    assert make_env(vector).num_rows == 3
    assert make_env(vector, 3).env is vector
    own = SerialVectorEnv([Tiny()])
    assert as_env(own) is own
    with pytest.raises(EnvError, match="num_envs=4, but the environment object has 1 rows"):
        make_env(single, 4)
    with pytest.raises(EnvError, match=r"\['level'\] came with an environment that is made already"):
        make_env(single, level=3)


def test_a_function_may_make_a_whole_vector() -> None:
    env = make_env(lambda: gym.make_vec("CartPole-v1", 3, vectorization_mode="sync"), seed=1)
    assert (env.num_rows, type(env)) == (3, GymVectorAdapter)
    with pytest.raises(EnvError, match="num_envs=2, but the environment object has 3 rows"):
        make_env(lambda: SerialVectorEnv([Tiny, Tiny, Tiny]), 2)


def test_anything_that_follows_the_protocol_passes_through() -> None:
    class Own:
        num_rows = 1

        def reset(self, seed: int | None = None) -> Step: ...
        def step(self, actions: Any) -> Step: ...
        def close(self) -> None: ...

    own = Own()
    assert as_env(own) is own
    assert make_env(own) is own


@pytest.mark.parametrize("thing", [3, None, "CartPole-v1", Tiny, object(), {"reset": 1}])
def test_what_is_no_environment_is_refused_with_the_list_of_what_is(thing: Any) -> None:
    with pytest.raises(EnvError, match=r"not an environment twostep knows.*gymnasium.Env.*gymnasium.vector.VectorEnv"):
        as_env(thing)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("CartPol-v1", "no environment 'CartPol-v1'. Did you mean CartPole-v1"),
        ("CartPole-v7", "Did you mean CartPole-v[01]"),
        ("LunarLander-v2", "Did you mean LunarLander-v3"),
        ("Qwxyz", "For an environment of your own pass a function"),
        ("no_such_module:make", "needs the module no_such_module, which cannot be found"),
        ("gymnasium.no_such:make", "needs the module gymnasium.no_such"),
        ("ALE/Pongg-v5", "no Atari environment 'ALE/Pongg-v5'"),
        ("ALE/Pong-v9", "Did you mean .*Pong"),
    ],
)
def test_names_that_do_not_exist_are_one_line_with_a_hint(spec: str, message: str) -> None:
    if spec.startswith("ALE/"):
        pytest.importorskip("ale_py")
    with pytest.raises(EnvError, match=message) as caught:
        make_env(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "module", "command"),
    [
        ("LunarLander-v3", "Box2D", r'pip install "gymnasium\[box2d\]"'),
        ("HalfCheetah-v5", "mujoco", r'pip install "gymnasium\[mujoco\]"'),
        ("envpool:CartPole-v1", "envpool", "pip install envpool"),
        ("ALE/Pong-v5", "ale_py", "pip install ale-py"),
    ],
)
def test_missing_packages_come_with_the_command_that_installs_them(
    spec: str, module: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [*sys.modules]:
        if name.startswith(("gymnasium.envs.box2d", "gymnasium.envs.mujoco")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(EnvError, match=f"{command}") as caught:
        make_env(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs=0, but must be 1 or more"),
        ({"num_envs": 2, "num_workers": 3}, "num_workers=3, but must be from 0 to num_envs=2"),
        ({"num_workers": -1}, "num_workers=-1, but must be from 0"),
        ({"agent_ids": "blue_*"}, r"agent_ids='blue_\*' was given, but CartPoleEnv has a single agent"),
        ({"opponent": HeuristicPolicy}, "opponent=.*was given, but CartPoleEnv has a single agent"),
        ({"vectorization": "async", "num_workers": 1}, "vectorization='async' takes no num_workers"),
        ({"vectorization": "sync", "agent_ids": "a"}, "vectorization='sync' takes no agent_ids"),
        ({"vectorization": "threads"}, "vectorization='threads', but must be one of serial, sync"),
        ({"no_such_argument": 3}, "'CartPole-v1' does not take these arguments.*no_such_argument"),
        ({"vectorization": "vector_entry_point", "wrappers": [gym.wrappers.FlattenObservation]}, "wrappers were given"),
    ],
)
def test_settings_that_cannot_work_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        make_env("CartPole-v1", **arguments)
    with pytest.raises(EnvError, match="it has none"):
        make_env("Pendulum-v1", vectorization="vector_entry_point")
    with pytest.raises(EnvError, match="for Gymnasium ids"):
        make_env(Tiny, vectorization="vector_entry_point")


def test_names_of_envpool_are_looked_up_too() -> None:
    pytest.importorskip("envpool")
    with pytest.raises(EnvError, match=r"EnvPool has no environment 'CartPol-v1'\. Did you mean CartPole-v1"):
        make_env("envpool:CartPol-v1")
    with pytest.raises(EnvError, match="takes no wrappers"):
        make_env("envpool:CartPole-v1", wrappers=[gym.wrappers.FlattenObservation])


@pytest.mark.parametrize("spec", ["ALE/Pong-v5", "BreakoutNoFrameskip-v4"])
def test_atari_games_come_preprocessed(spec: str) -> None:
    pytest.importorskip("ale_py")
    env = make_env(spec, 2, seed=3, max_num_frames_per_episode=400, num_threads=1)
    assert env.spec_name == spec
    step = env.reset()
    assert (step.obs.shape, step.obs.dtype) == ((2, 4, 84, 84), np.uint8)
    ends, rewards = 0, []
    for _ in range(250):
        step = env.step(np.full(2, 1))
        rewards += step.rewards.tolist()
        if step.final_rows is not None:
            ends += len(step.final_rows)
            assert step.final_obs.shape[1:] == (4, 84, 84)
            assert (step.final_obs != step.obs[step.final_rows]).any()
            assert set(step.infos) == set(step.final_rows.tolist())
            assert "final_obs" not in step.infos[int(step.final_rows[0])]
    assert ends >= 2
    assert set(rewards) <= {-1.0, 0.0, 1.0}
    env.close()
    with pytest.raises(EnvError, match="takes no wrappers"):
        make_env(spec, wrappers=[gym.wrappers.FlattenObservation])


def test_old_and_new_atari_ids_keep_their_stickiness() -> None:
    pytest.importorskip("ale_py")
    from twostep.vector.atari import atari_spec

    assert atari_spec("CartPole-v1") is None
    assert atari_spec("ALE/Pong-v5").kwargs["repeat_action_probability"] == 0.25
    assert atari_spec("PongNoFrameskip-v4").kwargs["repeat_action_probability"] == 0.0


SHORT = {"team": ("scout", "light"), "max_seconds": 4.0}


def test_functions_that_make_environments_of_many_agents_work_like_all_others() -> None:
    """E12, EB12: by function, path, config and object, with whom to control and who plays the rest."""
    made: list[HeuristicPolicy] = []

    def opponent() -> HeuristicPolicy:
        made.append(HeuristicPolicy())
        return made[-1]

    env = make_env(
        lambda **kwargs: SkirmishEnv(EnvConfig(**kwargs)), 3, 1, agent_ids="red_*", opponent=opponent, **SHORT
    )
    assert isinstance(env, AgentsVectorEnv)
    assert (env.num_envs, env.num_rows, env.agent_ids) == (3, 6, ("red_0", "red_1"))
    assert len(made) == 3
    assert make_env("twostep.worlds.skirmish:SkirmishEnv", 2).spec_name == "twostep.worlds.skirmish:SkirmishEnv"
    assert make_env(EnvConfig(**SHORT), 2).num_rows == 4
    single = SkirmishEnv(EnvConfig(**SHORT))
    assert make_env(single, agent_ids="*").envs == [single]
    assert isinstance(as_env(SkirmishEnv()), AgentsVectorEnv)
    with pytest.raises(EnvError, match="num_envs=2, but the environment object has 5 rows"):
        make_env(SkirmishEnv(), 2)


def test_wrappers_go_around_environments_of_many_agents_too() -> None:
    class Generous:
        def __init__(self, env: Any) -> None:
            self.env = self.unwrapped = env

        def __getattr__(self, name: str) -> Any:
            return getattr(self.env, name)

        def step(self, actions: Any) -> Any:
            obs, rewards, *rest = self.env.step(actions)
            return obs, {agent: reward + 1000 for agent, reward in rewards.items()}, *rest

    env = make_env("skirmish", 2, 1, wrappers=[Generous], **SHORT)
    assert isinstance(env, AgentsVectorEnv)
    env.reset()
    assert (env.step(np.zeros((4, 3), dtype=int)).rewards > 900).all()


def test_skirmish_by_its_name_is_one_simulation_of_all_matches() -> None:
    """E12: the same as `SkirmishRows` made by hand; arguments are those of its config."""
    env = make_env("skirmish", 3, 7, agent_ids="red_*", **SHORT)
    assert isinstance(env, SkirmishRows)
    assert env.agent_ids == ("red_0", "red_1")
    expected = SkirmishRows(EnvConfig(**SHORT), 3, 7, agent_ids="red_*")
    np.testing.assert_array_equal(first_obs(env), first_obs(expected))
    assert make_env("skirmish", 2).agent_ids == tuple(f"blue_{slot}" for slot in range(5))
    with pytest.raises(ConfigError, match=r"sizes is no setting of skirmish. Did you mean size"):
        make_env("skirmish", sizes=70)
    with pytest.raises(EnvError, match="single agents"):
        make_env("skirmish", vectorization="sync", agent_ids="blue_*")


def test_an_opponent_that_plays_match_by_match_gets_environments_of_its_own() -> None:
    """EB12: what can only `act` plays one match each; what can `plan` plays them all at once."""

    class Idle:
        def act(self, env: Any, agent_id: str) -> Any:
            return np.zeros(3, dtype=int)

    assert isinstance(make_env("skirmish", 2, opponent=Idle), AgentsVectorEnv)
    assert isinstance(make_env("skirmish", 2, opponent=HeuristicPolicy), SkirmishRows)


def test_an_environment_that_takes_turns_comes_with_the_way_out() -> None:
    pettingzoo = pytest.importorskip("pettingzoo")
    chess = pettingzoo.make("aec", "butterfly/knights_archers_zombies-v11")
    for make in (as_env, make_env, lambda env: make_env(lambda: env)):
        with pytest.raises(EnvError, match=r"is an AEC environment.*parallel_env.*aec_to_parallel\(env\)"):
            make(chess)
    assert isinstance(as_env(pettingzoo.utils.aec_to_parallel(chess)), AgentsVectorEnv)


@pytest.mark.parametrize("spec", ["mpe2.simple_spread_v3:parallel_env", "pettingzoo:make"])
def test_environments_of_pettingzoo_by_their_paths(spec: str) -> None:
    pytest.importorskip("mpe2")
    pytest.importorskip("pettingzoo")
    games = {"pettingzoo:make": {"env_type": "parallel", "id": "butterfly/knights_archers_zombies-v11"}}
    env = make_env(spec, 8, 3, **games.get(spec, {}))
    assert isinstance(env, AgentsVectorEnv)
    assert env.num_rows == 8 * len(env.agent_ids)
    np.testing.assert_array_equal(first_obs(env), first_obs(make_env(spec, 8, 3, **games.get(spec, {}))))
    env.close()


def test_what_cannot_move_to_another_process_is_refused() -> None:
    with pytest.raises(EnvError, match=r"An environment object takes no num_workers.*a function could"):
        make_env(Tiny(), num_workers=1)
    with pytest.raises(EnvError, match="SyncVectorEnv takes no agent_ids"):
        make_env(lambda: gym.make_vec("CartPole-v1", 3, vectorization_mode="sync"), agent_ids="a")


class Levelled(Tiny):
    """Says in its observation what it was made with."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.array([self.level / 10, 0], dtype=np.float32), {}


@pytest.mark.parametrize(
    ("spec", "arguments"),
    [
        ("CartPole-v1", {}),
        ("skirmish", SHORT),
        ("twostep.worlds.skirmish:SkirmishEnv", {"agent_ids": "red_*"}),
        (EnvConfig(**SHORT), {"agent_ids": "*"}),
        ("mpe2.simple_spread_v3:parallel_env", {"N": 2}),
        (Levelled, {"level": 4}),
    ],
    ids=["id", "skirmish", "path", "config", "PettingZoo", "class"],
)
def test_workers_step_the_same_environments(spec: Any, arguments: dict[str, Any]) -> None:
    """E17, E18: by every kind of spec, row for row what this process would have stepped."""
    if "mpe2" in str(spec):
        pytest.importorskip("mpe2")
    here, there = make_env(spec, 3, 5, **arguments), make_env(spec, 3, 5, num_workers=2, **arguments)
    try:
        np.testing.assert_array_equal(first_obs(there), first_obs(here))
        for _ in range(15):
            actions = np.stack([here.action_space.sample() for _ in range(here.num_rows)])
            ours, theirs = here.step(actions), there.step(actions)
            for name in ("obs", "episode_starts", "rewards", "terminated", "truncated", "valid"):
                np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
            assert ours.infos == theirs.infos
    finally:
        there.close()
