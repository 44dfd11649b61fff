"""Simulators of batched tensors: both forms of step, final observations, and no surprise in what they are given."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from twostep.errors import EnvError
from twostep.tensors import TensorEnv


class Simulator:
    """Rows whose observation says `(row, episode, t)`; row `r` runs out of time after `r + 2` steps, action 1 ends it.

    It writes every observation into the same memory and clips its actions in place, as simulators do.
    """

    num_envs, num_actions = 3, 1

    def __init__(self, form: str = "five", finals: str = "final_obs", nested: bool = False) -> None:
        self.form, self.finals, self.nested = form, finals, nested
        self.memory = torch.zeros(3, 3)
        self.memory[:, 0] = torch.arange(3)
        self.closed = 0
        self.seed: int | None = None

    def _obs(self, memory: torch.Tensor) -> Any:
        return {"policy": memory, "critic": memory[:, 1:]} if self.nested else memory

    def reset(self, seed: int | None = None) -> Any:
        self.seed = seed
        self.memory[:, 1:] = 0
        return self._obs(self.memory), {}

    def step(self, actions: torch.Tensor) -> Any:
        actions.clip_(-1, 1)
        self.memory[:, 2] += 1
        rewards = self.memory[:, 2].double() * 10
        ended = actions[:, 0] >= 1
        late = self.memory[:, 2] >= self.memory[:, 0] + 2
        infos: dict[str, Any] = {"time_outs": late & ~ended}
        final = self._obs(self.memory.clone())
        if self.finals == "observations":
            infos["observations"] = {"final": final}
        elif self.finals:
            infos[self.finals] = final
        done = ended | late
        self.memory[done, 1] += 1
        self.memory[done, 2] = 0
        obs = self._obs(self.memory)
        if self.form == "five":
            return obs, rewards, ended, late & ~ended, infos
        return obs, rewards, done.long(), infos

    def close(self) -> None:
        self.closed += 1


def actions(*rows: float) -> torch.Tensor:
    return torch.tensor(rows)[:, None]


@pytest.mark.parametrize("form", ["five", "four"])
@pytest.mark.parametrize("finals", ["final_obs", "final_observation", "observations"])
def test_both_forms_of_step_tell_ends_from_cuts_and_give_final_observations(form: str, finals: str) -> None:
    """LB6: a time-out is a truncation with the state it truly led to, not a termination."""
    env = TensorEnv(Simulator(form, finals))
    step = env.reset()
    assert step.episode_starts.all()
    assert step.obs.tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
    step = env.step(actions(0, 0, 0))
    assert step.final_rows is None
    assert step.rewards.dtype == torch.float32
    step = env.step(actions(0, 5, 0))
    assert step.terminated.tolist() == [False, True, False]
    assert step.truncated.tolist() == [True, False, False]
    assert step.episode_starts.tolist() == [True, True, False]
    assert step.final_rows.tolist() == [0, 1]
    assert step.final_obs.tolist() == [[0, 0, 2], [1, 0, 2]]
    assert step.obs.tolist() == [[0, 1, 0], [1, 1, 0], [2, 0, 2]]
    final_obs = step.final_obs
    env.step(actions(0, 0, 0))
    assert final_obs.tolist() == [[0, 0, 2], [1, 0, 2]], "final observations must stay"


def test_dicts_of_observations_keep_their_keys() -> None:
    env = TensorEnv(Simulator(nested=True))
    assert isinstance(env.observation_space, spaces.Dict)
    assert env.observation_space["critic"].shape == (2,)
    env.reset()
    env.step(actions(0, 0, 0))
    step = env.step(actions(0, 0, 0))
    assert step.obs["critic"].tolist() == [[1, 0], [0, 2], [0, 2]]
    assert step.final_obs["critic"].tolist() == [[0, 2]]


def test_a_cut_without_its_final_observation_is_an_error_with_a_way_out() -> None:
    env = TensorEnv(Simulator("four", ""))
    env.reset()
    for _ in range(2):
        env.step(actions(1, 0, 0))
    with pytest.raises(EnvError, match=r"Rows \[1\] ran out of time.*final_obs.*missing_final_obs='previous'"):
        env.step(actions(1, 0, 0))


def test_the_observation_before_may_stand_in() -> None:
    env = TensorEnv(Simulator("four", ""), missing_final_obs="previous")
    env.reset()
    env.step(actions(0, 0, 0))
    step = env.step(actions(0, 0, 0))
    assert step.final_rows.tolist() == [0]
    assert step.final_obs.tolist() == [[0, 0, 1]]


def test_ends_need_no_final_observation() -> None:
    env = TensorEnv(Simulator("four", ""))
    env.reset()
    step = env.step(actions(1, 1, 0))
    assert step.terminated.tolist() == [True, True, False]
    assert step.final_obs.shape == (2, 3)


def test_dones_without_time_outs_are_ends() -> None:
    class Endless(Simulator):
        def step(self, actions: torch.Tensor) -> Any:
            obs, rewards, dones, _ = super().step(actions)
            return obs, rewards, dones, {}

    env = TensorEnv(Endless("four"))
    env.reset()
    env.step(actions(0, 0, 0))
    step = env.step(actions(0, 0, 0))
    assert (step.terminated.tolist(), step.truncated.any()) == ([True, False, False], False)


def test_the_simulator_cannot_change_the_actions_it_is_given() -> None:
    env = TensorEnv(Simulator())
    env.reset()
    given = actions(0.0, 5.0, -7.0)
    env.step(given)
    assert given[:, 0].tolist() == [0.0, 5.0, -7.0]


def test_what_the_simulator_makes_while_others_infer_can_still_be_changed_in_place_later() -> None:
    class Renewing(Simulator):
        def step(self, actions: torch.Tensor) -> Any:
            self.memory = self.memory + 0
            return super().step(actions)

    env = TensorEnv(Renewing())
    with torch.inference_mode():
        env.reset()
        env.step(actions(0, 0, 0))
    env.reset()
    assert env.step(actions(0, 0, 0)).obs[:, 2].tolist() == [1, 1, 1]


def test_spaces_and_rows_come_from_the_simulator_or_the_caller() -> None:
    env = TensorEnv(Simulator())
    assert env.num_rows == 3
    assert env.observation_space == spaces.Box(-np.inf, np.inf, (3,), np.float32)
    assert env.action_space == spaces.Box(-np.inf, np.inf, (1,), np.float32)
    own = TensorEnv(Simulator(), action_space=spaces.Discrete(4), observation_space=spaces.Box(0, 1, (3,)), num_rows=3)
    assert own.action_space == spaces.Discrete(4)
    simulator = Simulator()
    simulator.single_action_space = spaces.Box(-1, 1, (1,))
    simulator.single_observation_space = spaces.Box(-5, 5, (3,))
    env = TensorEnv(simulator)
    assert (env.action_space, env.observation_space) == (spaces.Box(-1, 1, (1,)), spaces.Box(-5, 5, (3,)))


def test_seeds_reach_the_simulator_and_closing_twice_is_harmless() -> None:
    simulator = Simulator()
    env = TensorEnv(simulator, seed=3)
    env.reset()
    assert simulator.seed == 3
    env.reset()
    assert simulator.seed is None
    env.reset(4)
    assert simulator.seed == 4
    env.close()
    env.close()
    assert simulator.closed == 1


def test_masks_come_from_infos() -> None:
    class Masking(Simulator):
        num_actions = None
        single_action_space = spaces.Discrete(2)

        def reset(self, seed: int | None = None) -> Any:
            return self.memory, {"action_mask": torch.tensor([[1, 0]] * 3)}

    assert TensorEnv(Masking()).reset().action_masks.tolist() == [[True, False]] * 3


class Broken(Simulator):
    def __init__(self, **overrides: Any) -> None:
        super().__init__()
        self.overrides = overrides

    def reset(self, seed: int | None = None) -> Any:
        return self.overrides.get("reset", super().reset(seed))

    def step(self, actions: torch.Tensor) -> Any:
        result = super().step(actions)
        if "step" in self.overrides:
            return self.overrides["step"]
        return tuple(self.overrides.get(str(position), part) for position, part in enumerate(result))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"reset": np.zeros((3, 3))}, "reset returned obs as a ndarray.*as_env"),
        ({"reset": torch.zeros(2, 3)}, r"tensor of shape \[2, 3\].*\[3, ...\]"),
        ({"step": (torch.zeros(3, 3),) * 3}, "a tuple of 3.*infos"),
        ({"step": None}, "step returned NoneType"),
        ({"1": torch.zeros(3, 1)}, r"rewards as a tensor of shape \[3, 1\].*\[3\]"),
        ({"1": None}, "rewards as a NoneType"),
        ({"2": torch.zeros(3, 4)}, r"terminated or dones as a tensor of shape \[3, 4\]"),
        ({"3": np.zeros(3)}, "truncated as a ndarray"),
    ],
)
def test_broken_simulators_are_one_clear_error(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        _run_one_step(overrides)


def _run_one_step(overrides: dict[str, Any]) -> None:
    env = TensorEnv(Broken(**overrides))
    env.reset()
    env.step(actions(0, 0, 0))


def test_what_cannot_be_counted_or_acted_on_is_refused() -> None:
    with pytest.raises(EnvError, match="no num_rows or num_envs"):
        TensorEnv(gym.make("CartPole-v1"))
    simulator = Simulator()
    simulator.num_actions = None
    with pytest.raises(EnvError, match=r"neither single_action_space.*Pass action_space="):
        TensorEnv(simulator)
    with pytest.raises(EnvError, match="missing_final_obs='zero'"):
        TensorEnv(Simulator(), missing_final_obs="zero")
