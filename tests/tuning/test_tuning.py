"""Searching settings: what is drawn, what is kept when a search is stopped or a trial dies, what comes out."""

import math
import sys

import pytest

from twostep.cli import main
from twostep.cli.tuning import _require_buildable, _train_seed
from twostep.config import TrainingConfig
from twostep.errors import ConfigError
from twostep.stats.sinks import read_rows
from twostep.tuning import Crew, Order, Study, StudySettings, parse_space, write_report
from twostep.tuning.report import BEST_FILE, PICTURE_FILE, REPORT_FILE
from twostep.tuning.space import grid_points, with_params

pytest.importorskip("optuna")
EASY = StudySettings(space="lr,clip=0.1/0.2/0.3,update_epochs=2..5")

WORK = """
import json, os, signal, time

def work(order, pipe):
    kind = order.changes["env.kwargs.kind"]
    if kind == "dies":
        os._exit(9)
    if kind == "fails":
        pipe.send_bytes(json.dumps({"what": "fail", "error": "no such terrain"}).encode())
        return
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    marked = order.home.exists()
    order.home.mkdir(parents=True, exist_ok=True)
    for step in range(1, 21):
        pipe.send_bytes(json.dumps({"what": "report", "step": step, "value": 1.0 + marked}).encode())
        assert json.loads(pipe.recv_bytes()) is False
        while kind == "waits" and step == 2 and not marked and not stopped:
            time.sleep(0.01)
        if stopped:
            pipe.send_bytes(json.dumps({"what": "break_off"}).encode())
            return
    pipe.send_bytes(json.dumps({"what": "finish", "values": [5.0, 7.0]}).encode())
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A function that new processes can load and that trains nothing."""
    folder = tmp_path_factory.mktemp("scripted")
    (folder / "scripted_trials.py").write_text(WORK)
    sys.path.insert(0, str(folder))
    import scripted_trials

    yield scripted_trials.work
    sys.path.remove(str(folder))


def test_the_grid_of_locomotion_has_81_points():
    """L28: lr, clip, ent and bptt, three values each, every combination once."""
    points = grid_points(parse_space("lr,clip,ent,bptt", grid=True))
    assert {name: {point[name] for point in points} for name in points[0]} == {
        "ppo.lr": {1e-4, 3e-4, 1e-3},
        "ppo.clip_coef": {0.1, 0.2, 0.3},
        "ppo.ent_coef": {0.005, 0.01, 0.02},
        "ppo.bptt_length": {16, 24, 32},
    }
    assert len({tuple(point.values()) for point in points}) == 81


def test_sequences_longer_than_a_rollout_are_not_searched():
    """L28: they would be cut to it, and trials that differ in nothing else be the same."""
    config = TrainingConfig.from_dict({"env": "CartPole-v1", "rollout_steps": 24, "memory": "gru"})
    with pytest.raises(ConfigError, match=r"bptt_length=32 is longer than .*rollout_steps=24.*--ppo.rollout_steps 32"):
        _require_buildable(config, StudySettings(space="lr,bptt", grid=True))
    _require_buildable(config, StudySettings(space="bptt,rollout_steps=32/64", grid=True))


def test_minibatches_keep_their_sequences_where_these_become_longer():
    """L28: as written in the settings; another size, or number, is heeded."""
    config = TrainingConfig.from_dict({"env": "CartPole-v1", "minibatch_sequences": 10, "bptt_length": 24})
    assert with_params(config, {"ppo.bptt_length": 16, "ppo.lr": 1e-3}).ppo.minibatch_size == 160
    assert with_params(config, {"ppo.bptt_length": 16, "ppo.minibatch_size": 48}).ppo.minibatch_size == 48
    assert with_params(config, {"ppo.bptt_length": 16, "ppo.num_minibatches": 2}).ppo.minibatch_size is None
    assert with_params(config, {"ppo.lr": 1e-3}).ppo.minibatch_size == 240


def test_a_grid_is_gone_through_once(tmp_path):
    """L28: also where another process goes on with it in the middle."""
    settings = StudySettings(space="lr,clip", grid=True)
    study, seen = Study(tmp_path, settings), []
    while (number := study.next()) is not None:
        seen.append(study.params(number))
        study.finish(number, float(len(seen)))
        if len(seen) == 4:
            study = Study(tmp_path, settings)
    points = grid_points(settings.dimensions())
    assert sorted(map(str, seen)) == sorted(map(str, points))
    assert seen != points, "in random order, so that a part of it says something, too"


def test_what_is_searched_is_read_as_people_write_it():
    """L28: any setting, by any of its names, over a range, over values, or over what is usual."""
    lr, clip, epochs, kind = parse_space("learning_rate, clip=0.1/0.3, epochs=2..10, env.kwargs.law=kepler/ohm")
    assert (lr.name, lr.low, lr.high, lr.by_factors) == ("ppo.lr", 3e-5, 3e-3, True)
    assert (clip.name, clip.values) == ("ppo.clip_coef", (0.1, 0.3))
    assert (epochs.name, epochs.ends(), epochs.whole, epochs.by_factors) == ("ppo.update_epochs", (2, 10), True, False)
    assert (kind.name, kind.values) == ("env.kwargs.law", ("kepler", "ohm"))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--space", "lr,learning_rate"], "names ppo.lr twice"),
        (["--space", "lrr"], "'lrr' is no setting"),
        (["--space", "ppo"], "is a group of settings"),
        (["--space", "adam_eps"], "nothing is usual for ppo.adam_eps"),
        (["--space", "lr=1e-3..1e-4"], "must rise"),
        (["--space", "gamma=0.9/1.5"], "gamma=1.5 must be between 0 and 1"),
        (["--space", "lr=a..b"], "lr='a' must be a number"),
        (["--space", ","], "names no setting"),
        (["--space", "lr=1e-4..1e-3", "--grid"], "is a range: list some"),
        (["--space", "bptt"], "changes nothing without memory"),
        (["--pruner", "often"], "pruner='often'"),
        (["--trials", "0"], "--trials=0 must be 1 or more"),
        (["--trails", "3"], "--trails is no option"),
    ],
)
def test_what_cannot_be_searched_is_said_at_once(words, complaint, tmp_path, capsys):
    assert main(["tune", "CartPole-v1", *words, "--out", str(tmp_path / "study")]) == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "study").exists(), "before anything is made"


def test_a_study_goes_on_where_it_stands(tmp_path):
    """What ended counts, what was broken off or killed goes on in its folder; nothing is drawn twice."""
    study = Study(tmp_path, EASY)
    first, second, third = (study.next() for _ in range(3))
    study.finish(first, 1.0)
    study.report(second, 1, 10.0)
    wanted, home = study.params(second), study.home(second)
    study.break_off(second)  # and the third is never heard of again
    again = Study(tmp_path, EASY)
    assert again.count() == 1
    number = again.next()
    assert again.params(number) == wanted
    assert again.home(number) == home
    assert again.tried()[number].reached == {1: 10.0}
    again.finish(number, 2.0)
    lost = again.next()
    assert again.home(lost).name == f"{third:04}"
    again.finish(lost, 3.0)
    fresh = again.params(again.next())
    assert fresh not in [one.params for one in again.tried()[:-1]]
    assert (again.count(), again.best.value) == (3, 3.0)


def test_a_study_is_not_mixed_with_another(tmp_path):
    Study(tmp_path, EASY)
    with pytest.raises(ConfigError, match=r"holds a study with seeds=1, not 3: go on with it as it was"):
        Study(tmp_path, StudySettings(space=EASY.space, seeds=3))


def test_hopeless_trials_are_given_up(tmp_path):
    """Pruning: after five trials, one that is below half of the others at its fifth report."""
    study = Study(tmp_path, EASY)
    for _ in range(5):
        number = study.next()
        assert not any(study.report(number, step, float(step)) for step in range(1, 21))
        study.finish(number, 20.0)
    number = study.next()
    assert [study.report(number, step, 0.0) for step in range(1, 6)] == [False, False, False, False, True]


def test_processes_that_fail_or_die_take_nothing_with_them(tmp_path, work):
    settings = StudySettings(space="env.kwargs.kind=dies/fails/quick", grid=True, seeds=2)
    study = Study(tmp_path, settings)
    Crew(study, work, trials=3, size=2).run(lambda: False)
    ended = {one.params["env.kwargs.kind"]: (one.state, one.value, one.error) for one in study.tried()}
    assert ended == {
        "dies": ("failed", None, "its process died with exit code 9"),
        "fails": ("failed", None, "no such terrain"),
        "quick": ("finished", 6.0, ""),
    }, "the value is the mean over seeds"


def test_processes_that_are_stopped_go_on(tmp_path, work):
    """A stop lets what runs save itself; the next search goes on with it before it begins anything new."""
    settings = StudySettings(space="env.kwargs.kind=waits,lr=1e-3/2e-3", grid=True)
    study = Study(tmp_path, settings)
    Crew(study, work, trials=2, size=2).run(lambda: sum(2 in one.reached for one in study.tried()) == 2)
    assert study.count() == 0
    again = Study(tmp_path, settings)
    Crew(again, work, trials=2, size=2).run(lambda: False)
    assert again.count() == 2
    finished = [one for one in again.tried() if one.state == "finished"]
    assert [list(one.reached.values()) for one in finished] == [[1.0, 1.0, *[2.0] * 18]] * 2, "reports are kept"
    assert {one.params["ppo.lr"] for one in finished} == {1e-3, 2e-3}


class Asked:
    """Answers what a training reports; `dies_at` is the report at which whoever asked is gone."""

    def __init__(self, dies_at=math.inf):
        self.dies_at, self.steps = dies_at, []

    def report(self, step, value):
        self.steps.append(step)
        if len(self.steps) == self.dies_at:
            raise EOFError
        return False


def test_a_training_that_was_stopped_goes_on(tmp_path, capsys, monkeypatch):
    """RELIABILITY: stopped in the middle and taken up again is the same as never stopped."""
    monkeypatch.setattr("twostep.cli.reporting.plot_learning_curve", lambda *_, **__: None)
    config = TrainingConfig.from_dict(
        {"env": "CartPole-v1", "total_timesteps": 640, "num_envs": 2, "rollout_steps": 16, "progress": False}
        | {"tensorboard": False, "run_dir": str(tmp_path)}
    )

    def order(name):
        return Order(0, {}, tmp_path / name, 1, "mean_reward")

    def rows(name):
        (file,) = (tmp_path / name).rglob("metrics.jsonl")
        timed = ("seconds", "sps", "steps_per_second", "time")
        return [{key: row[key] for key in row if not any(word in key for word in timed)} for row in read_rows(file)]

    whole, first, second = Asked(), Asked(dies_at=8), Asked()
    assert _train_seed(order("whole"), 0, config, whole) == 0
    assert _train_seed(order("parts"), 0, config, first) == 128 + 15, "as if it had been asked to stop"
    assert _train_seed(order("parts"), 0, config, second) == 0
    assert rows("parts") == rows("whole")
    assert [*first.steps, *second.steps] == whole.steps
    assert _train_seed(order("parts"), 0, config, Asked(dies_at=1)) == 0, "nothing is left to do"


def test_the_command_finds_settings_that_can_be_trained(tmp_path, capsys):
    """L28: from the command line to a page, a picture, and a file that `twostep train` takes."""
    words = ["tune", "CartPole-v1", "--space", "lr=1e-5/1e-3,clip", "--out", str(tmp_path / "study"), "--trials", "1"]
    words += ["--total_timesteps", "256", "--rollout_steps", "32", "--num_envs", "4", "--solved_at", "400"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "trial 0: mean_reward" in said
    best = TrainingConfig.from_yaml(tmp_path / "study" / BEST_FILE)
    assert best.ppo.lr in (1e-5, 1e-3)
    assert (best.trainer.solved_at, best.logging.progress) == (400, True), "what trials do without is not lost"
    assert main(words) == 0
    assert "trial" not in capsys.readouterr().out.splitlines()[0].partition("1 of 1 trials")[0], "none is repeated"
    assert main([*words, "--gamma", "0.9"]) == 2
    assert "holds a study with another ppo" in capsys.readouterr().err


def test_the_report_tells_of_every_trial(tmp_path):
    study = Study(tmp_path, EASY)
    for at in range(6):
        number = study.next()
        study.report(number, 1, float(at))
        (study.fail(number, "out of memory") if at == 2 else study.finish(number, 10.0 * at))
    study.give_up(study.next())
    assert study.next() is not None  # it runs, and is no part of the report
    study.finish(study.next(), math.nan)
    write_report(study, TrainingConfig.from_dict({"env": "CartPole-v1"}))
    page = (tmp_path / REPORT_FILE).read_text()
    assert "5 finished, 1 were given up on the way, 2 failed" in page
    assert page.index("| 5 | 50 |") < page.index("| 4 | 40 |")
    assert "trial 2 failed: out of memory" in page
    assert "mean_reward was never a number" in page
    assert sum(study.importance().values()) == pytest.approx(1.0)
    assert (tmp_path / PICTURE_FILE).stat().st_size > 20_000


def test_what_is_missing_is_said(monkeypatch, capsys):
    monkeypatch.setattr("twostep.tuning.study.find_spec", lambda name: None)
    assert main(["tune", "CartPole-v1"]) == 2
    assert "pip install 'twostep[tune]'" in capsys.readouterr().err
