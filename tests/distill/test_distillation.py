"""A student learns from a teacher on its own ways: whole sequences, memories of both, the same after a stop."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from twostep import (
    ActorCritic,
    AgentConfig,
    ConfigError,
    NumericsError,
    PolicyError,
    PolicyStore,
    PPOTrainer,
    evaluate,
    make_env,
    make_policy,
)
from twostep.cli import main
from twostep.config import TrainingConfig
from twostep.distill import Distiller, Lessons, Mixture, teacher_for
from twostep.learn.settings import ImitationConfig
from twostep.policies.encoders import Encoder
from twostep.stats.sinks import read_rows
from twostep.tree import tree_map

GROUPS = "twostep.worlds.classic:cartpole_in_groups"
SCRIPT = Path(__file__).parents[2] / "scripts" / "train_phase2.py"
POSITION = AgentConfig(memory="gru", memory_size=32, hidden_size=32, num_layers=1, observations=("position",))


def balancing(env):
    """A teacher that balances the pole by the four numbers it sees."""
    teacher = make_policy(env, AgentConfig(num_layers=0), seed=0)
    gains = torch.tensor([0.05, 1.0, 0.1, 0.5])
    with torch.no_grad():
        teacher.action_head.linear.weight.copy_(torch.stack([-gains, gains]) * 5)
    return teacher


def distiller(num_envs=4, agent=POSITION, teacher=balancing, imitation=None, **settings):
    env = make_env(GROUPS, num_envs=num_envs, seed=0)
    student = make_policy(env, agent, seed=1)
    settings = {"rollout_steps": 64, "num_minibatches": 2, "lr": 3e-3, "bptt_length": 16, "seed": 0} | settings
    return Distiller(student, teacher_for(student, teacher(env), "it"), env, imitation=imitation, **settings)


@pytest.mark.slow
def test_a_student_with_memory_learns_what_it_cannot_see():
    """LB15: from positions alone, and by memory; without memory the same lessons are not enough."""
    score = {}
    for memory in ("gru", "none"):
        agent = AgentConfig(memory=memory, memory_size=32, hidden_size=32, num_layers=1, observations=("position",))
        imitation = ImitationConfig(keep=2, mix_steps=3_000)
        trainer = distiller(16, agent, imitation=imitation, update_epochs=3)
        trainer.train(8_000)
        score[memory] = evaluate(trainer.policy, make_env(GROUPS, num_envs=8), 8, seed=5).mean_return
    assert score["gru"] > 450
    assert score["none"] < 150


def with_memory(env):
    return make_policy(env, AgentConfig(memory="lstm", memory_size=8, hidden_size=8), seed=3)


def test_the_teacher_remembers_the_student_s_way():
    """LB15: labels are those of a teacher that walked along, step by step, and forgot where episodes began."""
    trainer = distiller(teacher=with_memory, imitation=ImitationConfig(mix_steps=100))
    lessons = []
    state = trainer.teacher.initial_state(4)
    for _ in range(2):  # the second rollout begins in the middle of episodes
        rollout = trainer.collect_rollout()
        lessons.append(trainer.lesson(rollout))
        assert rollout.episode_starts[1:].any()
        for t in range(len(rollout.valid)):
            seen = tree_map(lambda leaf, at=t: leaf[at : at + 1], (rollout.obs, rollout.episode_starts))
            with torch.no_grad():
                output = trainer.teacher(seen[0], state, seen[1])
            state = output.state
            assert torch.equal(output.distribution.mode()[0], lessons[-1].labels[t])
    assert set(lessons[0].obs) == {"position"}, "what the student does not look at is not kept"


def test_stretches_are_learned_in_their_order():
    """LB15: nothing is shuffled within an episode; memory goes on from stretch to stretch and stops at starts."""
    trainer = distiller(lr=1e-12, update_epochs=1, num_minibatches=1)
    with torch.no_grad():
        trainer.policy.action_head.linear.weight.mul_(100.0)
    lesson = trainer.lesson(trainer.collect_rollout())
    lessons = Lessons(keep=3)
    lessons.add(lesson)
    metrics = lessons.learn(trainer.learner, trainer.policy)
    with torch.no_grad():
        whole = trainer.policy(lesson.obs, lesson.state, lesson.episode_starts)
    wanted = -whole.distribution.log_prob(lesson.labels).mean()
    assert metrics["loss"] == pytest.approx(float(wanted), rel=1e-5)
    differs = (whole.distribution.mode() != lesson.labels).float().mean()
    assert metrics["imitation_error"] == pytest.approx(float(differs))
    lesson.episode_starts[:] = False  # a student that forgot nothing would have lost another number
    assert lessons.learn(trainer.learner, trainer.policy)["loss"] != pytest.approx(float(wanted), rel=1e-5)


def test_steps_that_did_not_count_teach_nothing():
    trainer = distiller(lr=1e-12, update_epochs=1, num_minibatches=1)
    lesson = trainer.lesson(trainer.collect_rollout())
    lesson.valid[:, 1:] = False
    lessons = Lessons(keep=1)
    lessons.add(lesson)
    metrics = lessons.learn(trainer.learner, trainer.policy)
    with torch.no_grad():
        whole = trainer.policy(lesson.obs, lesson.state, lesson.episode_starts)
    assert metrics["loss"] == pytest.approx(float(-whole.distribution.log_prob(lesson.labels)[:, 0].mean()), rel=1e-5)
    lesson.valid[:] = False
    assert lessons.learn(trainer.learner, trainer.policy) == {}


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_mixture_takes_so_many_of_the_teacher_s_actions(share):
    box = spaces.Box(-1.0, 1.0, (3,))
    student, teacher = ActorCritic(box, box), ActorCritic(box, box)
    mixture = Mixture(student, teacher)
    mixture.teacher_share = share
    obs, starts = torch.rand(50, 40, 3), torch.zeros(50, 40, dtype=torch.bool)
    with torch.no_grad():
        output = mixture(obs, mixture.initial_state(40), starts)
        actions = output.distribution.sample(torch.Generator().manual_seed(0))
        own = student(obs, (), starts).distribution
        taken = (actions == teacher(obs, (), starts).distribution.mode()).all(-1)
    assert float(taken.float().mean()) == pytest.approx(share, abs=0.04)
    assert torch.equal(output.distribution.log_prob(actions), own.log_prob(actions))


def test_the_teacher_s_share_falls_to_nothing():
    trainer = distiller(imitation=ImitationConfig(mix_steps=1_000), update_epochs=1)
    shares = trainer.train(1_300)["teacher_share"]
    assert shares[0] == 1.0
    assert shares[1] == pytest.approx(1 - 256 / 1_000)
    assert shares[-1] == 0.0


def test_going_on_is_never_having_stopped():
    """Lessons, both memories, running episodes and the schedule go on from a state, bit for bit."""

    def fresh():
        return distiller(teacher=with_memory, imitation=ImitationConfig(mix_steps=800, keep=2), normalize_obs=True)

    whole = fresh()
    whole.train(1_024)
    first, second = fresh(), fresh()
    first.train(1_024, callback=lambda trainer, _: trainer.total_timesteps < 512)
    second.load_state_dict(first.state_dict())
    second.train(1_024)
    for name, tensor in whole.policy.state_dict().items():
        assert torch.equal(tensor, second.policy.state_dict()[name]), name


def test_a_network_sees_only_the_groups_it_names():
    """L1: `observations` leaves groups out, whatever they hold."""
    space = spaces.Dict({name: spaces.Box(-1.0, 1.0, (2,)) for name in ("a", "b", "c")})
    policy = ActorCritic(space, spaces.Discrete(2), AgentConfig(observations=("a", "c"), critic_only=("c",)))
    starts = torch.zeros(1, 3, dtype=torch.bool)
    obs = {name: torch.rand(1, 3, 2) for name in "abc"}
    before = policy(obs, (), starts)
    other = policy({**obs, "b": torch.full((1, 3, 2), torch.nan)}, (), starts)
    assert torch.equal(before.values, other.values)
    assert not torch.equal(before.values, policy({**obs, "a": 1 - obs["a"]}, (), starts).values)
    assert isinstance(policy.encoder, Encoder)
    for config, complaint in (
        (AgentConfig(observations=("z",)), r"observations names 'z', but the observation has \['a', 'b', 'c'\]"),
        (
            AgentConfig(observations=("a",), critic_only=("b",)),
            r"critic_only names 'b', but observations leaves it out",
        ),
    ):
        with pytest.raises(ConfigError, match=complaint):
            ActorCritic(space, spaces.Discrete(2), config)


def test_who_cannot_teach_is_told():
    env = make_env(GROUPS, num_envs=1)
    student = make_policy(env, POSITION)
    box = spaces.Box(-1.0, 1.0, (2,))
    depth = ActorCritic(spaces.Dict({"depth": box}), env.action_space)
    with pytest.raises(PolicyError, match=r"looks at 'depth', which is missing in what the environment shows"):
        teacher_for(student, depth, "runs/x")
    with pytest.raises(PolicyError, match=r"runs/x acts in Discrete\(3\)"):
        teacher_for(student, ActorCritic(env.observation_space, spaces.Discrete(3)), "runs/x")
    with pytest.raises(PolicyError, match=r"is of the class Linear"):
        teacher_for(student, torch.nn.Linear(1, 1), "runs/x")
    other = ActorCritic(box, box, AgentConfig(action_dist="beta"))
    with pytest.raises(ConfigError, match=r"action_dist='gaussian' of the student must be that of the teacher: 'beta'"):
        teacher_for(ActorCritic(box, box), other, "runs/x")
    with pytest.raises(ConfigError, match=r"ent_coef=0.5 changes nothing where a teacher is imitated"):
        distiller(ent_coef=0.5)
    with pytest.raises(ConfigError, match=r"lr_schedule='adaptive_kl' follows a policy's KL"):
        distiller(lr_schedule="adaptive_kl")


def test_the_script_of_phase_2(tmp_path, capsys):
    """L2, LB15: teacher, student and both side by side, through the commands that people use."""
    env = make_env(GROUPS, num_envs=1)
    record = PolicyStore(tmp_path / "runs" / "teacher").save("balancing", balancing(env))
    settings = tmp_path / "student.yaml"
    settings.write_text(
        f"env: {{id: '{GROUPS}', num_envs: 4}}\nagent: {{memory: gru, memory_size: 8, observations: [position]}}\n"
        "ppo: {rollout_steps: 32, update_epochs: 1}\ntrainer: {total_timesteps: 256, eval_episodes: 4}\n"
    )
    script = runpy.run_path(str(SCRIPT))["main"]
    words = ["--teacher", str(tmp_path / "runs"), "--config", str(settings), "--run_dir", str(tmp_path / "runs")]
    assert script([*words, "--no_tensorboard", "--no_progress"]) == 0
    (metrics,) = (tmp_path / "runs").rglob("metrics.jsonl")
    noted = TrainingConfig.from_yaml(metrics.with_name("config.yaml")).imitation.teacher
    assert noted == record.uri, "not the newest run of the folder, which is the student's by now"
    assert np.isfinite([row["imitation_error"] for row in read_rows(metrics)]).all()
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "the teacher" in said
    assert "500.0" in said
    assert script(["--resume", str(tmp_path / "runs"), "--total_timesteps", "384", "--no_progress"]) == 0
    assert read_rows(metrics)[-1]["step"] == 384
    assert main(["train", str(settings), "--teacher", str(tmp_path / "none"), "--run_dir", str(tmp_path / "more")]) == 2
    assert not (tmp_path / "more").exists()


def test_a_robot_that_sees_by_depth_learns_from_one_that_feels_the_ground(tmp_path, capsys):
    """L1, L2: the shipped settings of phase 2, in small: depth through convolutions, scandots for the teacher."""
    pytest.importorskip("mujoco")
    world = {"terrains": ["flat", "stairs"], "num_levels": 2, "max_seconds": 0.4, "threads": 1}
    env = make_env("quadruped", 1, 0, **world)
    PolicyStore(tmp_path / "teacher").save("told", make_policy(env, AgentConfig(memory="gru", hidden_size=8), seed=0))
    words = ["--teacher", str(tmp_path / "teacher"), "--run_dir", str(tmp_path / "runs"), "--no_tensorboard"]
    words += ["--no_progress", "--num_envs", "4", "--total_timesteps", "64", "--rollout_steps", "8"]
    words += [
        "--curriculum.terrains",
        "flat,stairs",
        "--curriculum.num_levels",
        "2",
        "--memory_size",
        "16",
        "--bptt_length",
        "4",
    ]
    for name, value in world.items():
        words += [f"--env.kwargs.{name}", ",".join(value) if isinstance(value, list) else str(value)]
    assert runpy.run_path(str(SCRIPT))["main"](words) == 0
    (metrics,) = (tmp_path / "runs").rglob("metrics.jsonl")
    assert np.isfinite(read_rows(metrics)[-1]["imitation_error"])
    student = PolicyStore().policy(f"run://{tmp_path / 'runs'}").policy()
    assert student.convolutional
    assert not any(name.startswith("scandots") for name in student.encoder.vectors())
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "runs"), "--episodes", "3"]) == 0
    said = capsys.readouterr().out
    assert said.count("stairs") == 2, "student and teacher, side by side"
    assert "3 episodes of quadruped" in said


@pytest.mark.parametrize("on_nonfinite", ["stop", "skip"])
def test_a_gradient_that_is_no_number_is_left_out_or_stops(on_nonfinite):
    """LB15: as `on_nonfinite` says; the weights stay whole either way."""
    trainer = distiller(update_epochs=1, num_minibatches=4, on_nonfinite=on_nonfinite, agent=AgentConfig(hidden_size=8))
    rollout = trainer.collect_rollout()
    rollout.obs["position"][:, 0] = torch.inf
    if on_nonfinite == "stop":
        with pytest.raises(NumericsError, match="gradient of imitation is nan"):
            trainer.learn(rollout)
    else:
        metrics = trainer.learn(rollout)
        assert metrics["skipped_minibatches"] == 4, "one row of four, in as many stretches"
        assert np.isfinite(metrics["loss"])
    assert all(bool(weights.isfinite().all()) for weights in trainer.policy.parameters())


def test_a_student_is_not_made_from_settings_alone():
    """LB15: settings name a teacher and hold none; a trainer that learns by rewards does not take them for its own."""
    env = make_env(GROUPS, 2, 0)
    config = TrainingConfig.from_dict({"imitation": {"teacher": "runs/somewhere"}})
    with pytest.raises(ConfigError, match=r"no place for a teacher.*Distiller\(student, teacher"):
        Distiller.from_config(config, env, make_policy(env, seed=0))
    with pytest.raises(ConfigError, match=r"imitation.teacher='runs/somewhere' is not for this trainer.*Distiller"):
        PPOTrainer.from_config(config, env, make_policy(env, seed=0))
    with pytest.raises(ConfigError, match=r"self_play.snapshot_every=64 is not for this trainer"):
        PPOTrainer.from_config({"self_play": {"snapshot_every": 64}}, env, make_policy(env, seed=0))
