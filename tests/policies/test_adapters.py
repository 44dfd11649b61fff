"""Every usual signature of a network, as a policy: the ratio is 1, memory is forgotten, mistakes are explained.

The networks below are written as users of the four seeds would write them, knowing nothing of this library.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from twostep.collect.collector import RolloutCollector
from twostep.errors import PolicyError
from twostep.learn.ppo import PPOOptimizer
from twostep.learn.settings import PPOConfig
from twostep.policies.actor_critic import ActorCritic
from twostep.policies.adapters import as_policy, memory_from, memory_to
from twostep.vector import SerialVectorEnv

OBS, CHOICES, AXES, HIDDEN = 3, 4, 2, 6
DISCRETE = spaces.Discrete(CHOICES)
BOX = spaces.Box(-1.0, 1.0, (AXES,), np.float32)


class Noise(gym.Env[np.ndarray, Any]):
    """Random observations; episodes of 3 steps end, those of 5 are cut."""

    def __init__(self, action_space: gym.Space[Any]) -> None:
        self.observation_space = spaces.Box(-10.0, 10.0, (OBS,), np.float32)
        self.action_space = action_space
        self.episode = self.t = 0

    def _obs(self) -> np.ndarray:
        return self.np_random.normal(size=OBS).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.t += 1
        ends = self.episode % 2 == 0
        return self._obs(), float(self.np_random.normal()), ends and self.t == 3, not ends and self.t == 5, {}


# ---------------------------------------------------------------------- networks of all kinds


class Plain(nn.Module):
    """Parameters and a value."""

    def __init__(self, width: int, value_shape: tuple[int, ...] = (1,)) -> None:
        super().__init__()
        self.action, self.critic, self.value_shape = nn.Linear(OBS, width), nn.Linear(OBS, 1), value_shape

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.action(obs), self.critic(obs).view(-1, *self.value_shape)


class Hypothesis(nn.Module):
    """Seeds 000 and 001: a dict in answer, with a mask and a task to condition on."""

    def __init__(self) -> None:
        super().__init__()
        self.action, self.critic, self.task = nn.Linear(OBS, CHOICES), nn.Linear(OBS, 1), nn.Linear(2, CHOICES)

    def forward(
        self, obs: Tensor, action_mask: Tensor | None = None, task_trajectories: Tensor | None = None
    ) -> dict[str, Tensor]:
        logits = self.action(obs)
        if task_trajectories is not None:
            logits = logits + self.task(task_trajectories).mean((1, 2))
        if action_mask is not None:
            logits = logits.masked_fill(~action_mask, -torch.inf)
        return {"action_logits": logits, "value": self.critic(obs), "tree_representation": obs}


class Locomotion(nn.Module):
    """Seed 004: a mean, a value and a new hidden state `(layers, batch, hidden)`."""

    def __init__(self, width: int = AXES) -> None:
        super().__init__()
        self.gru, self.action, self.value = nn.GRU(OBS, HIDDEN, 2), nn.Linear(HIDDEN, width), nn.Linear(HIDDEN, 1)

    def forward(self, obs: Tensor, hidden_state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, hidden = self.gru(obs[None], hidden_state)
        return self.action(features[0]), self.value(features[0]), hidden


class LSTMState(NamedTuple):
    h: Tensor
    c: Tensor


class ActorCriticLSTM(nn.Module):
    """Seed 002: draws and judges actions itself; memory is masked by `done` before the step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.actor, self.critic = nn.LSTM(OBS, HIDDEN), nn.Linear(HIDDEN, AXES), nn.Linear(HIDDEN, 1)
        self.log_std = nn.Parameter(torch.zeros(AXES))
        self.calls = 0

    def initial_state(self, batch_size: int, device: torch.device) -> LSTMState:
        return LSTMState(*(torch.zeros(1, batch_size, HIDDEN, device=device) for _ in range(2)))

    def get_action_and_value(
        self, obs: Tensor, lstm_state: LSTMState, done: Tensor, action: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, LSTMState]:
        self.calls += 1
        keep = (1.0 - done).view(1, -1, 1)
        features, (h, c) = self.lstm(obs[None], (lstm_state.h * keep, lstm_state.c * keep))
        distribution = Normal(self.actor(features[0]), self.log_std.exp())
        action = distribution.sample() if action is None else action
        logprob, entropy = distribution.log_prob(action).sum(-1), distribution.entropy().sum(-1)
        return action, logprob, entropy, self.critic(features[0]).squeeze(-1), LSTMState(h, c)


class Agent(nn.Module):
    """A network that draws and judges actions itself, without memory."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic, self.calls = nn.Linear(OBS, CHOICES), nn.Linear(OBS, 1), 0

    def get_action_and_value(self, x: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        self.calls += 1
        distribution = Categorical(logits=self.actor(x))
        action = distribution.sample() if action is None else action
        return action, distribution.log_prob(action), distribution.entropy(), self.critic(x)


class PolicyState:
    """Seed 003: memory that the network changes in place."""

    def __init__(self, lstm_h: Tensor | None = None, lstm_c: Tensor | None = None) -> None:
        self.lstm_h, self.lstm_c = lstm_h, lstm_c


class MettaAgent(nn.Module):
    """Seed 003: `policy(obs, state, action=None)`, several choices per action."""

    nvec = (3, 2)

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.critic = nn.LSTM(OBS, HIDDEN), nn.Linear(HIDDEN, 1)
        self.heads = nn.ModuleList(nn.Linear(HIDDEN, n) for n in self.nvec)

    def forward(self, obs: Tensor, state: PolicyState, action: Tensor | None = None) -> tuple[Tensor, ...]:
        features, (state.lstm_h, state.lstm_c) = self.lstm(obs[None], (state.lstm_h, state.lstm_c))
        choices = [Categorical(logits=head(features[0])) for head in self.heads]
        action = torch.stack([choice.sample() for choice in choices], -1) if action is None else action
        logprob = sum(choice.log_prob(part) for choice, part in zip(choices, action.unbind(-1), strict=True))
        entropy = sum(choice.entropy() for choice in choices)
        return action, logprob, entropy, self.critic(features[0]), torch.cat([c.logits for c in choices], -1)


MULTI = spaces.MultiDiscrete(MettaAgent.nvec)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], gym.Space[Any]]] = {
    "plain logits": (lambda: Plain(CHOICES), DISCRETE),
    "plain, flat value": (lambda: Plain(CHOICES, ()), DISCRETE),
    "plain choices": (lambda: Plain(5), MULTI),
    "plain switches": (lambda: Plain(3), spaces.MultiBinary(3)),
    "plain mean": (lambda: Plain(AXES), BOX),
    "plain mean and log_std": (lambda: Plain(2 * AXES), BOX),
    "dict": (Hypothesis, DISCRETE),
    "hidden": (Locomotion, BOX),
    "hidden, discrete": (lambda: Locomotion(CHOICES), DISCRETE),
    "action and value": (Agent, DISCRETE),
    "action and value with memory": (ActorCriticLSTM, BOX),
    "changed state": (MettaAgent, MULTI),
}
every_network = pytest.mark.parametrize(("make", "space"), NETWORKS.values(), ids=NETWORKS.keys())


def collector(network: Any, space: gym.Space[Any], rows: int = 3, steps: int = 22) -> RolloutCollector:
    envs = SerialVectorEnv([Noise(space) for _ in range(rows)], check=False)
    return RolloutCollector(envs, network, num_steps=steps, bptt_length=4, seed=5)


@every_network
def test_ratio_is_one_before_the_first_step(make: Callable[[], nn.Module], space: gym.Space[Any]) -> None:
    """C21, R3: every signature acts and learns as one policy, over resets and rollouts. LB2: on the stored actions."""
    torch.manual_seed(0)
    network = make()
    phase_one = collector(network, space)
    learner = PPOOptimizer(network, config=PPOConfig(update_epochs=2, lr=1e-2))
    before = {name: parameter.clone() for name, parameter in network.named_parameters()}
    for _ in range(3):
        rollout = phase_one.rollout()
        assert rollout.episode_starts.sum() > 6
        metrics = learner.update(rollout)
        assert metrics["ratio_error"] < 1e-5
        assert metrics["entropy"] > 0
    unmoved = {name for name, parameter in network.named_parameters() if torch.equal(parameter, before[name])}
    assert unmoved <= {"task.weight", "task.bias"}


@every_network
def test_memory_is_forgotten_where_an_episode_starts(make: Callable[[], nn.Module], space: gym.Space[Any]) -> None:
    """L9, LB7, MB2: what came before a start changes nothing after it, in another row or in the same."""
    torch.manual_seed(1)
    policy = as_policy(make(), space)
    obs = torch.randn(5, 2, OBS)
    other = torch.cat((torch.randn(2, 2, OBS), obs[2:]))
    starts = torch.zeros(5, 2, dtype=torch.bool)
    starts[2, 0] = True
    empty = policy.initial_state(2)
    actions = policy(obs, empty, starts).distribution.sample(torch.Generator().manual_seed(0))
    outputs = [policy(o, empty, starts) for o in (obs, other)]
    logprobs = [output.distribution.log_prob(actions) for output in outputs]
    values = [output.values for output in outputs]
    assert torch.equal(logprobs[0][2:, 0], logprobs[1][2:, 0])
    assert torch.equal(values[0][2:, 0], values[1][2:, 0])
    if empty:
        assert not torch.allclose(values[0][2:, 1], values[1][2:, 1])


@every_network
@settings(max_examples=8, deadline=None)
@given(steps=st.integers(1, 5), rows=st.integers(1, 4), seed=st.integers(0, 99))
def test_a_sequence_is_its_single_steps(
    make: Callable[[], nn.Module], space: gym.Space[Any], steps: int, rows: int, seed: int
) -> None:
    """L15: learning on `[T, B]` says what acting step by step said, whatever the shape."""
    torch.manual_seed(seed)
    policy = as_policy(make(), space)
    obs, starts = torch.randn(steps, rows, OBS), torch.rand(steps, rows) < 0.3
    state = policy.initial_state(rows)
    whole = policy(obs, state, starts)
    actions = whole.distribution.sample(torch.Generator().manual_seed(seed))
    for t in range(steps):
        output = policy(obs[t : t + 1], state, starts[t : t + 1])
        logprobs = output.distribution.log_prob(actions[t : t + 1])
        torch.testing.assert_close(logprobs[0], whole.distribution.log_prob(actions)[t])
        torch.testing.assert_close(output.values[0], whole.values[t])
        torch.testing.assert_close(output.distribution.entropy()[0], whole.distribution.entropy()[t])
        state = output.state
        assert all(leaf.shape[0] == rows for leaf in state)
    for leaf, other in zip(state, whole.state, strict=True):
        torch.testing.assert_close(leaf, other)


@every_network
def test_same_generator_same_actions(make: Callable[[], nn.Module], space: gym.Space[Any]) -> None:
    """R10: also a network that draws by itself draws from the collector's generator, and disturbs no other."""
    torch.manual_seed(2)
    policy = as_policy(make(), space)
    obs, starts = torch.randn(1, 50, OBS), torch.zeros(1, 50, dtype=torch.bool)
    before = torch.get_rng_state()

    def draw(seed: int) -> Tensor:
        output = policy(obs, policy.initial_state(50), starts)
        return output.distribution.sample(torch.Generator().manual_seed(seed))

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    assert torch.equal(torch.get_rng_state(), before)


@every_network
def test_values_and_logprobs_carry_gradients(make: Callable[[], nn.Module], space: gym.Space[Any]) -> None:
    torch.manual_seed(3)
    network = make()
    policy = as_policy(network, space)
    obs, starts = torch.randn(3, 2, OBS), torch.zeros(3, 2, dtype=torch.bool)
    output = policy(obs, policy.initial_state(2), starts)
    actions = output.distribution.sample()
    again = policy(obs, policy.initial_state(2), starts)
    (again.distribution.log_prob(actions).sum() + again.values.sum()).backward()
    untouched = [name for name, parameter in network.named_parameters() if parameter.grad is None]
    assert untouched in ([], ["task.weight", "task.bias"])


# ---------------------------------------------------------------------- each kind by itself


def test_a_mean_alone_gets_a_fixed_deviation_of_a_half() -> None:
    """L25: as seed 004 has it; LB1: actions are drawn around the mean, not the mean itself."""
    policy = as_policy(Locomotion(), BOX)
    obs, starts = torch.randn(1, 4000, OBS), torch.zeros(1, 4000, dtype=torch.bool)
    output = policy(obs, policy.initial_state(4000), starts)
    deviations = output.distribution.sample(torch.Generator().manual_seed(0)) - output.distribution.mode()
    assert deviations.std().item() == pytest.approx(0.5, abs=0.02)
    assert output.distribution.entropy()[0, 0].item() == pytest.approx(AXES * (0.5 + 0.5 * np.log(2 * np.pi * 0.25)))
    assert policy.to_env(torch.full((1, AXES), 3.0)).tolist() == [[1.0, 1.0]]


def test_mean_and_log_std_side_by_side_or_as_a_pair() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.log_std = nn.Linear(OBS, AXES), nn.Parameter(torch.full((AXES,), -1.5))

        def forward(self, obs: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
            return (self.mean(obs), self.log_std), obs.sum(-1)

    obs, starts = torch.randn(1, 5, OBS), torch.zeros(1, 5, dtype=torch.bool)
    distribution = as_policy(Pair(), BOX)(obs, (), starts).distribution
    assert torch.equal(distribution.log_std, torch.full((1, 5, AXES), -1.5))
    wide = Plain(2 * AXES)
    distribution = as_policy(wide, BOX)(obs, (), starts).distribution
    assert torch.equal(torch.cat((distribution.mean, distribution.log_std), -1), wide.action(obs))


def test_masks_and_tasks_reach_a_network_that_takes_them() -> None:
    """JB6, JB9: only what is there is passed on, by the network's own names."""
    network = Hypothesis()
    policy = as_policy(network, DISCRETE)
    obs, starts = torch.randn(2, 3, OBS), torch.zeros(2, 3, dtype=torch.bool)
    masks = torch.zeros(2, 3, CHOICES, dtype=torch.bool)
    masks[..., 1:3] = True
    tasks = torch.randn(2, 3, 4, 5, 2)
    plain = policy(obs, (), starts).distribution
    masked = policy(obs, (), starts, action_masks=masks).distribution
    assert set(masked.sample().flatten().tolist()) <= {1, 2}
    assert masked.entropy().isfinite().all()
    assert torch.allclose(masked.probs.sum(-1), torch.ones(2, 3))
    for name in ("task_trajectories", "context"):
        conditioned = policy(obs, (), starts, **{name: tasks}).distribution
        expected = network(obs.flatten(0, 1), task_trajectories=tasks.flatten(0, 1))["action_logits"]
        assert torch.allclose(conditioned.log_probs.flatten(0, 1), expected.log_softmax(-1))
        assert not torch.allclose(conditioned.log_probs, plain.log_probs)


def test_masks_are_applied_for_networks_that_know_none() -> None:
    obs, starts = torch.randn(1, 40, OBS), torch.zeros(1, 40, dtype=torch.bool)
    masks = torch.tensor([True, False, False, False]).expand(1, 40, CHOICES)
    for network in (Plain(CHOICES), Locomotion(CHOICES)):
        policy = as_policy(network, DISCRETE)
        output = policy(obs, policy.initial_state(40), starts, action_masks=masks)
        assert output.distribution.sample().unique().tolist() == [0]
    drawing = as_policy(Agent())(obs, (), starts, action_masks=masks)
    with pytest.raises(PolicyError, match="action_masks is there to be acted upon, but Agent has no argument for it"):
        drawing.distribution.sample()


def test_a_condition_without_a_place_is_refused() -> None:
    policy = as_policy(Plain(CHOICES), DISCRETE)
    starts = torch.zeros(1, 2, dtype=torch.bool)
    with pytest.raises(PolicyError, match="task_trajectories"):
        policy(torch.zeros(1, 2, OBS), (), starts, task_trajectories=torch.zeros(1, 2, 3))


@pytest.mark.parametrize("make", [Agent, ActorCriticLSTM])
def test_a_network_that_draws_runs_once_per_question(make: Callable[[], Any]) -> None:
    """One call per step, in acting and in learning: log-probability, entropy and value share it."""
    network = make()
    policy = as_policy(network)
    steps = 1 if make is Agent else 3
    obs, starts = torch.randn(3, 2, OBS), torch.zeros(3, 2, dtype=torch.bool)
    output = policy(obs, policy.initial_state(2), starts)
    actions = output.distribution.sample(torch.Generator().manual_seed(0))
    output.distribution.log_prob(actions), output.values, output.state, output.distribution.entropy()
    assert network.calls == steps
    output = policy(obs, policy.initial_state(2), starts)
    output.distribution.log_prob(actions), output.distribution.entropy(), output.values
    assert network.calls == 2 * steps
    _, values, _ = policy(obs, policy.initial_state(2), starts)
    assert values.shape == (3, 2)
    assert network.calls == 3 * steps


def test_values_alone_disturb_no_random_numbers() -> None:
    policy = as_policy(Agent())
    before = torch.get_rng_state()
    assert policy(torch.randn(1, 2, OBS, generator=torch.Generator()), (), torch.zeros(1, 2)).values.shape == (1, 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_most_likely_action_of_a_network_that_draws() -> None:
    """EB9: acting deterministically is possible where the network can, and refused in words where it cannot."""

    class Greedy(Agent):
        def get_action_and_value(self, x: Tensor, action: Any = None, deterministic: bool = False) -> Any:
            best = self.actor(x).argmax(-1)
            return super().get_action_and_value(x, best if deterministic else action)

    obs, starts = torch.randn(1, 20, OBS), torch.zeros(1, 20, dtype=torch.bool)
    network = Greedy()
    assert torch.equal(as_policy(network)(obs, (), starts).distribution.mode(), network.actor(obs).argmax(-1))
    with pytest.raises(PolicyError, match="deterministic=False"):
        as_policy(Agent())(obs, (), starts).distribution.mode()


@pytest.mark.parametrize("make", [ActorCriticLSTM, MettaAgent, Locomotion])
def test_memory_crosses_over_in_both_directions(make: Callable[[], Any]) -> None:
    """C19: the network's own memory and the library's are the same numbers, turned."""
    policy = as_policy(make(), BOX if make is Locomotion else None)
    state = tuple(torch.randn_like(leaf) for leaf in policy.initial_state(3))
    foreign = policy.state_to(state)
    expected = {ActorCriticLSTM: LSTMState, MettaAgent: SimpleNamespace, Locomotion: Tensor}[make]
    assert isinstance(foreign, expected)
    first = foreign if isinstance(foreign, Tensor) else getattr(foreign, "h", getattr(foreign, "lstm_c", None))
    assert first.shape[1:] == (3, HIDDEN)
    for leaf, back in zip(state, policy.state_from(foreign), strict=True):
        assert torch.equal(leaf, back)


def test_memory_of_a_policy_that_follows_the_protocol_stays_as_it_is() -> None:
    state = torch.zeros(2, 3)
    policy = ActorCritic(spaces.Box(-1, 1, (OBS,)), DISCRETE)
    assert memory_from(policy, state) is state
    assert memory_to(policy, state) is state
    adapter = as_policy(ActorCriticLSTM())
    assert isinstance(memory_to(adapter, adapter.initial_state(2)), LSTMState)
    assert memory_from(adapter, adapter.module.initial_state(2, torch.device("cpu")))[0].shape == (2, 1, HIDDEN)


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell, nn.GRU, nn.LSTM])
def test_memory_of_the_one_recurrent_layer_inside(kind: Any) -> None:
    """C20: a network that says nothing about its memory starts with zeros of the right shape."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = kind(OBS, HIDDEN), nn.Linear(HIDDEN, CHOICES + 1)

        def forward(self, obs: Tensor, hidden: Any) -> tuple[Tensor, Tensor, Any]:
            if isinstance(self.layer, nn.RNNBase):
                features, hidden = self.layer(obs[None], hidden)
                features = features[0]
            else:
                hidden = self.layer(obs, hidden)
                features = hidden[0] if isinstance(hidden, tuple) else hidden
            out = self.out(features)
            return out[:, :-1], out[:, -1], hidden

    rollout = collector(network := Recurrent(), DISCRETE).rollout()
    assert PPOOptimizer(network, config=PPOConfig(update_epochs=1)).update(rollout)["ratio_error"] < 1e-5
    assert len(rollout.states) == (2 if "LSTM" in kind.__name__ else 1)


def test_memory_is_made_as_told_or_as_the_network_does() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.ModuleList(nn.GRUCell(OBS, OBS) for _ in range(2))
            self.out = nn.Linear(OBS, CHOICES + 1)

        def forward(self, obs: Tensor, memory: dict[str, Any]) -> tuple[Tensor, Tensor, dict[str, Any]]:
            lower = self.cells[0](obs, memory["layers"][0])
            upper = self.cells[1](lower, memory["layers"][1])
            out = self.out(upper)
            return out[:, :-1], out[:, -1], {"layers": [lower, upper], "size": memory["size"]}

    with pytest.raises(PolicyError, match=r"2 recurrent layers.*initial_state="):
        as_policy(Cell(), DISCRETE)
    policy = as_policy(
        Cell(), DISCRETE, initial_state=lambda rows: {"layers": [torch.ones(rows, OBS)] * 2, "size": OBS}
    )
    assert [leaf.tolist() for leaf in policy.initial_state(1)] == [[[1.0] * OBS]] * 2
    output = policy(torch.randn(3, 2, OBS), policy.initial_state(2), torch.ones(3, 2, dtype=torch.bool))
    assert [leaf.shape for leaf in output.state] == [(2, OBS)] * 2


def test_state_changing_networks_without_memory_and_with_their_own_state() -> None:
    class Forgetful(Agent):
        def forward(self, obs: Tensor, state: Any, action: Tensor | None = None) -> tuple[Tensor, ...]:
            state.lstm_h = obs if self.remembers else None
            return (*self.get_value_of(obs, action), self.actor(obs))

        get_value_of = Agent.get_action_and_value
        get_action_and_value = None
        remembers = False

    network = Forgetful()
    policy = as_policy(network)
    obs, starts = torch.randn(1, 2, OBS), torch.zeros(1, 2, dtype=torch.bool)
    assert policy.initial_state(2) == ()
    assert policy(obs, (), starts).distribution.sample().shape == (1, 2)
    network.remembers = True
    with pytest.raises(PolicyError, match="initial_state="):
        policy(obs, (), starts).distribution.sample()

    def make(rows: int) -> PolicyState:
        return PolicyState(torch.zeros(1, rows, HIDDEN), torch.zeros(1, rows, HIDDEN))

    policy = as_policy(MettaAgent(), initial_state=make)
    assert isinstance(policy.state_to(policy.initial_state(2)), PolicyState)
    assert policy(obs, policy.initial_state(2), starts).distribution.sample().shape == (1, 2, 2)


# ---------------------------------------------------------------------- which policy is meant


def test_a_policy_stays_itself() -> None:
    policy = ActorCritic(spaces.Box(-1, 1, (OBS,)), DISCRETE)
    version = policy.version
    assert as_policy(policy, DISCRETE) is policy
    assert policy.version == version

    class Own(Plain):
        def initial_state(self, batch: int) -> tuple[()]:
            return ()

        def to_env(self, actions: Tensor) -> Tensor:
            return actions

    own = Own(CHOICES)
    assert as_policy(own) is own
    assert isinstance(own.version, int)


def test_collector_and_learner_mean_the_same_policy() -> None:
    """One network has one adapter and one version; a second version would switch the check of the ratio off."""
    network = Plain(CHOICES)
    adapter = as_policy(network, DISCRETE)
    assert as_policy(network) is adapter
    assert as_policy(network, spaces.Discrete(CHOICES)) is adapter
    assert as_policy(adapter) is adapter
    assert as_policy(network, spaces.Discrete(CHOICES, start=1)) is not adapter
    assert list(network.state_dict()) == ["action.weight", "action.bias", "critic.weight", "critic.bias"]
    drawing = ActorCriticLSTM()
    adapter = as_policy(drawing)
    assert as_policy(drawing, BOX) is adapter
    assert adapter.to_env(torch.tensor([[2.0, -3.0]])).tolist() == [[1.0, -1.0]]
    adapter = as_policy(ActorCriticLSTM())
    assert adapter.to_env(torch.tensor([[2.0, -3.0]])).tolist() == [[2.0, -3.0]]
    assert as_policy(adapter, BOX) is adapter
    assert adapter.to_env(torch.tensor([[2.0, -3.0]])).tolist() == [[1.0, -1.0]]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # inside torch.compile itself
@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda policy: torch.compile(policy, backend="eager")])
def test_wrapped_policies_are_accepted(wrap: Callable[[nn.Module], nn.Module]) -> None:
    """C31: DataParallel and torch.compile around a policy."""
    torch.manual_seed(0)
    wrapped = wrap(ActorCritic(Noise(DISCRETE).observation_space, DISCRETE))
    rollout = collector(wrapped, DISCRETE, steps=8).rollout()
    assert PPOOptimizer(wrapped, config=PPOConfig(update_epochs=1)).update(rollout)["ratio_error"] < 1e-5


def test_several_devices_are_told_apart() -> None:
    wrapped = nn.DataParallel(Plain(CHOICES))
    wrapped.device_ids = [0, 1]
    with pytest.warns(UserWarning, match="only the first is used"):
        as_policy(wrapped, DISCRETE)


# ---------------------------------------------------------------------- modes


def test_layers_that_act_differently_in_training_are_held_still() -> None:
    """JB8: dropout and batch statistics are off in both phases, and stay off; the user is told once, by name."""
    network = nn.Sequential(nn.Linear(OBS, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, CHOICES + 1))

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.silent = network, nn.Dropout(0.0)

        def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
            out = self.body(obs)
            return out[:, :-1], out[:, -1]

    user = Split()
    with pytest.warns(UserWarning, match=r"Split has layers that act differently.*body\.1, body\.2\.") as caught:
        phase_one = collector(user, DISCRETE)
    assert len(caught) == 1
    learner = PPOOptimizer(user, config=PPOConfig(update_epochs=1))
    learner.policy.train()
    assert user.training
    assert user.silent.training
    assert not network[1].training
    assert not network[2].training
    assert learner.update(phase_one.rollout())["ratio_error"] < 1e-5


def test_dropout_inside_recurrent_and_attention_layers_is_found() -> None:
    """JB8."""

    class Deep(Locomotion):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(OBS, HIDDEN, 2, dropout=0.5)
            self.attention = nn.MultiheadAttention(4, 1, dropout=0.1)

    network = Deep()
    with pytest.warns(UserWarning, match="gru, attention"):
        as_policy(network, BOX)
    assert network.gru.dropout == 0.0
    assert network.gru.training
    assert not network.attention.training


# ---------------------------------------------------------------------- mistakes


class Broken(Plain):
    """Says something wrong."""

    def __init__(self, says: Callable[[Tensor], Any]) -> None:
        super().__init__(CHOICES)
        self.says = says

    def forward(self, obs: Tensor) -> Any:
        return self.says(obs)


@pytest.mark.parametrize(
    ("says", "message"),
    [
        (lambda obs: obs, r"returned Tensor where \(action parameters, value\)"),
        (lambda obs: (obs, obs, obs), "returned 3 things"),
        (lambda obs: (obs.new_zeros(len(obs), 3), obs[:, 0]), r"puts out 3 numbers per row; Discrete\(4\) needs 4"),
        (lambda obs: (obs.new_zeros(1, CHOICES), obs[:, 0]), r"action parameters \(1, 4\) for 6 rows"),
        (lambda obs: (None, obs[:, 0]), "action parameters NoneType for 6 rows"),
        (lambda obs: (obs.new_zeros(len(obs), CHOICES), obs[:, :2]), r"values \(6, 2\) for 6 rows"),
        (lambda obs: (obs.new_zeros(len(obs), CHOICES), obs.mean()), r"values \(\) for 6 rows"),
        (lambda obs: (obs.new_zeros(len(obs), CHOICES), 0.0), "values float for 6 rows"),
        (lambda obs: {"logits": obs, "value": obs}, "a dict of logits, value; it must have 'action_logits'"),
    ],
)
def test_wrong_outputs_are_explained(says: Callable[[Tensor], Any], message: str) -> None:
    """LB4: a value that would broadcast to [N, N] never gets that far; J38."""
    policy = as_policy(Broken(says), DISCRETE)
    with pytest.raises(PolicyError, match=message):
        policy(torch.randn(3, 2, OBS), (), torch.zeros(3, 2, dtype=torch.bool))


def test_continuous_widths_are_explained() -> None:
    policy = as_policy(Plain(3), BOX)
    with pytest.raises(PolicyError, match=r"needs 2 or 4 \(mean and log_std\)"):
        policy(torch.randn(1, 2, OBS), (), torch.zeros(1, 2, dtype=torch.bool))


def test_memory_must_keep_its_structure() -> None:
    class Growing(Locomotion):
        def forward(self, obs: Tensor, hidden_state: Tensor) -> Any:
            mean, value, hidden = super().forward(obs, hidden_state)
            return mean, value, (hidden, hidden)

    policy = as_policy(Growing(), BOX)
    with pytest.raises(PolicyError, match="memory of 2 tensors but started with 1"):
        policy(torch.randn(1, 2, OBS), policy.initial_state(2), torch.zeros(1, 2, dtype=torch.bool))


class Inside(Plain):
    """Keeps its memory to itself."""

    def reset_hidden(self, batch: int) -> None:
        self.hidden_state = torch.zeros(1, batch, HIDDEN)


class Memoryless(Plain):
    """Wants memory, but nobody knows which."""

    def forward(self, obs: Tensor, hidden: Any) -> Any:
        return *super().forward(obs), hidden


@pytest.mark.parametrize(
    ("network", "space", "message"),
    [
        (Plain, DISCRETE, r"Got the class Plain, not a network: pass Plain\(\.\.\.\)"),
        (lambda obs: obs, DISCRETE, "function is not a torch.nn.Module"),
        (Plain(CHOICES), None, r"Pass the action space: as_policy\(network, env.action_space\)"),
        (Plain(CHOICES), spaces.Dict({"a": DISCRETE}), "several parts"),
        (Inside(CHOICES), DISCRETE, r"keeps its memory inside \(reset_hidden\)"),
        (Memoryless(CHOICES), DISCRETE, "takes memory, but how does it start"),
        (nn.Module(), DISCRETE, "no forward"),
    ],
)
def test_what_cannot_be_a_policy_is_refused_in_words(network: Any, space: Any, message: str) -> None:
    """J38."""
    with pytest.raises(PolicyError, match=message):
        as_policy(network, space)


def test_unknown_signature_lists_the_known() -> None:
    with pytest.raises(PolicyError, match=r"signature='lstm' is not known.*'action_and_value_hidden' for"):
        as_policy(Plain(CHOICES), DISCRETE, signature="lstm")


def test_signature_overrides_what_names_suggest() -> None:
    class Odd(Plain):
        def forward(self, obs: Tensor, statement: Any = None) -> Any:
            return super().forward(obs)

    policy = as_policy(Odd(CHOICES), DISCRETE, signature="plain")
    assert policy(torch.randn(1, 2, OBS), (), torch.zeros(1, 2, dtype=torch.bool)).values.shape == (1, 2)


def test_memory_whose_rows_cannot_be_found() -> None:
    with pytest.raises(PolicyError, match=r"2 rows has shape \(1, 6\).*exactly one dimension"):
        as_policy(Locomotion(), BOX, initial_state=lambda rows: torch.zeros(1, HIDDEN))
    with pytest.raises(PolicyError, match="holds no tensor"):
        as_policy(Locomotion(), BOX, initial_state=lambda rows: None)
