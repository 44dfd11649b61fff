"""Suites written by people: read as they were meant, or refused in one line that says where and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostep.cli import main
from twostep.config.suites import load_suite, suite_from_dict
from twostep.errors import ConfigError
from twostep.suites import SimulationCase, SimulationSuite
from twostep.vector import make_env

EXAMPLES = Path(__file__).parents[2] / "examples" / "suites"

MALFORMED = {
    "empty": ("", "is empty: write at least 'cases:"),
    "a list": ("- a\n- b\n", "must be a mapping"),
    "no cases": ("name: x\nepisodes: 3\n", "the suite has no cases"),
    "cases that are nothing": ("cases:\n", ":1: cases=None must be a mapping"),
    "no case": ("cases: {}\n", ":1: cases={} must be cases by name, one at least"),
    "a list of cases": ("name: x\ncases: [a, b]\n", ":2: cases=['a', 'b'] must be a mapping"),
    "cases twice": ("cases: {a: C-v1}\nsimulations: {b: C-v1}\n", ":2: the suite gives its cases twice"),
    "a typo": ("episods: 3\ncases: {a: C-v1}\n", ":1: 'episods' is no setting. Did you mean 'episodes'?"),
    "a typo in cases": ("case: {a: C-v1}\n", ":1: 'case' is no setting. Did you mean 'cases'?"),
    "a typo in a case": (
        "cases:\n  a/b:\n    env: C-v1\n    max_time: 3\n",
        ":4: 'max_time' is no setting. Did you mean",
    ),
    "far from any setting": ("xyzzy: 3\ncases: {a: C-v1}\n", ":1: 'xyzzy' is no setting. Settings: cases, name, seed,"),
    "no environment": ("cases:\n  a/b:\n    episodes: 3\n", ":2: cases.a/b has no env"),
    "an environment that is a number": ("cases:\n  a/b:\n    env: 5\n", ":3: env=5 must be an environment's id"),
    "no episodes": ("cases:\n  a/b:\n    env: C-v1\n    episodes: 0\n", ":4: episodes=0 must be from 1 to"),
    "too many episodes": ("episodes: 1e9\ncases: {a: C-v1}\n", ":1: episodes=1000000000 must be from 1 to 1,000,000"),
    "words for numbers": ("episodes: many\ncases: {a: C-v1}\n", ":1: episodes='many' must be a whole number"),
    "a case that is a number": ("cases:\n  a/b: 3\n", ":2: cases.a/b=3 must be a mapping"),
    "a case that is nothing": ("cases:\n  a/b:\n  c/d: C-v1\n", ":2: cases.a/b=None must be a mapping"),
    "too many slashes": ("cases:\n  ok: C-v1\n  a/b/c: C-v1\n", ":3: cases.'a/b/c' must be named by"),
    "a name that leads away": ("cases:\n  ../up: C-v1\n  a b: C-v1\n", ":3: cases.'a b' must be named by"),
    "a number as a name": ("cases:\n  1: C-v1\n", ":2: cases.1 must be named by"),
    "a name that is taken": ("cases:\n  nav/score: C-v1\n", ":2: cases.nav/score must have another name"),
    "a case twice": ("cases:\n  a: C-v1\n  a: D-v1\n", ":3: key 'a' is already on line 2: keep one."),
    "a setting twice": (
        "cases:\n  a:\n    env: C-v1\n    episodes: 1\n    num_episodes: 2\n",
        ":5: episodes is given twice, as 'episodes' and 'num_episodes'",
    ),
    "a tab": ("cases:\n\ta: C-v1\n", ":2: a tab where YAML wants spaces"),
    "a tag": ("cases: !!python/object:os.system {a: b}\n", ":1: tag '!!python/object:os.system' is not allowed"),
    "an unknown opponent": ("cases:\n  a:\n    env: skirmish\n    npc: heuristics\n", ":4: npc='heuristics' must be"),
    "negative time": ("max_time_s: -3\ncases: {a: C-v1}\n", ":1: max_time_s=-3.0 must be positive"),
    "no number as time": ("cases:\n  a: {env: C-v1, max_time_s: .nan}\n", ":2: max_time_s=nan must be finite"),
    "kwargs that are a number": ("cases:\n  a:\n    env: C-v1\n    kwargs: 3\n", ":4: kwargs=3 must be a mapping"),
    "kwargs of ours": ("cases:\n  a:\n    env: C-v1\n    kwargs: {seed: 3}\n", ":4: kwargs.seed=3 must be set without"),
    "a number for a truth": ("deterministic: 3\ncases: {a: C-v1}\n", ":1: deterministic=3 must be true or false"),
    "a negative seed": ("seed: -1\ncases: {a: C-v1}\n", ":1: seed=-1 must be from 0"),
    "an unknown selector": ("cases:\n  a: {env: s, npc_selector: top}\n", ":2: npc_selector='top' must be one of"),
    "no YAML": ("cases: a: b\n", ":1: not YAML"),
    "unclosed": ("cases: {a: {env: C-v1}\n", "not YAML"),
    "not text": (b"cases: \xff\n", "is not UTF-8 text"),
    "too large": ("# " + "x" * 1_000_001, "more than the 1,000,000 of any settings"),
    "too deep": ("cases: " + "{a: " * 60 + "1" + "}" * 60, "nested too deeply"),
    "too many cases": (
        "cases: {" + ", ".join(f"c{n}: C-v1" for n in range(1001)) + "}",
        "must be at most 1,000, not 1,001",
    ),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_each_fault_is_one_line_and_exit_code_2(kind, tmp_path, capsys, monkeypatch):
    """M1: with the file, the line where it is known, the rule and the way out."""
    monkeypatch.chdir(tmp_path)
    text, expected = MALFORMED[kind]
    Path("suite.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert main(["eval", "nowhere", "--suite", "suite.yaml"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1, said.err
    assert said.err.startswith("twostep: suite.yaml")
    assert expected in said.err


def test_training_refuses_a_suite_before_anything_is_made(tmp_path, capsys, monkeypatch):
    """M1: not after hours, at the first evaluation."""
    monkeypatch.chdir(tmp_path)
    Path("suite.yaml").write_text("cases:\n  a: {env: C-v1, episods: 2}\n")
    assert main(["train", "CartPole-v1", "--trainer.suite", "suite.yaml", "--eval_every", "100"]) == 2
    assert "suite.yaml:2: 'episods' is no setting" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--trainer.suite", "x.yaml"], "trainer.suite='x.yaml' must be empty where eval_every=0"),
        (["--eval_background", "--eval_every", "9"], "trainer.eval_background=True must be false without a suite"),
        (["--trainer.suite", "x.yaml", "--eval_every", "9"], "x.yaml does not exist"),
    ],
)
def test_settings_that_make_no_sense_together(words, complaint, capsys):
    assert main(["train", "CartPole-v1", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_other_names_and_short_forms(tmp_path):
    """M11: who knows suites by other names is understood."""
    file = tmp_path / "suite.yaml"
    file.write_text(
        "name: walks\nnum_episodes: 7\nkwargs: {a: 1}\n"
        "simulations:\n"
        "  x/y.z: Plain-v1\n"
        "  b:\n    env: skirmish\n    env_overrides: {max_seconds: 3e0}\n    npc_policy_uri: file://p\n"
        "    agent_ids: blue_*\n    deterministic: no\n    max_time_s: 1e1\n"
    )
    case = SimulationCase(
        env="skirmish",
        kwargs={"max_seconds": 3.0},
        npc="file://p",
        agent_ids=("blue_*",),
        deterministic=False,
        max_time_s=10.0,
    )
    cases = {"x/y.z": SimulationCase(env="Plain-v1"), "b": case}
    assert load_suite(file) == SimulationSuite(name="walks", episodes=7, kwargs={"a": 1}, cases=cases)
    changed = load_suite(file, {"episodes": 2, "deterministic": True})
    assert changed.resolved()["b"].deterministic is True
    assert {each.episodes for each in changed.resolved().values()} == {2}


def test_a_dict_is_read_like_a_file():
    data = {"cases": {"a": {"env": "C-v1", "episodes": "5"}}}
    assert suite_from_dict(data) == SimulationSuite(cases={"a": SimulationCase(env="C-v1", episodes=5)})
    assert data == {"cases": {"a": {"env": "C-v1", "episodes": "5"}}}
    with pytest.raises(ConfigError, match=r"cases.a has no env"):
        suite_from_dict({"cases": {"a": {}}})
    with pytest.raises(ConfigError, match=r"cases.a=3 must be a SimulationCase"):
        SimulationSuite(cases={"a": 3})


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_example_suites_can_be_played(path):
    """M1: every environment of every case can be made."""
    for case in load_suite(path).resolved().values():
        make_env(case.env, 1, agent_ids=case.agent_ids or None, **case.kwargs).close()
