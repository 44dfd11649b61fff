"""`twostep train` in several processes: one run, one folder, and no end that is not told."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from starting import Ended, Started, end_all, start
from thread_group import together

import twostep.cli.together
import twostep.group
from twostep import TrainingConfig
from twostep.checkpoint import from_bytes, load_state, pack, to_bytes
from twostep.cli import main
from twostep.cli.together import cores_shared, launched_before, mark_launched, own_part
from twostep.errors import ConfigError
from twostep.launch import Launch

TIMES = ("time", "collect_time", "learn_time", "steps_per_second")
SOURCES = Path(__file__).parents[2] / "src"
STEPS = 768
SETTINGS: dict[str, Any] = {
    "num_envs": 4,
    "rollout_steps": 16,
    "total_timesteps": STEPS,
    "checkpoint_every": 128,
    "keep_last": 100,
    "lr_schedule": "cosine",
    "lr": 1e-2,
    "hidden_size": 8,
    "normalize_obs": True,
    "progress": False,
    "tensorboard": False,
    "device": "cpu",
}


def words(folder: Path, **changes: Any) -> list[str]:
    settings = {**SETTINGS, "run_dir": folder / "runs", **changes}
    return ["train", "mishaps:make", *[f"--{name}={value}" for name, value in settings.items()]]


def started(folder: Path, changes: dict[str, Any] | None = None, **told: str) -> list[Started]:
    return start(folder / "said", main, words(folder, **(changes or {})), **told)


def the_run(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


def rows_of(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


def parts_of(run: Path) -> list[dict[str, Any]]:
    """Return what each process has at the end, but for generators that nobody seeded."""
    leading, _ = load_state(run / "checkpoints" / f"step_{STEPS:012d}")
    others = [from_bytes(other.numpy().tobytes()) for other in leading.pop("others")]
    return [{name: part for name, part in state.items() if name != "rng"} for state in (leading, *others)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two processes that nothing happens to, and beside them torchrun with two of which one is killed."""
    whole, killed = (tmp_path_factory.mktemp(name) for name in ("whole", "killed"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    torchrun += ["--monitor-interval=0.1", "-m", "twostep", *words(killed)]
    paths = os.pathsep.join((str(SOURCES), str(Path(__file__).parent)))
    told = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MISHAP": "dies", "MISHAP_RANK": "1"}
    with subprocess.Popen(torchrun, env=told, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as both:
        first, second = end_all(started(whole))
        said = both.communicate(timeout=60)[0]
    assert (first.code, second.code, both.returncode) == (0, 0, 0), (first, second, said)
    assert "finished after" in first.out
    assert second.out == "", "one speaks for both"
    return {"whole": the_run(whole), "killed": the_run(killed)}


def test_a_run_in_two_processes_is_one_run(runs: dict[str, Path]) -> None:
    """L22, L27, LB8, LB10: steps, checkpoints, episodes and the rate count over all processes."""
    rows = rows_of(runs["whole"])
    assert [row["step"] for row in rows] == list(range(64, STEPS + 1, 64))
    names = sorted(path.name for path in (runs["whole"] / "checkpoints").iterdir())
    assert names == [f"step_{step:012d}" for step in range(128, STEPS + 1, 128)]
    state, _ = load_state(runs["whole"] / "checkpoints" / names[-1])
    assert state["optimizer_state_dict"]["param_groups"][0]["lr"] == pytest.approx(1e-3, rel=0.01)
    assert state["episodes"] == rows[-1]["episodes"] > 50
    assert len(state["episode_rewards"]) == min(100, state["episodes"])
    assert len(state["others"]) == 1


def test_a_run_that_loses_a_process_goes_on_as_if_it_had_not(runs: dict[str, Path]) -> None:
    """L27, L22: torchrun starts all again, they take up the last checkpoint, and every number is the same."""
    assert rows_of(runs["killed"]) == rows_of(runs["whole"])
    for one, other in zip(parts_of(runs["killed"]), parts_of(runs["whole"]), strict=True):
        (tensors, told), (others, said) = pack(one), pack(other)
        assert to_bytes(tensors) == to_bytes(others)
        assert json.dumps(told, sort_keys=True) == json.dumps(said, sort_keys=True)


def test_one_process_goes_on_where_there_were_two(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """L22, L27: with what was learned and counted; episodes begin anew, and it is said why."""
    sys.path.insert(0, str(Path(__file__).parent))
    assert main(["resume", str(runs["whole"]), "--total_timesteps", str(STEPS + 128)]) == 0
    assert "episodes begin anew: 2 processes learned together, and now 1" in capsys.readouterr().out
    rows = rows_of(runs["whole"])
    assert [row["step"] for row in rows][-3:] == [STEPS, STEPS + 64, STEPS + 128]
    assert rows[-1]["updates"] == len(rows)


@pytest.fixture(scope="module")
def mishaps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Ended]]]:
    """Runs of two processes, all at the same time, to the second of which something happens."""
    folders = {what: tmp_path_factory.mktemp("mishap") for what in ("dies", "hangs", "raises", "told to stop")}
    patience = {"hangs": 5}
    longer = {what: {"group_timeout": patience.get(what, 60), "total_timesteps": 10**6} for what in folders}
    runs = {what: started(folder, longer[what], MISHAP=what, MISHAP_RANK="1") for what, folder in folders.items()}
    firsts = {what: run[0].end() for what, run in runs.items()}
    runs["hangs"][1].process.kill()
    return {what: (folders[what], [firsts[what], run[1].end()]) for what, run in runs.items()}


@pytest.mark.parametrize(("what", "said"), [("dies", ""), ("hangs", ""), ("raises", "the floor is gone")])
def test_nobody_waits_for_a_process_that_is_gone(mishaps: Any, what: str, said: str) -> None:
    """L27, L29: whether it dies, hangs or raises, the others end within the time they were given, and say so."""
    first, second = mishaps[what][1]
    assert first.code == 1
    assert re.search(r"training failed: Of 2 processes that learn together, another one did not answer", first.err)
    assert said in second.err


def test_a_signal_to_one_stops_all(mishaps: Any) -> None:
    """L27: after the update that they are in, with everything saved."""
    folder, (first, second) = mishaps["told to stop"]
    assert (first.code, second.code) == (0, 143)
    assert "stopped after" in first.out
    names = sorted(path.name for path in (the_run(folder) / "checkpoints").iterdir())
    assert int(names[-1].removeprefix("step_")) == rows_of(the_run(folder))[-1]["step"]


def test_environments_that_do_not_suffice_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """L27: before anything is made."""
    for name, value in {"RANK": 2, "WORLD_SIZE": 3, "LOCAL_RANK": 2, "MASTER_ADDR": "x", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    config = TrainingConfig.from_dict({"env": "CartPole-v1", "num_envs": 8, "num_workers": 1})
    assert (own_part(config).env.num_envs, own_part(config).env.num_workers) == (3, 1)
    with pytest.raises(ConfigError, match=r"num_envs=2 leaves some of 3 processes.*--num_envs 3"):
        own_part(TrainingConfig.from_dict({"env": "CartPole-v1", "num_envs": 2}))


def test_the_process_that_leads_tells_which_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L22, L27: only its machine knows who started it; all are told the same, or they would wait for one another."""
    own = threading.local()
    here = vars(twostep.cli.together)["_launcher"]
    monkeypatch.setattr(twostep.group, "present_group", lambda: own.group)
    monkeypatch.setattr(twostep.cli.together, "launch", lambda: Launch(size=2, restarts=1))
    monkeypatch.setattr(twostep.cli.together, "_launcher", lambda: [*here(), own.group.rank])
    config = TrainingConfig.from_dict({"env": "CartPole-v1", "run_dir": str(tmp_path)})
    (tmp_path / "run").mkdir()

    def found(group: Any) -> Path | None:
        own.group = group
        before = launched_before(config)
        if group.leads:
            mark_launched(tmp_path / "run")
        return before

    assert together(2, found) == [None, None]
    assert together(2, found) == [tmp_path / "run"] * 2


def test_processes_share_the_cores_of_their_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """L27: robots are stepped by threads, and each process would take all cores; who says how many is heeded."""
    monkeypatch.setattr(twostep.cli.together, "usable_cores", lambda: 8)
    monkeypatch.setattr(twostep.cli.together, "launch", lambda: Launch(size=4, local_size=2))
    robots = TrainingConfig.from_dict({"env": {"id": "quadruped", "num_envs": 8}})
    assert own_part(robots).env.kwargs == {"threads": 4}
    assert own_part(TrainingConfig.from_dict({"env": {"id": "CartPole-v1"}})).env.kwargs == {}
    workers = TrainingConfig.from_dict({"env": {"id": "quadruped", "num_envs": 8, "num_workers": 8}})
    assert own_part(workers).env.kwargs == {"threads": 2}
    assert cores_shared(robots, 1).env.kwargs == {}
    assert cores_shared(robots, 100).env.kwargs == {"threads": 1}
    said = TrainingConfig.from_dict({"env": {"id": "quadruped", "kwargs": {"threads": 3}}})
    assert own_part(said).env.kwargs == {"threads": 3}
