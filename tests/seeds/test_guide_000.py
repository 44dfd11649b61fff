"""Seed 000, the guide to a trainer in two phases: its snippets as they stand, with only the import root changed.

Edits that its own contradictions force are listed in docs/seeds.md.
"""

from __future__ import annotations

import inspect
import math
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from twostep import (
    AgentConfig,
    PPOTrainer,
    RolloutBuffer,
    TaskActorCritic,
    combine_rollouts,
    create_fake_rollout_data,
    make_policy,
)
from twostep.checkpoint import load_state
from twostep.config import janus
from twostep.errors import ConfigError, EnvError, RolloutError
from twostep.sequences import Sequences


class ToyEnv(gym.Env[np.ndarray, int]):
    """Action 1 pays the difficulty; episodes of `length` steps end by themselves."""

    def __init__(self, length: int = 10) -> None:
        self.observation_space = gym.spaces.Box(-10, 10, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.length, self.difficulty, self.levels, self.steps = length, 1, [], 0

    def set_difficulty(self, level: int) -> None:
        self.difficulty = level
        self.levels.append(level)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.steps += 1
        return self._obs(), float(self.difficulty * action), self.t >= self.length, False, {}

    def _obs(self) -> np.ndarray:
        return self.np_random.normal(size=4).astype(np.float32)


class MockPolicy(nn.Module):
    """The least that a policy can be: parameters of a distribution, and a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        out = self.layer(obs)
        return out[:, :2], out[:, 2]


class TaskPolicy(MockPolicy):
    """Takes the trajectories of a task, and answers with a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.task = nn.Linear(3, 2)
        self.seen = 0

    def forward(self, obs: Tensor, task_trajectories: Tensor | None = None) -> dict[str, Tensor]:
        logits, value = super().forward(obs)
        if task_trajectories is not None:
            self.seen += 1
            logits = logits + self.task(task_trajectories).mean((1, 2))
        return {"action_logits": logits, "value": value}


def create_env() -> ToyEnv:
    return ToyEnv()


@pytest.fixture
def env() -> ToyEnv:
    return create_env()


@pytest.fixture
def policy(env: ToyEnv) -> nn.Module:
    return make_policy(env, seed=0)


@pytest.fixture
def trainer(policy: nn.Module, env: ToyEnv) -> PPOTrainer:
    return PPOTrainer(policy, env, device="cpu", seed=0)


def weights(policy: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in policy.parameters()]


def changed(before: list[Tensor], policy: nn.Module) -> bool:
    return any(not torch.equal(old, new) for old, new in zip(before, policy.parameters(), strict=True))


# ---------------------------------------------------------------------- "After: clean separation of responsibilities"


def test_collect_rollouts_only_handles_environment_interaction(trainer: PPOTrainer, env: ToyEnv) -> None:
    """J1, J6, J30: a dict of tensors, `n_steps` by position and by name; nothing is learned."""
    before = weights(trainer.policy)
    rollout_data = trainer.collect_rollouts(n_steps=1000)
    assert len(rollout_data["observations"]) == 1000
    steps = env.steps
    assert len(trainer.collect_rollouts(100)["rewards"]) == 100
    assert env.steps == steps + 100
    for key in ("observations", "actions", "rewards", "values", "log_probs", "advantages", "returns"):
        assert isinstance(rollout_data[key], Tensor)
    assert not changed(before, trainer.policy)
    assert trainer.n_updates == 0


def test_learn_only_handles_training_on_collected_data(trainer: PPOTrainer, env: ToyEnv) -> None:
    """J2, J7: no environment is touched, and none is needed."""
    rollout_data = trainer.collect_rollouts(200)
    steps, before = env.steps, weights(trainer.policy)
    metrics = trainer.learn(rollout_data)
    assert env.steps == steps
    assert changed(before, trainer.policy)
    assert all(type(value) is float for value in metrics.values())
    without_env = PPOTrainer(make_policy(env, seed=1), device="cpu")
    assert math.isfinite(without_env.learn(rollout_data)["loss"])
    with pytest.raises(EnvError, match="no environment"):
        without_env.collect_rollouts(1)


def test_train_orchestrates_collection_and_learning(trainer: PPOTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """J3, J9: each phase in turn, and a history of lists of floats."""
    calls: list[str] = []
    for name in ("collect_rollouts", "learn"):
        original = getattr(trainer, name)
        monkeypatch.setattr(trainer, name, lambda *a, o=original, n=name, **k: (calls.append(n), o(*a, **k))[1])
    history = trainer.train(total_timesteps=300, rollout_length=100)
    assert calls == ["collect_rollouts", "learn"] * 3
    assert history["timesteps"] == [100.0, 200.0, 300.0]
    assert all(type(value) is float for values in history.values() for value in values)
    assert {"loss", "policy_loss", "value_loss", "entropy", "mean_reward"} <= history.keys()


# ---------------------------------------------------------------------- "Usage examples"


def test_basic_training_loop(policy: nn.Module, env: ToyEnv) -> None:
    """J4, J5: the constructor by keyword; `train` with a length and an interval, and alone."""
    trainer = PPOTrainer(policy=policy, env=env, learning_rate=3e-4, n_epochs=10, batch_size=64)
    assert (trainer.config.lr, trainer.config.update_epochs, trainer.config.minibatch_size) == (3e-4, 10, 64)
    history = trainer.train(total_timesteps=25 * 128, rollout_length=128, log_interval=10)
    assert history["updates"] == [10.0, 20.0, 25.0]
    trainer.train(total_timesteps=25 * 128 + 1)
    assert trainer.total_timesteps == 25 * 128 + janus().rollout_steps


def test_positional_constructor_has_the_guides_defaults(trainer: PPOTrainer) -> None:
    """J4, C5."""
    config = trainer.config
    assert (config.lr, config.update_epochs, config.minibatch_size, config.rollout_steps) == (3e-4, 10, 64, 2048)


def test_custom_training_loop(policy: nn.Module, env: ToyEnv) -> None:
    """J13, J14."""
    trainer = PPOTrainer(policy, env)

    # Collect more data before training
    all_rollouts = []
    for _i in range(5):
        rollout_data = trainer.collect_rollouts(n_steps=1000)
        all_rollouts.append(rollout_data)

    # Train on combined data
    combined_data = combine_rollouts(all_rollouts)
    metrics = trainer.learn(combined_data)

    assert len(combined_data["observations"]) == 5000
    assert trainer.total_timesteps == 5000
    assert metrics["ratio_error"] < 1e-5


def test_distributed_collection(policy: nn.Module) -> None:
    """J15: several trainers over several environments share one policy, and one learns from all."""
    envs = [create_env() for _ in range(4)]
    trainers = [PPOTrainer(policy, env) for env in envs]

    rollouts = []
    for trainer in trainers:
        rollout = trainer.collect_rollouts(n_steps=512)
        rollouts.append(rollout)

    before = weights(policy)
    combined_data = combine_rollouts(rollouts)
    metrics = trainers[0].learn(combined_data)

    assert metrics["ratio_error"] < 1e-5
    assert len(combined_data["rewards"]) == 4 * 512
    assert changed(before, policy)
    assert all(trainer.policy is policy for trainer in trainers)
    assert [trainer.n_updates for trainer in trainers] == [1, 0, 0, 0]


class CurriculumPPOTrainer(PPOTrainer):
    def collect_rollouts(self, n_steps, difficulty_level=1):
        # Adjust environment difficulty
        self.env.set_difficulty(difficulty_level)

        # Collect with current difficulty
        return super().collect_rollouts(n_steps)

    def train(self, total_timesteps, **kwargs):
        difficulty = 1

        while self.total_timesteps < total_timesteps:
            # Gradually increase difficulty
            if self.total_timesteps > total_timesteps * 0.3:
                difficulty = 2
            if self.total_timesteps > total_timesteps * 0.6:
                difficulty = 3

            # Collect at current difficulty
            rollout_data = self.collect_rollouts(n_steps=2048, difficulty_level=difficulty)

            # Learn from collected data
            metrics = self.learn(rollout_data)

            # Log progress
            print(
                f"Timesteps: {self.total_timesteps}, "
                f"Difficulty: {difficulty}, "
                f"Reward: {np.mean(self.episode_rewards):.2f}"
            )
            assert metrics["ratio_error"] < 1e-5


def test_curriculum_learning_integration(policy: nn.Module, env: ToyEnv, capsys: pytest.CaptureFixture[str]) -> None:
    """J16, J17: a wider `collect_rollouts`, and a `train` of one's own that reads the counters."""
    trainer = CurriculumPPOTrainer(policy, env, n_epochs=1)
    trainer.train(5 * 2048)
    assert env.levels == [1, 1, 2, 2, 3]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"Timesteps: {2048 * n}" for n in range(1, 6)]
    assert float(lines[-1].rsplit(" ", 1)[1]) > float(lines[0].rsplit(" ", 1)[1])


def test_curriculum_adapts_to_success(policy: nn.Module, env: ToyEnv) -> None:
    """J42: adaptive difficulty, decided between two phases by what was collected."""

    class Adaptive(PPOTrainer):
        level = 1

        def collect_rollouts(self, n_steps: int, **context: Tensor) -> dict[str, Any]:
            self.env.set_difficulty(self.level)
            data = super().collect_rollouts(n_steps, **context)
            successes = [episode["ret"] > 3 * self.level for episode in data["episodes"]]
            self.level += sum(successes) / len(successes) > 0.5
            return data

    trainer = Adaptive(policy, env, n_epochs=2, seed=0)
    trainer.train(512, rollout_length=128)
    assert env.levels == sorted(env.levels)
    assert env.levels[-1] > 1


# Save rollouts for later use
def save_rollouts_to_disk(trainer, n_rollouts=10):
    for i in range(n_rollouts):
        rollout_data = trainer.collect_rollouts(n_steps=2048)
        torch.save(rollout_data, f"rollout_{i}.pt")


# Train from saved rollouts
def train_from_saved_rollouts(trainer, rollout_files):
    for epoch in range(5):
        for file in rollout_files:
            rollout_data = torch.load(file)
            metrics = trainer.learn(rollout_data)
            print(f"Epoch {epoch}, File {file}: Loss={metrics['loss']:.4f}")


def test_experience_replay_from_disk(
    policy: nn.Module, env: ToyEnv, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """J12, J19, JB15: `torch.save` and a plain `torch.load`, which reads plain data only; 5 epochs over the files."""
    monkeypatch.chdir(tmp_path)
    trainer = PPOTrainer(policy, env, n_epochs=1, batch_size=512)
    save_rollouts_to_disk(trainer, n_rollouts=2)
    steps = env.steps
    train_from_saved_rollouts(trainer, ["rollout_0.pt", "rollout_1.pt"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("Epoch 0, File rollout_0.pt: Loss=")
    assert env.steps == steps
    assert trainer.n_updates == 10


def test_replay_tells_how_stale_data_are(trainer: PPOTrainer) -> None:
    """JB11: old data show in approx_kl and clipfrac, and can be valued anew with the present critic."""
    old = trainer.collect_rollouts(512)
    fresh = trainer.learn(old)
    for _ in range(3):
        trainer.learn(trainer.collect_rollouts(512))
    before = {name: value.clone() for name, value in old.items() if isinstance(value, Tensor)}
    stale = trainer.learn(old, recompute=True)
    assert stale["approx_kl"] > fresh["approx_kl"]
    assert stale["ratio_error"] > 1e-3
    assert all(torch.equal(before[name], old[name]) for name in before)
    buffer = RolloutBuffer.from_dict(old)
    anew = trainer.learner.revalued(buffer)
    assert anew.advantages is None
    assert not torch.allclose(anew.values, buffer.values)
    goes_on = ~(anew.terminated | anew.truncated)[:-1]
    assert torch.equal(anew.next_values[:-1][goes_on], anew.values[1:][goes_on])


class MetaLearningPPOTrainer(PPOTrainer):
    def collect_task_specific_rollouts(self, task, n_steps):
        # Set task in environment
        self.env.set_task(task)

        # Get task representation
        task_trajectories = self.get_task_trajectories(task)

        # Collect rollouts for this task
        return self.collect_rollouts(n_steps=n_steps, task_trajectories=task_trajectories)

    def meta_train(self, tasks, steps_per_task=1000):
        for epoch in range(10):
            for task in tasks:
                # Collect data for task
                rollout_data = self.collect_task_specific_rollouts(task, steps_per_task)

                # Learn from task data
                metrics = self.learn(rollout_data)

                print(f"Task {task.name}: {metrics}")
                assert metrics["ratio_error"] < 1e-5, epoch


def test_meta_learning_with_task_specific_collection(capsys: pytest.CaptureFixture[str]) -> None:
    """J20, JB6: one policy told apart by task learns to do opposite things; `learn` is not told the trajectories."""

    class Task(NamedTuple):
        name: str
        paid: int

    class TaskEnv(ToyEnv):
        def set_task(self, task: Task) -> None:
            self.paid = task.paid

        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            obs, _, *rest = super().step(action)
            return obs, float(action == self.paid), *rest

    class Trainer(MetaLearningPPOTrainer):
        def get_task_trajectories(self, task: Task) -> Tensor:
            return torch.full((1, 2, 5, 3), 2.0 * task.paid - 1.0)

    tasks = [Task("left", 0), Task("right", 1)]
    env = TaskEnv()
    env.set_task(tasks[0])
    trainer = Trainer(TaskPolicy(), env, seed=0, learning_rate=3e-2, batch_size=32)
    trainer.meta_train(tasks, steps_per_task=100)
    assert capsys.readouterr().out.count("Task left: ") == 10
    for task in tasks:
        data = trainer.collect_task_specific_rollouts(task, 100)
        assert (data["actions"] == task.paid).float().mean() > 0.8


def test_meta_learning_with_the_trajectories_that_come_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    """J20, JB6: the class of the guide as it stands; an environment that takes tasks is all that is the user's own."""

    class Task(NamedTuple):
        name: str
        paid: int

    class TaskEnv(ToyEnv):
        paid = 0

        def set_task(self, task: Task) -> None:
            self.paid = task.paid

        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            obs, _, *rest = super().step(action)
            return obs, float(action == self.paid), *rest

    env = TaskEnv()
    policy = TaskActorCritic(env.observation_space, env.action_space, AgentConfig(hidden_size=16))
    trainer = MetaLearningPPOTrainer(policy, env, seed=0, n_epochs=1, device="cpu")
    trainer.meta_train([Task("left", 0), Task("right", 1)], steps_per_task=64)
    assert capsys.readouterr().out.count("Task right: ") == 10
    assert trainer.total_timesteps == 20 * (64 + 8 * 16), "looking around counts"


# ---------------------------------------------------------------------- "Implementation details"


def test_rollout_buffer_has_a_clean_interface() -> None:
    """J21, J22, J23, J24: add, reset, get; advantages inside; episodes of any length; ready for training."""
    buffer = RolloutBuffer.create(num_steps=5, num_agents=2, obs_dim=4, action_dim=0, device="cpu")
    ends = torch.tensor([[0, 1], [1, 0], [0, 0], [0, 1], [1, 1]])  # lengths 2 and 3, and 1, 3 and 1
    for t in range(5):
        buffer.add(torch.randn(2, 4), torch.tensor([0, 1]), torch.ones(2), torch.zeros(2), torch.zeros(2), ends[t])
    buffer.compute_gae(gamma=1.0, gae_lambda=1.0)
    data = buffer.get()
    returns = data["returns"].view(5, 2).T.tolist()
    assert returns == [[2.0, 1.0, 3.0, 2.0, 1.0], [1.0, 3.0, 2.0, 1.0, 1.0]]
    policy = make_policy(create_env(), seed=0)
    assert math.isfinite(PPOTrainer(policy, batch_size=4).learn(data)["loss"])
    with pytest.raises(RolloutError, match="full"):
        buffer.add(torch.randn(2, 4), 0, 0.0, 0.0, 0.0, False)
    buffer.reset()
    assert buffer.position == 0
    assert buffer.advantages is None


def test_device_is_selected_automatically(policy: nn.Module, env: ToyEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """J25, J36, J39."""
    expected = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert PPOTrainer(policy, env).device == expected
    assert PPOTrainer(policy, env, device="cpu").device == torch.device("cpu")
    assert PPOTrainer(policy, env, device=torch.device("cpu")).device == torch.device("cpu")

    class AskedError(Exception):
        """Carries the device that a policy was to be moved to."""

    def ask(_: nn.Module, device: torch.device) -> None:
        raise AskedError(device)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(nn.Module, "to", ask)
    with pytest.raises(AskedError) as asked:
        PPOTrainer(policy, env)
    assert asked.value.args == (torch.device("cuda"),)


def test_learn_moves_data_and_leaves_the_callers_dict_alone(trainer: PPOTrainer) -> None:
    """J26, JB7: values that are no tensors are tolerated, and nothing in the dict is replaced or changed."""
    data = trainer.collect_rollouts(64) | {"note": "first try", "origin": ["desk", 3]}
    kept = dict(data)
    copies = {name: value.clone() for name, value in data.items() if isinstance(value, Tensor)}
    trainer.learn(data)
    assert data.keys() == kept.keys()
    assert all(data[name] is kept[name] for name in data)
    assert all(torch.equal(copies[name], data[name]) for name in copies)


def test_checkpoint_after_the_learning_phase(policy: nn.Module, env: ToyEnv, tmp_path: Any) -> None:
    """J27, J28."""
    trainer = PPOTrainer(policy, env, n_epochs=1, run_dir=tmp_path)
    trainer.train(total_timesteps=5 * 32, rollout_length=32, save_interval=2)
    saved = sorted((tmp_path / "checkpoints").iterdir())
    assert len(saved) == 2
    state, _ = load_state(saved[-1])
    assert {"policy_state_dict", "optimizer_state_dict", "total_timesteps", "n_updates"} <= state.keys()
    assert (state["n_updates"], state["total_timesteps"]) == (4, 128)
    other = PPOTrainer(make_policy(env, seed=9), env)
    other.load_checkpoint(saved[-1])
    assert (other.n_updates, other.total_timesteps) == (4, 128)
    for name, value in state["policy_state_dict"].items():
        assert torch.equal(value, other.policy.state_dict()[name])


# ---------------------------------------------------------------------- "Migration guide"


class CustomPPOTrainer(PPOTrainer):
    def collect_rollouts(self, n_steps):
        # Custom collection logic
        return super().collect_rollouts(n_steps)


def test_new_way_just_override_what_you_need(policy: nn.Module, env: ToyEnv) -> None:
    """J18, JB5: an override that knows `n_steps` only works under the inherited `train`."""
    trainer = CustomPPOTrainer(policy, env, n_epochs=1)
    trainer.train(total_timesteps=128, rollout_length=64, task_trajectories=None, ai_model_representation=None)
    assert trainer.total_timesteps == 128


def test_context_reaches_collection_and_learning(env: ToyEnv) -> None:
    """JB5, JB6, JB9: context is passed on only where there is some, and learning sees what collecting saw."""

    policy = TaskPolicy()
    trainer = PPOTrainer(policy, env, n_epochs=1)
    assert trainer.learn(trainer.collect_rollouts(32))["ratio_error"] < 1e-5
    assert policy.seen == 0
    trajectories = torch.randn(1, 2, 5, 3)
    data = trainer.collect_rollouts(n_steps=32, task_trajectories=trajectories)
    seen = policy.seen
    assert trainer.learn(data)["ratio_error"] < 1e-5
    assert policy.seen > seen > 0
    trainer.train(trainer.total_timesteps + 32, rollout_length=32, task_trajectories=trajectories)


def test_parameters_of_before_still_work(policy: nn.Module, env: ToyEnv) -> None:
    """J29, JB10: every old name, in the constructor and in `train`."""
    trainer = PPOTrainer(
        policy,
        env,
        learning_rate=1e-3,
        n_epochs=3,
        gamma=0.9,
        gae_lambda=0.8,
        clip_range=0.1,
        value_coef=0.7,
        entropy_coef=0.02,
        max_grad_norm=0.4,
        batch_size=32,
        device="cpu",
    )
    config = trainer.config
    assert (config.lr, config.update_epochs, config.gamma, config.gae_lambda) == (1e-3, 3, 0.9, 0.8)
    assert (config.clip_coef, config.vf_coef, config.ent_coef, config.max_grad_norm) == (0.1, 0.7, 0.02, 0.4)
    seen: list[dict[str, float]] = []
    trainer.train(
        total_timesteps=256,
        rollout_length=64,
        log_interval=2,
        save_interval=None,
        batch_size=16,
        n_epochs=1,
        callback=lambda _, metrics: seen.append(metrics),
    )
    assert (trainer.config.minibatch_size, trainer.config.update_epochs) == (16, 1)
    assert len(seen) == 4
    assert list(inspect.signature(PPOTrainer.train).parameters)[1:6] == [
        *("total_timesteps", "rollout_length", "log_interval", "save_interval", "callback"),
    ]


def test_standard_loop_is_the_two_phases_and_nothing_else(env: ToyEnv) -> None:
    """J33, C30: `train` gives bit for bit the weights of the loop written out."""
    one = PPOTrainer(make_policy(env, seed=3), create_env(), seed=4)
    one.train(total_timesteps=5 * 64, rollout_length=64)
    other = PPOTrainer(make_policy(env, seed=3), create_env(), seed=4)
    while other.total_timesteps < 5 * 64:
        other.learn(other.collect_rollouts(64))
    assert not changed(weights(one.policy), other.policy)


# ---------------------------------------------------------------------- "Testing"

mock_policy, mock_env = MockPolicy(), ToyEnv()


def test_collection():
    """J30, J32: test rollout collection independently."""
    trainer = PPOTrainer(mock_policy, mock_env)
    rollout_data = trainer.collect_rollouts(n_steps=100)

    assert len(rollout_data["observations"]) == 100
    assert "actions" in rollout_data
    assert "rewards" in rollout_data


def test_learning(policy: nn.Module):
    """J31, J32, JB16: test learning independently."""
    trainer = PPOTrainer(policy, mock_env)

    # Create fake rollout data
    fake_data = create_fake_rollout_data(n_samples=1000)

    # Test learning
    metrics = trainer.learn(fake_data)

    assert metrics["loss"] > 0
    assert "policy_loss" in metrics
    assert "value_loss" in metrics
    assert all(type(value) is float for value in metrics.values())


def test_one_phase_is_mocked_while_the_other_is_tested(
    trainer: PPOTrainer, env: ToyEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J8, J9: another way of collecting is put in the place of the first."""

    def made_up(n_steps: int) -> dict[str, Any]:
        trainer.total_timesteps += n_steps
        return create_fake_rollout_data(n_steps, seed=trainer.total_timesteps)

    monkeypatch.setattr(trainer, "collect_rollouts", made_up)
    history = trainer.train(total_timesteps=300, rollout_length=100)
    assert env.steps == 0
    assert history["updates"] == [1.0, 2.0, 3.0]
    monkeypatch.undo()
    learned: list[int] = []
    monkeypatch.setattr(trainer, "learn", lambda data: (learned.append(len(data["rewards"])), {"loss": 0.0})[1])
    trainer.train(total_timesteps=400, rollout_length=100)
    assert learned == [100]


# ---------------------------------------------------------------------- "Performance considerations"


def test_buffer_stores_only_what_is_needed() -> None:
    """J34: bytes are those of the columns, and masks, context and memory cost nothing where there are none."""
    steps, rows, obs_dim = 128, 4, 17
    buffer = RolloutBuffer.create(steps, rows, obs_dim, 6, "cpu")
    columns, flags = 4, 4
    assert buffer.nbytes == steps * rows * (4 * (obs_dim + 6 + columns) + flags)


def test_minibatches_are_slices_of_one_gather(trainer: PPOTrainer) -> None:
    """J35: data are gathered once per epoch, and every transition is seen exactly once."""
    trainer.collect_rollouts(1)
    buffer = RolloutBuffer.from_dict(trainer.collect_rollouts(100))
    sequences = Sequences(buffer, buffer.rewards, torch.arange(100.0)[:, None])
    minibatches = list(sequences.epoch(7, torch.Generator().manual_seed(0)))
    assert {minibatch.obs.untyped_storage().data_ptr() for minibatch in minibatches} == {
        minibatches[0].obs.untyped_storage().data_ptr()
    }
    seen = torch.cat([minibatch.returns.flatten() for minibatch in minibatches])
    assert sorted(seen.tolist()) == list(range(100))
    assert seen.tolist() != sorted(seen.tolist())


def test_advantages_are_normalised_when_learning(env: ToyEnv) -> None:
    """J41, JB4: their scale and offset do not matter, over the whole of what is learned from."""
    data = create_fake_rollout_data(256, seed=1)
    scaled = data | {"advantages": 1000.0 * data["advantages"] + 77.0}
    policies = [make_policy(env, seed=2) for _ in range(2)]
    for policy, rollout in zip(policies, (data, scaled), strict=True):
        PPOTrainer(policy, n_epochs=1, seed=0).learn(rollout)
    for one, other in zip(policies[0].parameters(), policies[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_errors_name_value_rule_and_way_out(trainer: PPOTrainer, policy: nn.Module) -> None:
    """J38."""
    with pytest.raises(RolloutError, match=r"lacks.*collect_rollouts"):
        trainer.learn({"observations": torch.zeros(3, 4)})
    with pytest.raises(RolloutError, match="1 or more"):
        trainer.collect_rollouts(0)
    with pytest.raises(ConfigError, match="learning_rat"):
        PPOTrainer(policy, learning_rat=1e-3)
    with pytest.raises(ConfigError, match="run_dir"):
        trainer.save_checkpoint()
