"""docs/metrics.md names every metric that occurs, and none that does not: RELIABILITY 23, 24; L16 to L18, L29."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from twostep.cli import main
from twostep.stats.sinks import read_rows

PAGE = (Path(__file__).parent.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
TRAINING, EVALUATIONS = PAGE.split("## Rows of evaluations")
ALWAYS = {"step", "time"}
SMALL = ("--hidden_size", "8", "--memory_size", "4", "--rollout_steps", "32", "--update_epochs", "1", "--no-progress")


def rows_of_table(text):
    """Return name, formula, healthy and place of every metric."""
    return re.findall(r"^\| `([\w/]+)` \| (.+?) \|(?: (.+) )? ?\| `([\w.]+)` \|$", text, re.MULTILINE)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What several short runs wrote: rows of training and of evaluations."""
    folder = tmp_path_factory.mktemp("runs")
    commands = (
        ("CartPole-v1", "--num_envs", "4", "--total_timesteps", "512", "--eval_every", "256", "--eval_episodes", "4"),
        ("CartPole-v1", "--num_envs", "2", "--total_timesteps", "192", "--memory", "gru", "--replay.ratio", "0.5"),
        ("Pendulum-v1", "--num_envs", "2", "--total_timesteps", "128", "--normalize_returns", "--target_kl", "1e-4"),
        (
            *("skirmish", "--num_envs", "4", "--total_timesteps", "3000", "--env.kwargs.max_seconds", "2"),
            *("--eval_every", "1000", "--eval_episodes", "2", "--snapshot_every", "500", "--league_size", "2"),
        ),
    )
    commands += (("quadruped", "--num_envs", "2", "--total_timesteps", "128", "--env.kwargs.max_seconds", "0.2"),)
    tasks = "tasks: {short: {length: 1}, long: {length: 3}}"
    for kind in (f"uniform, {tasks}", f"staged, stages: [0.5], {tasks}", "terrain_grid, terrains: [flat, stairs]"):
        yaml = folder / f"{kind.partition(',')[0]}.yaml"
        yaml.write_text(f"env: {{id: 'twostep.worlds.lock:CombinationLock'}}\ncurriculum: {{kind: {kind}}}\n")
        commands += ((str(yaml), "--num_envs", "4", "--total_timesteps", "256"),)
    suite = folder / "suite.yaml"
    suite.write_text("cases: {balance/cartpole: {env: CartPole-v1, num_episodes: 3}}\n")
    commands += (("CartPole-v1", "--total_timesteps", "128", "--eval_every", "64", "--suite", str(suite)),)
    groups = ("twostep.worlds.classic:cartpole_in_groups", "--num_envs", "2", "--total_timesteps", "128")
    commands += (groups, (*groups, "--teacher", str(folder / str(len(commands)))))
    for number, command in enumerate(commands):
        code = main(["train", *command, *SMALL, "--csv", "--seed", "1", "--run_dir", str(folder / str(number))])
        assert code == 0
    metrics = [row for path in sorted(folder.glob("*/*/metrics.jsonl")) for row in read_rows(path)]
    evaluations = [row for path in sorted(folder.glob("*/*/evaluations.jsonl")) for row in read_rows(path)]
    return folder, metrics, evaluations


def general(name):
    """Write what stands for every task and every case as the page does."""
    name = re.sub(r"^(curriculum/\w+)/.+$", r"\1/TASK", name)
    name = re.sub(r"^episode/\w+$", "episode/NAME", name)
    return re.sub("^balance(/cartpole)?", lambda found: "CATEGORY/CASE" if found[1] else "CATEGORY", name)


def occurring(rows):
    return {general(name) for row in rows for name in row} - ALWAYS


def test_the_page_and_the_files_name_the_same_metrics(runs):
    _, metrics, evaluations = runs
    assert {name for name, *_ in rows_of_table(TRAINING)} == occurring(metrics)
    assert {name for name, *_ in rows_of_table(EVALUATIONS)} == occurring(evaluations)


def test_every_documented_metric_has_been_a_number(runs):
    """A column that is always empty would be a promise only."""
    _, metrics, evaluations = runs
    for rows in (metrics, evaluations):
        numbers = [{name: value for name, value in row.items() if value is not None} for row in rows]
        assert occurring(numbers) == occurring(rows)


def test_csv_and_tensorboard_know_the_same_names(runs):
    folder, metrics, _ = runs
    headers = [path.read_text().splitlines()[0].split(",") for path in folder.glob("*/*/metrics.csv")]
    assert occurring(headers) == occurring(metrics)
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    shown = {
        tag
        for path in folder.glob("*/*/events.out.tfevents.*")
        for tag in accumulator.EventAccumulator(str(path)).Reload().Tags()["scalars"]
    }
    assert {general(name) for name in shown} == {
        name if "/" in name else f"train/{name}" for name in occurring(metrics)
    }


@pytest.mark.parametrize(("name", "place"), [(name, place) for name, _, _, place in rows_of_table(PAGE)])
def test_where_a_metric_is_computed_is_there(name, place):
    """The place is a function or class of a module of twostep."""
    parts = place.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(("twostep", *parts[:split])))
        except ModuleNotFoundError:
            continue
        for attribute in parts[split:]:
            found = getattr(found, attribute)
        assert callable(found), place
        return
    pytest.fail(f"{place}, which {name} is said to be computed in, is no module")


def test_the_guard_can_fail():
    table = "| metric | formula | healthy | computed in |\n|---|---|---|---|\n| `a` | b | | `c.d` |"
    assert rows_of_table(table) == [("a", "b", "", "c.d")]
    assert len(rows_of_table(PAGE)) > 30
