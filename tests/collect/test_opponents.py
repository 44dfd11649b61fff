"""A frozen network plays the agents that nobody learns for, by what these observe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from twostep import AgentConfig, PolicyOpponent, PPOConfig, PPOTrainer, make_env, make_policy
from twostep.vector import AgentsVectorEnv


class Chase:
    """A hunter and a prey of different spaces; both see random numbers, and all that the prey does is kept."""

    possible_agents = ("hunter", "prey")

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.done: list[Any] = []
        self.random = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-9, 9, (2 if agent == "hunter" else 3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2) if agent == "hunter" else spaces.Box(-1, 1, (1,), np.float32)

    def _answer(self) -> tuple[dict[str, Any], dict[str, Any]]:
        obs = {
            agent: self.random.normal(size=self.observation_space(agent).shape).astype(np.float32)
            for agent in self.agents
        }
        self.told.append((obs["prey"], self.t == 0))
        return obs, {agent: {} for agent in self.agents}

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.agents = 0, ["hunter", "prey"]
        return self._answer()

    def step(self, actions: dict[str, Any]) -> Any:
        self.t += 1
        self.done.append(actions["prey"])
        obs, infos = self._answer()
        over = dict.fromkeys(self.agents, self.t == 5)
        self.agents = [] if self.t == 5 else self.agents
        return obs, dict.fromkeys(over, 1.0), over, dict.fromkeys(over, False), infos


@pytest.fixture
def prey_network() -> Any:
    alone = AgentsVectorEnv([Chase()], agent_ids="prey", opponent=Sitting, check=False)
    return make_policy(alone, AgentConfig(hidden_size=8, memory="gru", memory_size=4), seed=3)


class Sitting:
    def act(self, env: Any, agent_id: str) -> int:
        return 0


def test_it_acts_by_its_own_observations_with_memory_of_its_own_episode(prey_network: Any) -> None:
    """E11, EB12: the same as the network played by hand, in each environment by itself."""
    envs = [Chase(), Chase()]
    rows = AgentsVectorEnv(envs, agent_ids="hunter", opponent=lambda: PolicyOpponent(prey_network), check=False)
    rows.reset([0, 1])
    for _ in range(12):
        rows.step(np.zeros(2, dtype=np.int64))
    for env in envs:
        state, by_hand = prey_network.initial_state(1), []
        for obs, starts in env.told:
            with torch.no_grad():
                output = prey_network(torch.tensor(obs)[None, None], state, torch.tensor([[starts]]))
            state = output.state
            by_hand.append(prey_network.to_env(output.distribution.mode())[0, 0].numpy())
        ends = [at for at, (_, starts) in enumerate(env.told) if starts and at] + [len(env.told)]
        acted = [action for at, action in enumerate(by_hand) if at + 1 not in ends]
        assert len(acted) == len(env.done) == 12
        np.testing.assert_allclose(env.done, acted, rtol=1e-5)


def test_drawn_actions_repeat(prey_network: Any) -> None:
    runs = []
    for _ in range(2):
        env = Chase()
        rows = AgentsVectorEnv([env], agent_ids="hunter", opponent=lambda: PolicyOpponent(prey_network, 7), check=False)
        rows.reset(0)
        for _ in range(6):
            rows.step(np.zeros(1, dtype=np.int64))
        runs.append(np.array(env.done))
    np.testing.assert_array_equal(*runs)
    assert len(set(runs[0].ravel().tolist())) == 6


def test_it_goes_on_where_its_state_was_taken(prey_network: Any) -> None:
    """C16: what it remembers, saw last and draws next."""

    def group() -> tuple[Chase, AgentsVectorEnv]:
        env = Chase()
        return env, AgentsVectorEnv(
            [env], agent_ids="hunter", opponent=lambda: PolicyOpponent(prey_network, 7), check=False
        )

    (first, rows), (second, others) = group(), group()
    rows.reset(0)
    for _ in range(3):
        rows.step(np.zeros(1, dtype=np.int64))
    state = rows.state_dict()
    others.reset(1)
    others.load_state_dict(state)
    for each in (rows, others):
        for _ in range(4):
            each.step(np.zeros(1, dtype=np.int64))
    np.testing.assert_array_equal(first.done[-4:], second.done[-4:])


def test_masks_reach_it() -> None:
    class Choosing(Chase):
        def action_space(self, agent: str) -> spaces.Space[Any]:
            return spaces.Discrete(3)

        def _answer(self) -> Any:
            obs, infos = super()._answer()
            infos["prey"] = {"action_mask": np.array([0, 1, 0], dtype=np.int8)}
            return obs, infos

    alone = AgentsVectorEnv([Choosing()], agent_ids="prey", opponent=Sitting, check=False)
    network = make_policy(alone, AgentConfig(hidden_size=8), seed=0)
    env = Choosing()
    rows = AgentsVectorEnv([env], agent_ids="hunter", opponent=lambda: PolicyOpponent(network, 1), check=False)
    rows.reset(0)
    for _ in range(8):
        rows.step(np.zeros(1, dtype=np.int64))
    assert [int(action) for action in env.done] == [1] * 8


def test_adversaries_train_against_a_frozen_evader_of_other_spaces() -> None:
    """E11: simple_tag of PettingZoo's family, three adversaries and one evader who sees less."""
    pytest.importorskip("mpe2")
    path = "mpe2.simple_tag_v3:parallel_env"

    alone = make_env(path, agent_ids="agent_0", opponent=Sitting, max_cycles=25)
    evader = make_policy(alone, AgentConfig(hidden_size=8), seed=1)
    alone.close()
    before = {name: tensor.clone() for name, tensor in evader.state_dict().items()}
    env = make_env(path, 2, agent_ids="adversary_*", opponent=lambda: PolicyOpponent(evader, 5), max_cycles=25)
    assert env.observation_space != alone.observation_space
    policy = make_policy(env, AgentConfig(hidden_size=8), seed=2)
    history = PPOTrainer(policy, env, PPOConfig(rollout_steps=32, update_epochs=1), seed=0, device="cpu").train(384)
    env.close()
    assert np.isfinite(history["loss"]).all()
    assert all(torch.equal(tensor, before[name]) for name, tensor in evader.state_dict().items())


def test_who_leaves_forgets(prey_network: Any) -> None:
    """An agent that leaves and comes back begins without memory."""
    opponent, env = PolicyOpponent(prey_network), Chase()
    obs = np.ones(3, dtype=np.float32)
    opponent.reset(env)
    opponent.see({"prey": obs}, {})
    first = opponent.act(env, "prey")
    second = opponent.act(env, "prey")
    opponent.see({}, {})
    opponent.see({"prey": obs}, {})
    np.testing.assert_array_equal(opponent.act(env, "prey"), first)
    assert not np.array_equal(first, second)
