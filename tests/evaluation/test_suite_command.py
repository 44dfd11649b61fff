"""`twostep eval --suite`, evaluations by a suite while training, and policies named by folder or URI."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from twostep import BackgroundEvaluator, PolicyEvaluator, PolicyStore, make_env
from twostep.cli import main
from twostep.config.suites import load_suite

SUITE = """\
name: two balances
episodes: 4
num_envs: 2
cases:
  balance/long: CartPole-v1
  balance/short: {env: CartPole-v1, max_steps: 12}
"""
QUICK = ("--ppo.rollout_steps", "16", "--no_tensorboard", "--no_progress", "--hidden_size", "8")


CLOCKS = {"time", "collect_time", "learn_time", "steps_per_second"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short training that was evaluated by a suite in the background, each time in time for the next."""
    folder, submit = tmp_path_factory.mktemp("trained"), BackgroundEvaluator.submit
    (folder / "suite.yaml").write_text(SUITE)

    def submit_and_wait(self, policy, step):
        submitted = submit(self, policy, step)
        self._thread.join()
        return submitted

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(BackgroundEvaluator, "submit", submit_and_wait)
        words = ["--total_timesteps", "384", "--trainer.suite", "suite.yaml", "--eval_every", "128"]
        assert main(["train", "CartPole-v1", *QUICK, *words, "--eval_background"]) == 0
    return next((folder / "runs").iterdir())


@pytest.fixture
def copied(run, tmp_path, monkeypatch):
    """A run of one's own, and the suite beside it."""
    shutil.copytree(run, tmp_path / "runs" / run.name)
    shutil.copy(run.parents[1] / "suite.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / run.name


def test_rows_carry_the_step_that_was_evaluated(run):
    """M1: what is evaluated in the background is logged where the policy was, and the best one is kept."""
    rows = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [128, 256, 384]
    best = max(rows, key=lambda row: row["score"])
    record = PolicyStore().load_from_uri(run / "best")
    assert record.metadata["agent_step"] == best["step"]
    assert record.metadata["score"] == best["score"]
    assert record.metadata["eval_scores"]["balance/long"] == best["balance/long"]
    evaluator = PolicyEvaluator(load_suite(run.parents[1] / "suite.yaml"))
    assert evaluator.evaluate(record).score == best["score"], "what the background found is what is found again"


def test_at_once_and_in_the_background_bring_the_same(run, tmp_path, monkeypatch):
    """M1: the same training has the same rows and the same end either way."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(run.parents[1] / "suite.yaml", tmp_path)
    words = ["--total_timesteps", "384", "--trainer.suite", "suite.yaml", "--eval_every", "128"]
    assert main(["train", "CartPole-v1", *QUICK, *words]) == 0
    (other,) = Path("runs").iterdir()
    for file, clocks in (("evaluations.jsonl", {"time", "seconds"}), ("metrics.jsonl", CLOCKS)):
        first, second = ((each / file).read_text().splitlines() for each in (run, other))
        for one, two in zip(map(json.loads, first), map(json.loads, second), strict=True):
            assert {k: v for k, v in one.items() if k not in clocks} == {
                k: v for k, v in two.items() if k not in clocks
            }


def test_a_table_json_and_a_picture(copied, capsys):
    """M1: `twostep eval RUN --suite suite.yaml`."""
    assert main(["eval", "--suite", "suite.yaml"]) == 0
    said = capsys.readouterr().out
    assert "two balances" in said
    assert f"{copied.name}/checkpoints/step_000000000384 after 384 steps" in said
    for words in ("balance ", "  long ", "  short ", "4 cut"):
        assert words in said
    scores = json.loads((copied / "suites" / "two-balances.json").read_text())
    assert scores["metadata"]["agent_step"] == 384
    assert scores["policy"].endswith("/checkpoints/step_000000000384")
    assert set(scores["cases"]["balance/short"]["lengths"]) <= set(range(1, 13))
    assert (copied / "suites" / "two-balances.png").read_bytes().startswith(b"\x89PNG")
    policy = PolicyStore().load_from_uri(scores["policy"]).policy()
    again = PolicyEvaluator(load_suite("suite.yaml")).evaluate(policy)
    assert again.to_dict()["cases"]["balance/long"]["returns"] == scores["cases"]["balance/long"]["returns"]


def test_what_is_not_known_of_a_policy_is_null(copied, tmp_path, small_policy):
    """M1: before an episode has ended a trainer has no score; the file is JSON all the same."""
    policy = small_policy(make_env("CartPole-v1"))
    record = PolicyStore(tmp_path / "kept").save("young", policy, {"score": math.nan, "eval_scores": {"a": [math.inf]}})
    assert main(["eval", record.uri, "--suite", "suite.yaml", "--episodes", "1", "--out", "."]) == 0
    scores = json.loads(Path("two-balances.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert scores["metadata"] == {"score": None, "eval_scores": {"a": [None]}}


def test_the_command_line_wins_over_the_file(copied, capsys):
    words = ["--suite", "suite.yaml", "--episodes", "3", "--seed", "8", "--sample", "--out", "elsewhere"]
    assert main(["eval", f"file://{copied}/best", *words]) == 0
    assert "acting by chance" in capsys.readouterr().out
    scores = json.loads(Path("elsewhere/two-balances.json").read_text())
    assert (scores["seed"], scores["deterministic"]) == (8, False)
    assert [case["episodes"] for case in scores["cases"].values()] == [3, 3]
    assert scores["policy"].endswith("/best")


def test_one_saved_policy_is_evaluated_in_its_runs_environment(copied, capsys):
    """M13: a folder or URI names one policy; the run around it says what to play."""
    for what in (copied / "best", f"file://{copied}/best"):
        assert main(["eval", str(what), "--episodes", "2"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("best: 2 episodes of CartPole-v1, always taking the likeliest action")
    half = len(said) // 2
    assert said[:half] == said[half:]
    shutil.move(copied / "best", "alone")
    assert main(["eval", "alone"]) == 2
    assert "alone is in no run's folder" in capsys.readouterr().err
    assert main(["eval", "alone", "--suite", "suite.yaml", "--episodes", "1"]) == 0
    assert Path("suites/two-balances.json").is_file()
    assert main(["play", "alone"]) == 2


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--out", "x"], "add --suite FILE"),
        (["--suite"], "--suite needs a value"),
        (["--suit", "x"], "Did you mean --suite?"),
        (["--suite", "none.yaml"], "none.yaml does not exist"),
        (["--suite", "suite.yaml", "--out", "suite.yaml"], "suite.yaml cannot be made: File exists"),
        (["--suite", "suite.yaml", "--device", "cuda:99"], "device='cuda:99' is not there"),
    ],
)
def test_wrong_words(words, complaint, copied, capsys):
    assert main(["eval", *words]) == 2
    assert complaint in capsys.readouterr().err
