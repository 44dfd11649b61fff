"""PPOTrainer: collects without learning, learns without an environment, and does both in turn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from twostep import (
    ConfigError,
    EnvError,
    PPOConfig,
    PPOTrainer,
    RolloutBuffer,
    combine_rollouts,
    create_fake_rollout_data,
    gae,
    make_env,
    ppo_loss,
)
from twostep.config import UnknownSettingError, janus
from twostep.learn.adam import Adam
from twostep.learn.losses import normalized
from twostep.sequences import Sequences

METRICS = {
    *("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac", "grad_norm", "explained_variance"),
    *("ratio_error", "lr", "collect_time", "learn_time", "steps_per_second", "mean_reward", "mean_length"),
    *("timesteps", "updates", "episodes"),
}


def weights(trainer):
    return torch.cat([parameter.detach().reshape(-1) for parameter in trainer.policy.parameters()]).clone()


@pytest.fixture
def counting_trainer(counting_env, small_policy):
    """A function: a trainer in one counting environment, which it can be asked for."""

    def build(trainer=PPOTrainer, length=5, **settings):
        env = counting_env(length)
        settings = {
            "device": "cpu",
            "seed": 0,
            "rollout_steps": 20,
            "minibatch_size": 10,
            "update_epochs": 2,
            **settings,
        }
        return trainer(small_policy(env), env, **settings)

    return build


# ------------------------------------------------------------------ making one


def test_bare_construction(counting_env, small_policy):
    """J4, J25, C5: PPOTrainer(policy, env) has the settings of one environment."""
    env = counting_env()
    policy = small_policy(env)
    trainer = PPOTrainer(policy, env)
    assert trainer.config == janus()
    assert (trainer.config.lr, trainer.config.update_epochs, trainer.config.minibatch_size) == (3e-4, 10, 64)
    assert trainer.policy is trainer.model is policy
    assert trainer.env is env
    assert trainer.device == torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert (trainer.total_timesteps, trainer.n_updates, len(trainer.episode_rewards)) == (0, 0, 0)


def test_construction_with_settings(counting_env, small_policy):
    """J4, C1, C2: settings by the names people know; a config beneath them."""
    env = counting_env()
    trainer = PPOTrainer(
        policy=small_policy(env), env=env, learning_rate=1e-3, n_epochs=3, batch_size=32, clip_range=0.1
    )
    config = trainer.config
    assert (config.lr, config.update_epochs, config.minibatch_size, config.clip_coef) == (1e-3, 3, 32, 0.1)
    mine = PPOConfig(gamma=0.5, lr=1e-2)
    trainer = PPOTrainer(small_policy(env), env, mine, learning_rate=1e-3)
    assert (trainer.config.gamma, trainer.config.lr, trainer.config.update_epochs) == (0.5, 1e-3, 4)
    assert mine.lr == 1e-2, "the caller's config stays"


@pytest.mark.parametrize("by_position", [True, False])
def test_construction_from_model_config_and_device(counting_env, small_policy, by_position):
    """E10, C1: the second argument may be the settings; Adam with their rate."""
    model, config = small_policy(counting_env()), PPOConfig(lr=1e-3)
    trainer = PPOTrainer(model, config, "cpu") if by_position else PPOTrainer(model, config=config, device="cpu")
    assert trainer.model is model
    assert trainer.config == config
    assert trainer.device == torch.device("cpu")
    assert isinstance(trainer.optimizer, torch.optim.Adam)
    assert trainer.optimizer.param_groups[0]["lr"] == 1e-3
    assert trainer.return_normalizer.scale == 1.0
    assert trainer.env is None


@pytest.mark.parametrize(("wrong", "right"), [("learning_rat", "learning_rate"), ("clip_rnage", "clip_range")])
def test_unknown_settings_name_the_nearest(counting_env, small_policy, wrong, right):
    """C1, J38: a TypeError for whoever expects one."""
    env = counting_env()
    with pytest.raises(UnknownSettingError, match=rf"{wrong}.*Did you mean '{right}'"):
        PPOTrainer(small_policy(env), env, **{wrong: 0.1})
    with pytest.raises(TypeError):
        PPOTrainer(small_policy(env), env, nonsense=1)


def test_from_config(counting_env, small_policy, tmp_path):
    """C1, L20: a dict or a YAML file, with its numbers as YAML writes them (LB13)."""
    env = counting_env()
    (tmp_path / "run.yaml").write_text(
        "seed: 7\ntraining:\n  learning_rate: 3e-5\n  bptt_length: 24\n", encoding="utf-8"
    )
    for config in ({"learning_rate": "3e-5", "bptt_length": 24, "seed": 7}, tmp_path / "run.yaml"):
        trainer = PPOTrainer.from_config(config, env, small_policy(env), "cpu")
        assert (trainer.config.lr, trainer.config.bptt_length, trainer.seed) == (3e-5, 24, 7)


# ------------------------------------------------------------------ phase one alone


def test_collecting_learns_nothing(counting_trainer):
    """J1, J6, J30: one environment, n_steps entries, weights as before, counters moved."""
    trainer = counting_trainer()
    before = weights(trainer)
    data = trainer.collect_rollouts(n_steps=17)
    assert len(data["observations"]) == len(data["actions"]) == len(data["rewards"]) == 17
    assert data["advantages"].shape == data["returns"].shape == (17,)
    assert torch.equal(weights(trainer), before)
    assert trainer.env.total_steps >= 17
    assert (trainer.total_timesteps, trainer.n_updates, trainer.n_episodes) == (17, 0, 3)
    assert list(trainer.episode_lengths) == [5, 5, 5]
    assert sum(trainer.episode_rewards) == pytest.approx(data["rewards"][:15].sum().item())


def test_collection_goes_on_where_it_stopped(counting_trainer):
    """J6, JB13: episodes are not begun anew with every rollout; what was collected before stays."""
    trainer = counting_trainer()
    first = trainer.collect_rollouts(3)["observations"]
    kept = first.clone()
    second = trainer.collect_rollouts(4)["observations"]
    assert torch.cat([first, second])[:, 0].tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert torch.equal(first, kept), "R9"
    assert list(trainer.episode_lengths) == [5]


def test_advantages_are_raw_and_of_the_settings(counting_trainer):
    """C17, J22: gamma and lambda as configured; nothing normalised in the data."""
    trainer = counting_trainer(gamma=0.5, gae_lambda=0.25)
    rollout = RolloutBuffer.from_dict(trainer.collect_rollouts(20))
    columns = (rollout.rewards, rollout.values, rollout.next_values, rollout.terminated, rollout.truncated)
    advantages, _ = gae(*columns, gamma=0.5, gae_lambda=0.25)
    assert torch.equal(rollout.advantages, advantages)


def test_collect_rollout_returns_the_buffer(counting_trainer):
    """E11, E12, C12: without state the trainer carries it; with it comes back what it became."""
    trainer = counting_trainer()
    buffer = trainer.collect_rollout(trainer.env, ["blue_0"])
    assert isinstance(buffer, RolloutBuffer)
    assert (buffer.num_steps, buffer.num_rows) == (20, 1)
    buffer, state = trainer.collect_rollout(trainer.env, ["blue_0"], ())
    assert state == ()
    assert buffer.rewards.shape == (20, 1)
    with pytest.raises(EnvError, match=r"agent_ids names 2 agents.*1 rows"):
        trainer.collect_rollout(agent_ids=["blue_0", "blue_1"])


def test_memory_handed_over_is_memory_carried_on(small_trainer):
    """E11, C12: passing what came back is the same as passing nothing."""
    kept, given = (small_trainer(agent={"memory": "gru"}, rollout_steps=10, bptt_length=5) for _ in range(2))
    first = kept.collect_rollout()
    second = kept.collect_rollout()
    empty = given.policy.initial_state(2)
    same_first, state = given.collect_rollout(state=empty)
    same_second, _ = given.collect_rollout(state=state)
    for mine, theirs in ((first, same_first), (second, same_second)):
        assert torch.equal(mine.states, theirs.states)
        assert torch.equal(mine.obs, theirs.obs)
        assert torch.equal(mine.logprobs, theirs.logprobs)
    assert bool(second.states[0].any())
    other, _ = given.collect_rollout(state=torch.full_like(empty, 0.25))
    assert other.states[0].unique().tolist() == [0.25]


def test_without_an_environment_nothing_can_be_collected(counting_env, small_policy):
    """J38."""
    trainer = PPOTrainer(small_policy(counting_env()), device="cpu")
    with pytest.raises(EnvError, match="no environment"):
        trainer.collect_rollouts(10)
    assert trainer.collect_rollout(counting_env()).num_steps == trainer.config.rollout_steps


# ------------------------------------------------------------------ phase two alone


def test_learning_touches_no_environment(counting_trainer, counting_env, small_policy):
    """J2, J7, J9, J31: data collected elsewhere, a trainer without an environment, floats out."""
    collecting = counting_trainer()
    data = collecting.collect_rollouts(40)
    steps = collecting.env.total_steps
    learner = PPOTrainer(small_policy(counting_env()), device="cpu", minibatch_size=10)
    before = weights(learner)
    metrics = learner.learn(data)
    assert not torch.equal(weights(learner), before)
    assert {"loss", "policy_loss", "value_loss"} <= set(metrics)
    assert {type(value) for value in metrics.values()} == {float}
    assert (learner.n_updates, learner.total_timesteps) == (1, 0)
    assert collecting.env.total_steps == steps
    assert f"{metrics['loss']:.4f}"


def test_learning_changes_no_data(counting_trainer):
    """JB7: neither the dict nor what is in it, learned from twice."""
    trainer = counting_trainer(normalize_returns=True, normalize_obs=True)
    data = trainer.collect_rollouts(20)
    del data["advantages"]
    objects = {name: id(value) for name, value in data.items()}
    copies = {name: value.clone() for name, value in data.items() if isinstance(value, torch.Tensor)}
    trainer.learn(data)
    trainer.learn(data, recompute=True)
    assert {name: id(value) for name, value in data.items()} == objects
    assert all(torch.equal(data[name], copy) for name, copy in copies.items())


def test_made_up_data_have_a_loss_above_zero(small_trainer):
    """J31, J32, C39."""
    trainer = small_trainer()
    metrics = trainer.learn(create_fake_rollout_data(n_samples=1000))
    assert metrics["loss"] > 0
    assert metrics["value_loss"] > 0


def test_nothing_to_learn_from(small_trainer):
    """J37: an empty rollout is no update."""
    trainer = small_trainer()
    before = weights(trainer)
    assert math.isnan(trainer.learn(create_fake_rollout_data(0))["loss"])
    assert trainer.n_updates == 0
    assert torch.equal(weights(trainer), before)


def test_update_says_both_names_of_the_losses(counting_trainer):
    """E13, C14: collect_rollout, then update, also with the memory the original needed."""
    trainer = counting_trainer()
    metrics = trainer.update(trainer.collect_rollout(), ())
    assert {"pg_loss", "vf_loss", "entropy", "grad_norm", "loss"} <= set(metrics)
    assert metrics["pg_loss"] == metrics["policy_loss"]
    assert metrics["vf_loss"] == metrics["value_loss"]


def test_losses_of_a_known_buffer(counting_trainer):
    """E14, E15, C13: exactly these six, for numbers that can be told by hand."""
    trainer = counting_trainer(value_loss_scale=0.5)
    buffer = RolloutBuffer.create(2, 1, 2, 0)
    buffer.advantages, buffer.returns = torch.tensor([[1.0], [-1.0]]), torch.tensor([[2.0], [0.0]])
    loss, metrics = trainer._compute_losses(
        buffer, torch.tensor([[1.5], [0.5]]).log(), torch.ones(2, 1), torch.full((2, 1), 0.5)
    )
    assert set(metrics) == {"pg_loss", "vf_loss", "entropy", "approx_kl", "clipfrac", "loss"}
    assert metrics["pg_loss"].item() == pytest.approx((-1.2 + 0.8) / 2)
    assert metrics["vf_loss"].item() == pytest.approx(0.5)
    assert loss.item() == pytest.approx(-0.2 + 0.5 * 0.5 - 0.01 * 0.5)


def test_old_data_tell_how_old_they_are(counting_trainer):
    """J12, JB11: approx_kl grows as the policy leaves the one that acted; values can be computed anew."""
    trainer = counting_trainer(learning_rate=1e-2)
    data = trainer.collect_rollouts(40)
    fresh = trainer.learn(data)
    old = [trainer.learn(data, recompute=True) for _ in range(3)]
    assert fresh["ratio_error"] < 1e-5
    assert all(metrics["approx_kl"] > 0 for metrics in old)
    assert all(metrics["ratio_error"] > 1e-3 for metrics in old)
    stale = trainer.learn(data)
    assert stale["explained_variance"] != old[-1]["explained_variance"]


# ------------------------------------------------------------------ both in turn


def test_history(small_trainer):
    """J3, J5, C14: a list of floats per metric, an entry per update, until the steps are done."""
    trainer = small_trainer()
    history = trainer.train(total_timesteps=300)
    assert set(history) >= METRICS
    assert {len(values) for values in history.values()} == {5}, "5 updates of 2 rows and 32 steps reach 320"
    assert history["timesteps"] == [64, 128, 192, 256, 320]
    assert history["updates"] == [1, 2, 3, 4, 5]
    assert {type(value) for values in history.values() for value in values} == {float}
    assert (trainer.total_timesteps, trainer.n_updates) == (320, 5)
    assert history["mean_reward"][-1] == pytest.approx(np.mean(trainer.episode_rewards))
    assert history["mean_length"] == history["mean_reward"], "CartPole pays 1 per step"
    assert trainer.train(total_timesteps=300) == {}, "nothing is left to do"


def test_rollout_length_and_log_interval(small_trainer):
    """J5: train(total_timesteps=, rollout_length=, log_interval=); the last update is always told."""
    history = small_trainer().train(total_timesteps=140, rollout_length=10, log_interval=3)
    assert history["timesteps"] == [60, 120, 140]


def test_no_episode_has_ended_yet(counting_trainer):
    """L18, N9: nan until the first episode ends; then the mean of the last 100."""
    trainer = counting_trainer(length=30)
    history = trainer.train(total_timesteps=40)
    assert math.isnan(history["mean_reward"][0])
    assert history["mean_length"][1] == 30
    long = counting_trainer(length=1)
    long.train(total_timesteps=140)
    assert len(long.episode_rewards) == 100
    assert long.n_episodes == 140


def test_callbacks_see_every_update_and_can_stop(small_trainer):
    """Periodic work is a function; returning False stops, returning None does not."""
    calls = []

    def callback(trainer, metrics):
        calls.append((trainer, metrics["updates"]))
        return False if len(calls) == 3 else None

    trainer = small_trainer()
    history = trainer.train(total_timesteps=10_000, log_interval=2, callback=callback)
    assert calls == [(trainer, 1), (trainer, 2), (trainer, 3)]
    assert history["updates"] == [2]
    assert trainer.interrupted is False


def test_sinks_get_every_row_and_are_closed(small_trainer):
    class Rows:
        def __init__(self):
            self.rows, self.closed = [], 0

        def log(self, metrics, step):
            assert set(metrics) >= METRICS
            self.rows.append(step)

        def close(self):
            self.closed += 1

    rows = Rows()
    small_trainer().train(total_timesteps=192, sinks=[rows])
    assert rows.rows == [64, 128, 192]
    assert rows.closed == 1


class NarrowTrainer(PPOTrainer):
    """The guide's own example: it knows nothing but n_steps."""

    lengths: tuple = ()

    def collect_rollouts(self, n_steps):
        self.lengths = (*self.lengths, n_steps)
        return super().collect_rollouts(n_steps)

    def learn(self, rollout_data):
        return super().learn(rollout_data)


def test_narrow_overrides_work_under_train(small_trainer):
    """JB5, J8, J18."""
    trainer = small_trainer(NarrowTrainer)
    trainer.train(total_timesteps=128)
    assert trainer.lengths == (32, 32)
    assert trainer.n_updates == 2


def test_context_reaches_acting_and_learning(counting_env, small_policy):
    """J20, JB6: what conditioned the policy while acting is in the data, so learning needs no telling."""
    env = counting_env()
    trainer = PPOTrainer(
        small_policy(env, context_size=3), env, device="cpu", seed=0, minibatch_size=10, update_epochs=1
    )
    data = trainer.collect_rollouts(n_steps=20, context=torch.tensor([[1.0, -2.0, 3.0]]))
    assert data["context"]["context"].shape == (20, 3)
    assert trainer.learn(data)["ratio_error"] < 1e-5
    changed = {**trainer.collect_rollouts(n_steps=20, context=torch.ones(1, 3))}
    changed["context"] = {"context": 50 * torch.ones(20, 3)}
    changed["policy_version"] = None
    assert trainer.learn(changed)["ratio_error"] > 1e-6, "the context matters"
    history = trainer.train(total_timesteps=80, rollout_length=20, context=torch.zeros(1, 3))
    assert max(history["ratio_error"]) < 1e-5


def test_settings_given_to_train_stay(small_trainer):
    """JB10: the old names of train's arguments; what cannot change any more says so."""
    trainer = small_trainer()
    trainer.train(total_timesteps=64, batch_size=16, learning_rate=1e-4, clip_range=None)
    assert (trainer.config.minibatch_size, trainer.config.lr, trainer.config.clip_coef) == (16, 1e-4, 0.2)
    assert trainer.optimizer.param_groups[0]["lr"] == 1e-4
    assert {int(state["step"]) for state in trainer.optimizer.state.values()} == {8}
    with pytest.raises(ConfigError, match="optimizer cannot change"):
        trainer.train(total_timesteps=128, optimizer="adamw")
    with pytest.raises(UnknownSettingError, match="batch_sise"):
        trainer.train(total_timesteps=128, batch_sise=16)
    assert trainer.total_timesteps == 64


@pytest.mark.parametrize(("schedule", "end"), [("linear", 0.0), ("cosine", 0.1)])
@pytest.mark.parametrize(("num_envs", "rollout_length", "updates"), [(1, 64, 1), (2, 20, 7), (4, 16, 4)])
def test_schedules_end_where_training_ends(small_trainer, schedule, end, num_envs, rollout_length, updates):
    """LB8, L14, N7, C10: whatever the number of environments and the length of rollouts."""
    trainer = small_trainer(num_envs=num_envs, lr_schedule=schedule, learning_rate=1e-3)
    history = trainer.train(total_timesteps=num_envs * rollout_length * updates, rollout_length=rollout_length)
    assert len(history["lr"]) == updates
    assert history["lr"][0] == pytest.approx(1e-3)
    assert history["lr"] == sorted(history["lr"], reverse=True)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(end * 1e-3)


# ------------------------------------------------------------------ interrupts


@pytest.mark.parametrize("at", [1, 37, 40])
def test_an_interrupt_stops_cleanly(counting_trainer, at):
    """train() returns what was measured; weights are finite and training can go on."""
    trainer = counting_trainer(lr_schedule="linear")

    def interrupt(env):
        if env.total_steps == checked + at:
            env.total_steps += 1
            raise KeyboardInterrupt

    trainer.collect_rollout()
    checked = trainer.env.total_steps - 1
    trainer.env.on_step = interrupt
    history = trainer.train(total_timesteps=200)
    assert trainer.interrupted is True
    assert len(history.get("loss", ())) == (at - 1) // 20 == trainer.n_updates
    assert trainer.total_timesteps == 20 + 20 * trainer.n_updates
    assert bool(weights(trainer).isfinite().all())
    trainer.env.on_step = None
    history = trainer.train(total_timesteps=200)
    assert trainer.interrupted is False
    assert history["timesteps"][-1] == 200
    assert max(history["ratio_error"]) < 1e-5
    assert set(trainer.episode_lengths) == {5}, "no episode was glued together from two halves"


def test_an_interrupt_while_learning_stops_cleanly(small_trainer):
    """Between two minibatches: what was learned stays, the next rollout fits the policy as it is now."""
    trainer = small_trainer()
    data = trainer.collect_rollouts(32)
    steps = []

    def impatient(policy, obs, actions, rewards, values, advantages):
        steps.append(1)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return 0.0 * values.sum()

    trainer.custom_losses = (impatient,)
    before = weights(trainer)
    trainer.train(total_timesteps=1000)
    assert trainer.interrupted
    assert not torch.equal(weights(trainer), before)
    assert trainer.learn(data)["approx_kl"] >= 0, "data from before the interrupt are old now, not wrong"
    assert max(trainer.train(total_timesteps=trainer.total_timesteps + 100)["ratio_error"]) < 1e-5


def test_an_error_in_the_environment_is_not_swallowed(counting_trainer):
    """STYLE: only Ctrl-C ends training quietly."""
    trainer = counting_trainer()
    trainer.collect_rollouts(7)

    def fail(env):
        raise ZeroDivisionError("the simulator")

    trainer.env.on_step = fail
    with pytest.raises((ZeroDivisionError, EnvError), match="the simulator"):
        trainer.train(total_timesteps=100)
    trainer.env.on_step = None
    trainer.train(total_timesteps=100)
    assert set(trainer.episode_lengths) == {5}


# ------------------------------------------------------------------ the same again


def trained(small_trainer, **settings):
    trainer = small_trainer(**settings)
    trainer.train(total_timesteps=320)
    return weights(trainer)


@pytest.mark.parametrize("agent", [{}, {"memory": "lstm"}])
def test_the_same_seed_gives_the_same_weights(small_trainer, agent):
    """R10: bit for bit, whatever the global generators do; another seed gives others."""
    torch.manual_seed(1)
    first = trained(small_trainer, agent=agent)
    torch.manual_seed(2)
    np.random.seed(2)
    assert torch.equal(trained(small_trainer, agent=agent), first)
    assert not torch.equal(trained(small_trainer, agent=agent, seed=1), first)


def monolith(policy, env, config, seed, updates, steps):
    """Collect and learn in one loop, as one would without the library's two phases."""
    env_seed, action_seed, order_seed = (
        int(part.generate_state(1)[0]) for part in np.random.SeedSequence(seed).spawn(3)
    )
    actions_from, order = torch.Generator().manual_seed(action_seed), torch.Generator().manual_seed(order_seed)
    optimizer = Adam(policy.parameters(), lr=config.lr, eps=config.adam_eps, fused=True)
    now = env.reset(env_seed)
    for _ in range(updates):
        columns = {
            name: [] for name in ("obs", "actions", "logprobs", "values", "rewards", "terminated", "episode_starts")
        }
        for _ in range(steps):
            obs, starts = torch.tensor(now.obs)[None], torch.tensor(now.episode_starts)[None]
            with torch.no_grad():
                output = policy(obs, (), starts)
                actions = output.distribution.sample(actions_from)
                logprobs = output.distribution.log_prob(actions)
            now = env.step(policy.to_env(actions[0]).numpy())
            given = (obs, actions, logprobs, output.values, now.rewards, now.terminated, starts)
            for column, value in zip(columns.values(), given, strict=True):
                column.append(torch.as_tensor(value).clone().reshape(1, env.num_rows, *np.shape(value)[2:]))
        columns = {name: torch.cat(column) for name, column in columns.items()}
        with torch.no_grad():
            last = policy(torch.tensor(now.obs)[None], (), torch.tensor(now.episode_starts)[None]).values
        columns["next_values"] = torch.cat([columns["values"][1:], last])
        columns["truncated"] = torch.zeros_like(columns["terminated"])
        names = ("rewards", "values", "next_values", "terminated", "truncated")
        advantages, returns = gae(*(columns[name] for name in names), gamma=config.gamma, gae_lambda=config.gae_lambda)
        rollout = RolloutBuffer(**columns, valid=torch.ones_like(columns["terminated"]))
        sequences = Sequences(rollout, normalized(advantages), returns)
        for _ in range(config.update_epochs):
            for batch in sequences.epoch(sequences.minibatch_count(config.minibatch_size, 4), order):
                output = policy(batch.obs, (), batch.episode_starts)
                loss, _ = ppo_loss(
                    output.distribution.log_prob(batch.actions),
                    output.values,
                    output.distribution.entropy(),
                    old_logprobs=batch.logprobs,
                    old_values=batch.values,
                    advantages=batch.advantages,
                    returns=batch.returns,
                    config=config,
                )
                optimizer.zero_grad()
                loss.backward()
                length = torch.cat([parameter.grad.reshape(-1) for parameter in policy.parameters()]).norm()
                for parameter in policy.parameters():
                    parameter.grad.mul_((config.max_grad_norm / (length + 1e-6)).clamp(max=1.0))
                optimizer.advance()


def test_two_phases_are_one_loop_bit_for_bit(small_trainer, small_policy):
    """J29, J33, N10, C30: six updates in turn leave exactly the weights of a loop that knows no phases."""
    trainer = small_trainer(num_envs=3, seed=5)
    history = trainer.train(total_timesteps=6 * 3 * 32)
    assert trainer.n_updates == 6
    assert history["episodes"][-1] > 10
    env = make_env("CartPole-v1", 3)
    policy = small_policy(env, seed=5)
    untrained = torch.cat([parameter.detach().reshape(-1) for parameter in policy.parameters()])
    monolith(policy, env, trainer.config, seed=5, updates=6, steps=32)
    expected = torch.cat([parameter.detach().reshape(-1) for parameter in policy.parameters()])
    assert (expected - untrained).abs().max().item() > 1e-3
    assert torch.equal(weights(trainer), expected)


def test_collecting_and_learning_by_hand_is_training(small_trainer):
    """J13, J33: train() does nothing that the two phases do not."""
    by_hand = small_trainer()
    for _ in range(5):
        by_hand.learn(by_hand.collect_rollouts(32))
    assert torch.equal(weights(by_hand), trained(small_trainer))


# ------------------------------------------------------------------ several trainers, one policy


def test_trainers_share_a_policy(counting_env, small_policy):
    """J10, J14, J15: collected in several environments, learned in one place, seen by all."""
    envs = [counting_env(length) for length in (3, 5, 8)]
    policy = small_policy(envs[0])
    trainers = [PPOTrainer(policy, env, device="cpu", minibatch_size=16, update_epochs=1) for env in envs]
    for _ in range(2):
        combined = combine_rollouts(
            [trainer.collect_rollouts(n_steps=12 + 4 * i) for i, trainer in enumerate(trainers)]
        )
        metrics = trainers[0].learn(combined)
        assert metrics["ratio_error"] < 1e-5
    assert all(torch.equal(weights(trainer), weights(trainers[0])) for trainer in trainers)
    assert [trainer.n_updates for trainer in trainers] == [2, 0, 0]
    assert [trainer.total_timesteps for trainer in trainers] == [24, 32, 40]


# ------------------------------------------------------------------ keeping


def test_a_checkpoint_goes_on_exactly(small_trainer, tmp_path):
    """J27, J28, L22, R7: weights, optimizer, normalisers, order, counters; the next update is the same bit for bit."""
    settings = {"normalize_obs": True, "normalize_returns": True, "lr_schedule": "cosine"}
    trainer = small_trainer(**settings, run_dir=tmp_path)
    trainer.train(total_timesteps=192)
    path = trainer.save_checkpoint()
    episodes, rewards = trainer.n_episodes, list(trainer.episode_rewards)
    assert path == tmp_path / "checkpoints" / "step_000000000192"
    data = trainer.collect_rollouts(32)
    expected = trainer.learn({**data, "policy_version": None})
    other = small_trainer(**settings, seed=3)
    other.train(total_timesteps=64)
    other.load_checkpoint(path)
    assert (other.total_timesteps, other.n_updates, other.n_episodes) == (192, 3, episodes)
    assert list(other.episode_rewards) == rewards
    assert other.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 3e-4)
    assert other.learn({**data, "policy_version": None}) == expected
    assert torch.equal(weights(other), weights(trainer))


def test_training_goes_on_from_a_checkpoint(small_trainer, tmp_path):
    """LB9: the environment is begun anew, and nothing is missing; the schedule goes on from where it was (N7)."""
    trainer = small_trainer(lr_schedule="linear", learning_rate=1e-3)
    trainer.train(total_timesteps=128)
    trainer.save_checkpoint(tmp_path / "kept")
    fresh = small_trainer(lr_schedule="linear", learning_rate=1e-3, seed=4)
    fresh.load_checkpoint(tmp_path / "kept")
    history = fresh.train(total_timesteps=256)
    assert history["timesteps"] == [192, 256]
    assert history["lr"] == pytest.approx([0.5e-3, 0.25e-3])
    assert max(history["ratio_error"]) < 1e-5


def test_what_is_loaded_acts_alike(small_trainer, tmp_path):
    """R7, R10: the actions' generator goes on from where it was saved, whatever was drawn since."""
    trainer = small_trainer()
    trainer.train(total_timesteps=64)
    trainer.save_checkpoint(tmp_path / "kept")
    seen = []
    for steps_before in (3, 40):
        other = small_trainer()
        other.collect_rollouts(steps_before)
        other.load_checkpoint(tmp_path / "kept")
        seen.append(other.collect_rollouts(32))
    assert torch.equal(seen[0]["actions"], seen[1]["actions"])
    assert torch.equal(seen[0]["observations"], seen[1]["observations"])


def test_data_from_before_loading_are_old_not_wrong(small_trainer, tmp_path):
    """JB11: loading makes the policy another one."""
    trainer = small_trainer(learning_rate=1e-2)
    trainer.save_checkpoint(tmp_path / "start")
    trainer.train(total_timesteps=64)
    data = trainer.collect_rollouts(32)
    trainer.load_checkpoint(tmp_path / "start")
    assert trainer.learn(data)["ratio_error"] > 1e-3


def test_checkpoints_on_the_way(small_trainer, tmp_path):
    """J27: every `save_interval` updates, into run_dir; without one, the error says what to pass."""
    trainer = small_trainer(run_dir=tmp_path)
    trainer.train(total_timesteps=64 * 5, save_interval=2)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step_000000000128",
        "step_000000000256",
    ]
    with pytest.raises(ConfigError, match="run_dir"):
        small_trainer().save_checkpoint()
