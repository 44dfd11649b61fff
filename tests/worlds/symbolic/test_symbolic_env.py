"""The world symbolic through its three faces: Gymnasium, rows, and `make_env` by name."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from twostep.errors import ConfigError, EnvError
from twostep.vector import check_env, make_env
from twostep.worlds.symbolic import LAWS, Dataset, Law, SymbolicConfig, SymbolicEnv, SymbolicRows, best_of

SEVERAL = SymbolicConfig(law=("kepler", "gravity", "oscillator"), show_data=True, max_tokens=9)


def chosen(masks, rng):
    return np.where(masks, rng.random(masks.shape), -1).argmax(1)


def say(env, words):
    """Write an expression word by word; return the last answer."""
    answer = None
    for word in words.split():
        answer = env.step(env.search.grammar.words.index(word))
    return answer


def test_it_keeps_gymnasiums_contract():
    """J32: by twostep's checker, which honours masks, and by Gymnasium's, which does not."""
    from gymnasium.utils.env_checker import check_env as check_as_gymnasium

    check_env(SymbolicEnv(SEVERAL))
    check_as_gymnasium(SymbolicEnv(law="lens"), skip_render_check=True)


def test_a_law_is_found_word_by_word():
    """J20: the reward comes at the end; `best` keeps the law as people write it."""
    env = SymbolicEnv(law="pendulum")
    _, info = env.reset(seed=0)
    assert info["task"] == "pendulum"
    _, reward, terminated, truncated, info = say(env, "sqrt div x0 x1")
    assert (terminated, truncated, info["found"]) == (True, False, True)
    assert (info["expression"], info["complexity"]) == ("sqrt(l / g)", 4)
    assert reward == pytest.approx(1 + 1 - 0.02 * 4 / 30)
    assert env.best()["pendulum"].expression == "T = 6.283 * sqrt(l / g)"
    with pytest.raises(EnvError, match="reset"):
        env.step(0)


def test_rewards_follow_the_fit():
    """Nothing for a constant or for what has no value, the more for the better, more for the smaller of equals."""
    env = SymbolicEnv(law="kepler", exact_bonus=0.5)
    rewards = []
    for words in ("log sub 1 2", "1", "square x0", "mul x0 sqrt mul 1 x0", "mul x0 sqrt x0"):
        env.reset()
        rewards.append(say(env, words)[1])
    assert rewards[0] < 0
    assert rewards[1] < 0
    assert rewards == sorted(rewards)
    assert rewards[-1] == pytest.approx(1.5 - 0.02 * 4 / 30)
    assert env.best()["kepler"].complexity == 4
    assert env.best()["kepler"].expressions == 5
    assert env.search.tried == {"kepler": 5}


def test_a_token_that_is_not_allowed_breaks_the_expression_off():
    """JB14 family: agents without masks get a penalty and an end, not a half-valid expression."""
    env = SymbolicEnv(law="kepler", max_tokens=1)
    env.reset(seed=0)
    assert env.action_masks().sum() == env.search.grammar.num_leaves
    _, reward, terminated, _, info = say(env, "add")
    assert (reward, terminated, info["refused"]) == (-1.0, True, "add")
    for action, rule in ((len(env.search.grammar), "is no token"), (0.5, "whole number")):
        env.reset()
        with pytest.raises(EnvError, match=rule):
            env.step(action)


@pytest.mark.parametrize("config", [SEVERAL, SymbolicConfig(law="orbit", max_tokens=7, max_complexity=8, max_depth=3)])
def test_rows_are_the_single_environments_row_for_row(config):
    """Observations, masks, rewards, ends and infos, over many episodes, drawn tasks included."""
    rows, count = SymbolicRows(config, 5, seed=11), 5
    step = rows.reset()
    from twostep.vector import row_seeds

    singles = [SymbolicEnv(config) for _ in range(count)]
    begun = [env.reset(seed=seed) for env, seed in zip(singles, row_seeds(11, count), strict=True)]
    seen = [obs for obs, _ in begun]
    rng, tasks, ended = np.random.default_rng(0), set(), 0
    for _ in range(120):
        assert np.array_equal(step.obs, np.stack(seen))
        assert np.array_equal(step.action_masks, np.stack([env.action_masks() for env in singles]))
        actions = chosen(step.action_masks, rng)
        actions[rng.random(count) < 0.02] = len(rows.search.grammar) - 1
        step = rows.step(actions)
        for row, env in enumerate(singles):
            seen[row], reward, terminated, _, info = env.step(actions[row])
            assert (step.rewards[row], step.terminated[row]) == (np.float32(reward), terminated)
            assert step.episode_starts[row] == terminated
            if terminated:
                ended += 1
                info.pop("action_mask")
                assert step.infos[row] == info
                assert np.array_equal(step.final_obs[step.final_rows.tolist().index(row)], seen[row])
                tasks.add(info["task"])
                seen[row], _ = env.reset()
    assert ended > 50
    assert tasks == {task.name for task in config.tasks}
    assert best_of(one for env in singles for one in env.best().values()).keys() == rows.best().keys()


def test_the_same_seed_gives_the_same_search_in_any_process():
    """JB14: nothing depends on how Python hashes; observations keep their length from the first token to the last."""
    program = """
import numpy as np, zlib
from twostep.worlds.symbolic import SymbolicRows, SymbolicConfig
env = SymbolicRows(SymbolicConfig(law=("lens", "throw"), show_data=True), 8, seed=5)
step, rng, digest, shapes = env.reset(), np.random.default_rng(0), 0, set()
for _ in range(60):
    step = env.step(np.where(step.action_masks, rng.random(step.action_masks.shape), -1).argmax(1))
    digest = zlib.crc32(step.obs.tobytes() + step.rewards.tobytes() + repr(step.infos).encode(), digest)
    shapes.add(step.obs.shape)
print(digest, shapes)
"""
    said = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": hashed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for hashed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1
    assert said.pop().count("(") == 1


def test_observations_say_what_is_written():
    """The tokens so far, the next place's parent and sibling, what is left, and the data where asked for."""
    env = SymbolicEnv(law=["kepler", "gravity"], show_data=True, max_tokens=5, max_complexity=10, max_depth=4)
    n = len(env.search.grammar)
    obs, _ = env.reset(seed=0, options={"task": "kepler"})
    assert not obs[: 7 * n].any()
    assert obs[7 * n : 7 * n + 4] == pytest.approx([1 / 5, 1 / 4, 1, 1])
    features = obs[7 * n + 4 :].reshape(3, 3)
    assert features[0] == pytest.approx([1, features[0, 1], 1.0], abs=1e-6), "T = a^1.5 is a line in logarithms"
    assert not features[1:].any()
    mul, a = env.search.grammar.words.index("mul"), 0
    env.step(mul)
    obs = env.step(a)[0]
    assert np.flatnonzero(obs[: 7 * n]).tolist() == [mul, n + a, 5 * n + mul, 6 * n + a]
    assert obs[7 * n : 7 * n + 4] == pytest.approx([1 / 5, 2 / 4, 3 / 5, 8 / 10])


def test_tasks_come_by_option_by_set_task_and_by_draw():
    """J20: names, laws of one's own and data; what was not there before needs room for its variables."""
    mine = Law("area", "A = r^2", {"r": (1.0, 2.0)}, lambda r: r**2)
    data = Dataset("sum", ("p", "q"), np.arange(10.0).reshape(2, 5), np.arange(5.0) + 1)
    env = SymbolicEnv(law="gravity")
    assert env.reset(seed=0, options={"task": "kepler"})[1]["task"] == "kepler"
    assert not env.action_masks()[1:3].any(), "only the variables that the law has"
    assert env.reset()[1]["task"] == "gravity", "an option is for one episode"
    env.set_task(mine)
    assert env.reset()[1]["task"] == "area"
    assert say(env, "square x0")[4]["found"]
    env.set_task([data, "kepler"])
    assert {env.reset()[1]["task"] for _ in range(30)} == {"sum", "kepler"}
    with pytest.raises(ConfigError, match="num_variables=4"):
        env.set_task("oscillator")
    with pytest.raises(ConfigError, match="no law 'kelper'"):
        env.reset(options={"task": "kelper"})
    with pytest.raises(ConfigError, match="no task"):
        env.set_task([])
    roomy = SymbolicEnv(law="kepler", num_variables=4)
    roomy.set_task("oscillator")
    assert roomy.reset(seed=0)[1]["task"] == "oscillator"


def test_a_curriculum_tells_each_row_its_task():
    """J42: from the next expression on; the running one is finished for the task that it was begun for."""
    rows = SymbolicRows(SymbolicConfig(law="gravity"), 3, seed=0)
    rows.reset()
    rows.assign({1: "kepler", 2: ["lens", "orbit"]})
    assert [rows.search.task_name(row) for row in range(3)] == ["gravity"] * 3
    seen = [set(), set(), set()]
    for _ in range(20):
        step = rows.step(np.zeros(3, dtype=int))
        assert step.terminated.all()
        for row in range(3):
            seen[row].add(rows.search.task_name(row))
    assert seen == [{"gravity"}, {"kepler"}, {"lens", "orbit"}]
    with pytest.raises(EnvError, match="row 3"):
        rows.assign({3: "kepler"})


def test_it_is_made_by_name():
    """Rows where nothing stands between, single environments in workers, and nothing that it cannot take."""
    env = make_env("symbolic", 4, seed=3, law="kepler")
    assert isinstance(env, SymbolicRows)
    first = env.reset()
    with make_env("symbolic", 4, seed=3, num_workers=2, law="kepler") as workers:
        step = workers.reset()
        assert np.array_equal(step.obs, first.obs)
        assert np.array_equal(step.action_masks, first.action_masks)
        rng = np.random.default_rng(0)
        for _ in range(40):
            actions = chosen(first.action_masks, rng)
            first, step = env.step(actions), workers.step(actions)
            assert np.array_equal(step.obs, first.obs)
            assert np.array_equal(step.rewards, first.rewards)
        bests = best_of(one for best in workers.call("best") for one in best.values())
        assert bests["kepler"].expression == env.best()["kepler"].expression
    with pytest.raises(EnvError, match="opponent"):
        make_env("symbolic", 4, opponent=object)
    with pytest.raises(ConfigError, match=r"Did you mean law\?"):
        make_env("symbolic", 4, laws="kepler")


def test_rows_refuse_what_makes_no_sense():
    env = SymbolicRows(SymbolicConfig(), 3)
    with pytest.raises(EnvError, match="before reset"):
        env.step(np.zeros(3, dtype=int))
    with pytest.raises(EnvError, match="indices"):
        env.reset(indices=[0])
    env.reset(seed=0)
    with pytest.raises(EnvError, match="3 rows"):
        env.step(np.zeros(2, dtype=int))
    with pytest.raises(EnvError, match="num_envs=0"):
        SymbolicRows(SymbolicConfig(), 0)


def test_some_rows_begin_anew():
    env = SymbolicRows(SymbolicConfig(law="gravity"), 3, seed=0)
    env.reset()
    env.step(np.full(3, env.search.grammar.words.index("mul")))
    step = env.reset(indices=[1])
    assert step.episode_starts.tolist() == [False, True, False]
    assert env.search.drafts.length.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"law": "gravty"}, "no law 'gravty'"),
        ({"law": ()}, "law is empty"),
        ({"law": ("kepler", "kepler")}, "name of its own"),
        ({"operators": ("add", "tan")}, "'tan'"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"max_depth": 2.5}, "whole number"),
        ({"size_penalty": -1.0}, "size_penalty=-1.0"),
        ({"num_variables": 1, "law": "lens"}, "at least 2"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        SymbolicConfig(**settings)


def test_settings_survive_being_written():
    config = SymbolicConfig(law=["lens", "throw"], operators=["add", "mul"], constants=[1, 3.5], max_tokens=9)
    assert SymbolicConfig.from_dict(config.to_dict()) == SymbolicConfig.from_dict(
        SymbolicConfig.from_dict(config.to_dict()).to_dict()
    )
    assert SymbolicConfig.from_dict(config.to_dict()).grammar == config.grammar
    with pytest.raises(ConfigError, match="in Python"):
        SymbolicConfig(law=LAWS["kepler"]).to_dict()
