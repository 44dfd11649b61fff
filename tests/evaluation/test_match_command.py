"""`twostep eval` of a run of matches: who won how often, how sure that is, in matches that training never saw."""

from __future__ import annotations

import re

import pytest

from twostep import evaluation
from twostep.cli import main

SHORT = ("--env.kwargs.max_seconds", "6", "--env.kwargs.walls", "2", "--env.num_envs", "2")
QUICK = ("--total_timesteps", "200", "--ppo.rollout_steps", "16", "--no_tensorboard", "--no_progress")


@pytest.fixture
def seen(monkeypatch):
    """What evaluation was asked for and what it answered, newest last."""
    calls, play = [], evaluation.evaluate_vs_heuristic

    def watched(*args, **settings):
        calls.append((args, settings, play(*args, **settings)[0]))
        return calls[-1][2], None

    monkeypatch.setattr(evaluation, "evaluate_vs_heuristic", watched)
    return calls


@pytest.mark.slow
def test_a_run_of_matches_is_judged_by_its_wins(tmp_path, monkeypatch, capsys, seen):
    """E24, E25: with the rules of the run, its interval, both ways of acting, and the same answer again."""
    monkeypatch.chdir(tmp_path)
    assert main(["train", "skirmish", *SHORT, *QUICK]) == 0
    capsys.readouterr()
    said = []
    for words in ([], [], ["--sample"], ["--seed", "9"]):
        assert main(["eval", "--episodes", "3", *words]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert (
        said[0]
        .splitlines()[0]
        .endswith("3 matches of skirmish against the heuristic, always taking the likeliest action")
    )
    assert said[2].splitlines()[0].endswith("acting by chance, as in training")
    (_, rules, episodes, seed, _), settings, stats = seen[0]
    assert (rules.max_seconds, rules.walls, episodes, settings["deterministic"]) == (6, 2, 3, True)
    assert [call[0][3] for call in seen] == [seed, seed, seed, 9]
    assert seen[2][1]["deterministic"] is False
    low, high = stats.win_interval
    won = re.search(
        r"won +([\d.]+%) +\(95 % interval ([\d.]+%) to ([\d.]+%)\): (\d) won, (\d) lost, (\d) drawn", said[0]
    )
    assert won is not None
    expected = (f"{stats.win_rate:.1%}", f"{low:.1%}", f"{high:.1%}", stats.wins, stats.losses, stats.draws)
    assert won.groups() == tuple(map(str, expected))
