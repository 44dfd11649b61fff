"""Seed 004, walking with memory: what its guide says about policy, buffer, algorithm, settings and diagnostics.

The pseudocode of its collection and update is explanatory; where it is written as a call it is called here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from twostep import ActorCritic, AgentConfig, Episode, PPOConfig, PPOOptimizer, PPOTrainer, RolloutBuffer, TensorEnv
from twostep.config import TrainingConfig, locomotion
from twostep.learn.losses import normalized, ppo_loss
from twostep.policies.distributions import Beta, Gaussian
from twostep.stats.health import health

ROWS, JOINTS = 6, 12
DEVICE = torch.device("cpu")


def observation_space(vision: str) -> gym.spaces.Dict:
    shapes = {"scandots": (16, 3), "depth": (1, 58, 87)}
    return gym.spaces.Dict(
        {
            "proprioception": gym.spaces.Box(-10, 10, (45,), np.float32),
            vision: gym.spaces.Box(0, 255, shapes[vision], np.uint8 if vision == "depth" else np.float32),
            "commands": gym.spaces.Box(-1, 1, (3,), np.float32),
        }
    )


ACTION_SPACE = gym.spaces.Box(-1, 1, (JOINTS,), np.float32)
AGENT = AgentConfig(
    hidden_size=32,
    num_layers=1,
    memory="gru",
    memory_size=16,
    shared=True,
    encoders={"scandots": (64, 32, 16)},
    action_hidden=(24,),
    value_hidden=(24,),
    std="fixed",
    init_std=0.5,
)


def observe(space: gym.spaces.Dict, *leading: int) -> dict[str, Tensor]:
    obs = {}
    for name, leaf in space.spaces.items():
        shape = (*leading, *leaf.shape)
        obs[name] = torch.randint(0, 256, shape, dtype=torch.uint8) if name == "depth" else torch.randn(shape)
    return obs


class Quadruped:
    """A batched simulator with the four-tuple of the seed; time runs out after `limit` steps, falls end sooner."""

    num_envs = ROWS
    num_actions = JOINTS

    def __init__(self, limit: int = 9) -> None:
        self.limit, self.space = limit, observation_space("scandots")
        self.t = torch.zeros(ROWS, dtype=torch.int64)

    def reset(self) -> dict[str, Tensor]:
        self.t.zero_()
        return observe(self.space, ROWS)

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, dict[str, Any]]:
        self.t += 1
        time_outs = self.t >= self.limit
        dones = time_outs | ((self.t == 4) & (torch.arange(ROWS) % 3 == 0))
        self.t[dones] = 0
        final = observe(self.space, ROWS)
        rewards = -actions.square().mean(-1)
        return observe(self.space, ROWS), rewards, dones, {"time_outs": time_outs, "final_obs": final}


@pytest.fixture
def policy() -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(observation_space("scandots"), ACTION_SPACE, AGENT)


@pytest.fixture
def env() -> TensorEnv:
    return TensorEnv(Quadruped(), observation_space=observation_space("scandots"), action_space=ACTION_SPACE)


# ---------------------------------------------------------------------- policy network


@pytest.mark.parametrize("vision", ["scandots", "depth"])
def test_policy_network(vision: str) -> None:
    """L1, L2, L3, L4: senses in a dict, vision by MLP or ConvNet, joined, through a GRU, to actions and a value."""
    space = observation_space(vision)
    torch.manual_seed(1)
    policy = ActorCritic(space, ACTION_SPACE, AGENT if vision == "scandots" else replace(AGENT, encoders={}))
    convolutions = [module for module in policy.modules() if isinstance(module, nn.Conv2d)]
    assert bool(convolutions) == (vision == "depth")
    obs, starts = observe(space, 2, ROWS), torch.zeros(2, ROWS, dtype=torch.bool)
    state = policy.initial_state(ROWS)
    output = policy(obs, state, starts)
    assert output.distribution.mode().shape == (2, ROWS, JOINTS)
    assert output.values.shape == (2, ROWS)
    assert output.state.shape == state.shape == (ROWS, 1, 1, AGENT.memory_size)
    assert policy.value_trunk.out_features == policy.action_trunk.out_features == 24
    for sense in space.spaces:
        changed = {**obs, sense: torch.zeros_like(obs[sense])}
        assert not torch.equal(policy(changed, state, starts).distribution.mode(), output.distribution.mode())


def test_actions_and_values_share_the_memory_but_not_the_heads(policy: ActorCritic) -> None:
    """L4: the value head reads the same features, and its layers are its own."""
    obs, starts = observe(observation_space("scandots"), 1, ROWS), torch.zeros(1, ROWS, dtype=torch.bool)
    policy(obs, policy.initial_state(ROWS), starts).values.sum().backward()
    touched = {name for name, parameter in policy.named_parameters() if parameter.grad is not None}
    assert any(name.startswith("memory") for name in touched)
    assert any(name.startswith("encoder") for name in touched)
    assert not any(name.startswith("action") for name in touched)


# ---------------------------------------------------------------------- buffer


def test_buffer_add_and_get(policy: ActorCritic) -> None:
    """L5, L6, LB12: filled step by step, then minibatches of sequences; memory is kept where sequences begin."""
    n_steps, batch_size, bptt_length = 12, 4, 6
    space = observation_space("scandots")
    hidden_state = torch.randn_like(policy.initial_state(ROWS))
    buffer = RolloutBuffer.create(
        n_steps, ROWS, observe(space, ROWS), JOINTS, DEVICE, state=hidden_state, sequence_length=bptt_length
    )
    memories = []
    for step in range(n_steps):
        memories.append(hidden_state.clone())
        obs, action = observe(space, ROWS), torch.randn(ROWS, JOINTS)
        reward, value, log_prob = torch.ones(ROWS), torch.zeros(ROWS, 1), torch.zeros(ROWS)
        done = torch.arange(ROWS) == step

        buffer.add(obs, action, reward, value, log_prob, done, hidden_state)

        hidden_state += 1.0
    buffer.compute_gae(torch.zeros(ROWS))
    seen = 0
    for batch in buffer.get(batch_size, bptt_length):
        assert batch.actions.shape[0] == bptt_length
        assert batch.actions.shape[1] <= batch_size
        assert batch.obs["scandots"].shape == (*batch.actions.shape[:2], 16, 3)
        assert any(torch.equal(batch.states[0], memories[at][row]) for at in (0, bptt_length) for row in range(ROWS))
        seen += batch.count
    assert seen == n_steps * ROWS
    assert buffer.states.shape[0] == n_steps // bptt_length
    assert buffer.episode_starts[1:].sum() == min(ROWS, n_steps - 1)


# ---------------------------------------------------------------------- collection


class Walker(nn.Module):
    """The seed's own call: `actions, values, new_hidden = policy(obs, hidden_state)`."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(45, 16, num_layers=2)
        self.action, self.value, self.seen = nn.Linear(16, JOINTS), nn.Linear(16, 1), []

    def forward(self, obs: dict[str, Tensor], hidden_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.seen.append(hidden_state.detach().clone())
        features, hidden = self.gru(obs["proprioception"][None], hidden_state)
        return self.action(features[0]), self.value(features[0]), hidden


def test_policy_and_environment_protocol(env: TensorEnv) -> None:
    """L8, L9, LB1, LB2, LB7: the seed's two calls; done rows forget, others remember; what was drawn is stored."""
    torch.manual_seed(2)
    network = Walker()
    trainer = PPOTrainer(network, env, rollout_steps=24, bptt_length=6, n_epochs=1, device="cpu", seed=0)
    rollout = trainer.collect_rollout()
    assert network.seen[0].shape == (2, ROWS, 16)
    acting = network.seen[-25:-1]  # the call after them values the last state
    forgot = torch.stack([(hidden == 0).all(-1).all(0) for hidden in acting])
    assert torch.equal(forgot, rollout.episode_starts)
    assert forgot[1:].any()
    assert not forgot[1:].all(1).all()
    with torch.no_grad():
        steps = zip(steps_of(rollout.obs), acting, strict=True)
        means = torch.stack([network(obs, hidden)[0] for obs, hidden in steps])
    noise = rollout.actions - means
    assert noise.std().item() == pytest.approx(0.5, abs=0.02)
    assert trainer.update(rollout)["ratio_error"] < 1e-5


def steps_of(obs: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    return [{name: leaf[t] for name, leaf in obs.items()} for t in range(len(obs["commands"]))]


def test_hidden_state_management(policy: ActorCritic, env: TensorEnv) -> None:
    """L9, L15, R3: memory lasts from rollout to rollout inside an episode and is zero where one starts."""
    trainer = PPOTrainer(policy, env, replace(locomotion(), rollout_steps=10, bptt_length=5), device="cpu")
    for _ in range(4):
        rollout = trainer.collect_rollout()
        assert rollout.states.shape == (2, ROWS, 1, 1, AGENT.memory_size)
        assert trainer.update(rollout)["ratio_error"] < 1e-5
    assert rollout.states[0][~rollout.episode_starts[0]].abs().sum() > 0


def test_gradients_flow_through_whole_sequences(policy: ActorCritic) -> None:
    """L15: the first of 24 observations has a part in the last action, unless an episode started in between."""
    space = observation_space("scandots")
    obs = observe(space, 24, 1)
    for reset_at in (None, 11):
        first = obs["proprioception"].clone().requires_grad_()
        starts = torch.zeros(24, 1, dtype=torch.bool)
        if reset_at is not None:
            starts[reset_at] = True
        output = policy({**obs, "proprioception": first}, policy.initial_state(1), starts)
        output.distribution.mode()[-1].sum().backward()
        reached = first.grad[:, 0].abs().sum(-1) > 0
        assert reached.tolist() == [t >= (reset_at or 0) for t in range(24)]


# ---------------------------------------------------------------------- algorithm


def test_generalized_advantage_estimation() -> None:
    """L10, LB5: the seed's loop, written out, against the buffer; then normalised."""
    n_steps, gamma, lam = 7, 0.99, 0.95
    torch.manual_seed(3)
    rewards, values, dones = torch.randn(n_steps), torch.randn(n_steps), torch.rand(n_steps) < 0.3
    last_value = torch.randn(())
    buffer = RolloutBuffer.create(n_steps, 1, 1, 1, DEVICE)
    for t in range(n_steps):
        buffer.add(torch.zeros(1, 1), torch.zeros(1, 1), rewards[t], values[t], 0.0, dones[t])
    buffer.compute_gae(last_value[None], gamma=gamma, gae_lambda=lam)

    advantages, returns, gae = torch.zeros(n_steps), torch.zeros(n_steps), 0.0
    for step in reversed(range(len(rewards))):
        next_value = values[step + 1] if step + 1 < n_steps else last_value
        delta = rewards[step] + gamma * next_value * (1 - dones[step].float()) - values[step]
        gae = delta + gamma * lam * (1 - dones[step].float()) * gae
        advantages[step] = gae
        returns[step] = gae + values[step]

    torch.testing.assert_close(buffer.advantages[:, 0], advantages)
    torch.testing.assert_close(buffer.returns[:, 0], returns)
    expected = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    torch.testing.assert_close(normalized(advantages), expected)


def test_ppo_loss_is_the_seeds() -> None:
    """L11, C15, C16: ratio, two surrogates, value clipping with the same range, and the sum."""
    torch.manual_seed(4)
    eps, value_coef, entropy_coef = 0.2, 0.5, 0.01
    log_probs, old_log_probs, advantages, values, old_values, returns, entropy = (torch.randn(5, 8) for _ in range(7))

    ratio = (log_probs - old_log_probs).exp()
    surr1 = ratio * advantages
    surr2 = ratio.clamp(1 - eps, 1 + eps) * advantages
    policy_loss = -torch.min(surr1, surr2).mean()
    values_clipped = old_values + (values - old_values).clamp(-eps, eps)
    value_loss = torch.max((values - returns) ** 2, (values_clipped - returns) ** 2).mean()
    loss = policy_loss + value_coef * value_loss - entropy_coef * entropy.mean()

    ours, metrics = ppo_loss(
        log_probs,
        values,
        entropy,
        old_logprobs=old_log_probs,
        old_values=old_values,
        advantages=advantages,
        returns=returns,
        config=locomotion(),
    )
    torch.testing.assert_close(ours, loss)
    torch.testing.assert_close(metrics["policy_loss"], policy_loss)
    torch.testing.assert_close(metrics["value_loss"], value_loss)


def test_hyperparameters_are_the_seeds() -> None:
    """L12, L13, L14, C6: the preset; 64 sequences of 24 steps make a minibatch."""
    config = locomotion()
    expected = {
        "lr": 3e-4,
        "update_epochs": 10,
        "clip_coef": 0.2,
        "ent_coef": 0.01,
        "vf_coef": 0.5,
        "max_grad_norm": 1.0,
        "bptt_length": 24,
        "gamma": 0.99,
        "gae_lambda": 0.95,
        "clip_vloss": True,
        "vf_clip_coef": None,
        "lr_schedule": "cosine",
        "lr_min_ratio": 0.1,
        "optimizer": "adamw",
    }
    assert {name: getattr(config, name) for name in expected} == expected
    assert config.weight_decay > 0
    assert config.minibatch_size == 64 * 24
    long_run = TrainingConfig.from_dict({"total_timesteps": 15_000_000_000, "checkpoint_freq": 1_000_000})
    assert long_run.trainer.total_timesteps == 15e9
    assert long_run.trainer.checkpoint_every == 1e6


def test_weight_decay_is_decoupled(policy: ActorCritic) -> None:
    """L13: AdamW shrinks weights by lr * decay apart from the gradient, Adam would mix it in."""
    optimizer = PPOOptimizer(policy, None, "cpu", replace(locomotion(), weight_decay=0.1, lr=0.5)).optimizer
    assert isinstance(optimizer, torch.optim.AdamW)
    parameter = optimizer.param_groups[0]["params"][0]
    before = parameter.detach().clone()
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), before * (1 - 0.5 * 0.1))


def test_trainer_does_it_all(policy: ActorCritic, env: TensorEnv, tmp_path: Any) -> None:
    """L7, L14: collection, clipped losses, clipped gradients, the schedule, checkpoints and logging in one call."""
    rows: list[tuple[dict[str, float], int]] = []

    class Sink:
        def log(self, metrics: dict[str, float], step: int) -> None:
            rows.append((metrics, step))

        def close(self) -> None:
            pass

    config = replace(locomotion(), rollout_steps=12, bptt_length=6, update_epochs=2, minibatch_size=36)
    trainer = PPOTrainer(policy, env, config, device="cpu", run_dir=tmp_path)
    total = 10 * 12 * ROWS
    trainer.train(total, save_interval=5, sinks=[Sink()])
    rates = [metrics["lr"] for metrics, _ in rows]
    expected = [3e-4 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * n / 10))) for n in range(10)]
    assert rates == pytest.approx(expected)
    assert [step for _, step in rows] == [12 * ROWS * n for n in range(1, 11)]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    assert all(metrics["ratio_error"] < 1e-5 for metrics, _ in rows)
    trainer.learner.set_progress(1.0)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(3e-5)


# ---------------------------------------------------------------------- diagnostics


def test_explained_variance_is_of_the_whole_rollout_before_learning(policy: ActorCritic, env: TensorEnv) -> None:
    """L16, LB17."""
    trainer = PPOTrainer(policy, env, n_epochs=3, rollout_steps=16, bptt_length=8, device="cpu")
    rollout = trainer.collect_rollout()
    metrics = trainer.update(rollout)
    assert rollout.returns is not None
    expected = 1 - (rollout.returns - rollout.values).var() / rollout.returns.var()
    assert metrics["explained_variance"] == pytest.approx(expected.item(), abs=1e-5)


def test_kl_and_explained_variance_are_judged_by_the_seeds_thresholds() -> None:
    """L16, L17, C33: above 0.7 is good, below 0.5 poor; a KL above 0.05 is too fast."""
    states = {}
    for kl, variance in ((0.01, 0.8), (0.06, 0.4)):
        advice = health({"approx_kl": kl, "explained_variance": variance})
        states[kl] = [finding.state for finding in advice]
    assert states == {0.01: ["good", "good"], 0.06: ["poor", "poor"]}


def test_approximate_kl_measures_the_change_of_the_policy() -> None:
    """L17: for two Gaussians it is near the true divergence."""
    torch.manual_seed(5)
    old, new = (Gaussian(torch.full((200_000, 1), mean), torch.zeros(1)) for mean in (0.0, 0.3))
    actions = old.sample()
    columns = torch.zeros(200_000)
    _, metrics = ppo_loss(
        new.log_prob(actions),
        columns,
        columns,
        old_logprobs=old.log_prob(actions),
        old_values=columns,
        advantages=columns,
        returns=columns,
        config=PPOConfig(),
    )
    assert metrics["approx_kl"].item() == pytest.approx(0.3**2 / 2, rel=0.05)


def test_episode_statistics_roll_over_a_hundred_episodes(policy: ActorCritic, env: TensorEnv) -> None:
    """L18: returns and lengths, the mean of the last hundred."""
    trainer = PPOTrainer(policy, env, rollout_steps=16, bptt_length=16, n_epochs=1, device="cpu")
    metrics: list[dict[str, float]] = []
    trainer.train(16 * ROWS * 12, callback=lambda _, found: metrics.append(found))
    assert trainer.n_episodes > 100
    assert len(trainer.episode_rewards) == len(trainer.episode_lengths) == 100
    assert set(trainer.episode_lengths) == {4, 9}
    assert metrics[-1]["mean_reward"] == pytest.approx(np.mean(trainer.episode_rewards))
    assert metrics[-1]["mean_length"] == pytest.approx(np.mean(trainer.episode_lengths))
    rollout = trainer.collect_rollout()
    assert all(isinstance(episode, Episode) for episode in rollout.episodes)


# ---------------------------------------------------------------------- troubleshooting, advanced topics


def test_every_lever_of_the_troubleshooting_guide_is_a_setting() -> None:
    """L24: learning rate, batch, clipping, coefficients, BPTT, accumulation, epochs, mixed precision, envs."""
    config = TrainingConfig.from_dict(
        {
            "learning_rate": 1e-4,
            "batch_size": 128,
            "clip_range": 0.1,
            "value_loss_coef": 1.0,
            "entropy_coef": 0.02,
            "num_envs": 1024,
            "bptt_length": 16,
            "gradient_accumulation": 4,
            "n_epochs": 5,
            "precision": "bf16",
            "init_std": 0.7,
            "normalize_returns": True,
        }
    )
    ppo = config.ppo
    assert (ppo.lr, ppo.minibatch_size, ppo.clip_coef, ppo.vf_coef, ppo.ent_coef) == (1e-4, 128, 0.1, 1.0, 0.02)
    assert (ppo.bptt_length, ppo.accumulate, ppo.update_epochs, ppo.precision) == (16, 4, 5, "bf16")
    assert (config.env.num_envs, config.agent.init_std, ppo.normalize_returns) == (1024, 0.7, True)


@pytest.mark.parametrize(("std", "dist"), [("fixed", "gaussian"), ("learned", "gaussian"), ("state", "gaussian")])
def test_gaussians_of_every_kind(std: str, dist: str) -> None:
    """L25, L24: a deviation fixed at 0.5, learned, or decided by the state; its variance can be looked at."""
    agent = replace(AGENT, std=std, action_dist=dist)
    torch.manual_seed(6)
    policy = ActorCritic(observation_space("scandots"), ACTION_SPACE, agent)
    obs, starts = observe(observation_space("scandots"), 1, ROWS), torch.zeros(1, ROWS, dtype=torch.bool)
    distribution = policy(obs, policy.initial_state(ROWS), starts).distribution
    deviations = distribution.log_std.exp().expand_as(distribution.mean)
    torch.testing.assert_close(deviations, torch.full_like(deviations, 0.5), atol=0.05, rtol=0)
    assert deviations.requires_grad == (std != "fixed")
    assert (deviations[0, 0] == deviations[0, 1]).all().item() == (std != "state")


def test_beta_for_bounded_actions() -> None:
    """L25."""
    policy = ActorCritic(observation_space("scandots"), ACTION_SPACE, replace(AGENT, action_dist="beta"))
    obs, starts = observe(observation_space("scandots"), 1, ROWS), torch.zeros(1, ROWS, dtype=torch.bool)
    distribution = policy(obs, policy.initial_state(ROWS), starts).distribution
    assert isinstance(distribution, Beta)
    actions = policy.to_env(distribution.sample())
    assert actions.min() >= -1
    assert actions.max() <= 1
