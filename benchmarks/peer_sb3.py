"""Stable-Baselines3's PPO and sb3-contrib's RecurrentPPO on the workloads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from meter import Meter
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnv
from workloads import (
    CLIP,
    GAE_LAMBDA,
    GAMMA,
    MAX_GRADIENT_NORM,
    VALUE_WEIGHT,
    Workload,
    make_gym_env,
    make_gym_vector_env,
)

ACTIVATIONS = {"tanh": torch.nn.Tanh, "elu": torch.nn.ELU}


def train(name: str, workload: Workload, meter: Meter, seed: int) -> None:
    """Train until the meter has enough."""
    torch.set_num_threads(workload.threads)
    model = algorithm(name, workload)(
        env=make_env(workload),
        n_steps=workload.steps,
        n_epochs=workload.epochs,
        batch_size=workload.minibatch,
        learning_rate=workload.lr,
        clip_range=CLIP,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        ent_coef=workload.entropy,
        vf_coef=VALUE_WEIGHT,
        max_grad_norm=MAX_GRADIENT_NORM,
        seed=seed,
        device="cpu",
    )
    model.learn(10**9, callback=CountUpdates(meter))


def algorithm(name: str, workload: Workload) -> Any:
    """Return the class to build, with the network already chosen."""
    layers = list(workload.hidden)
    net = {"net_arch": {"pi": layers, "vf": layers}, "activation_fn": ACTIVATIONS[workload.activation]}
    if workload.memory == "lstm":
        from sb3_contrib import RecurrentPPO

        memory: dict[str, Any] = {"lstm_hidden_size": workload.memory_size}
        if name == "sb3-contrib-shared":
            memory |= {"shared_lstm": True, "enable_critic_lstm": False}
        return lambda **settings: RecurrentPPO("MlpLstmPolicy", policy_kwargs={**net, **memory}, **settings)
    if workload.env == "pong":
        return lambda **settings: PPO("CnnPolicy", policy_kwargs={"net_arch": []}, **settings)
    return lambda **settings: PPO("MlpPolicy", policy_kwargs=net, **settings)


class CountUpdates(BaseCallback):
    """Tells the meter whenever a rollout begins, which is when the update before it is done."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter
        self._rollouts = 0
        self._go_on = True

    def _on_rollout_start(self) -> None:
        self._rollouts += 1
        if self._rollouts > 1:
            self._go_on = self._meter.update_done()

    def _on_step(self) -> bool:
        return self._go_on


def make_env(workload: Workload) -> VecEnv:
    """Vectorise in this process, without `Monitor`: nothing but what training needs."""
    if workload.env in ("cartpole-vector", "pong"):
        return VectorEnvAdapter(make_gym_vector_env(workload))
    return DummyVecEnv([lambda: make_gym_env(workload.env)] * workload.rows)


class VectorEnvAdapter(VecEnv):
    """A Gymnasium vector env in the shape that Stable-Baselines3 takes."""

    def __init__(self, envs: Any) -> None:
        self._envs = envs
        self._actions = np.zeros(envs.num_envs, dtype=np.int64)
        self._no_infos: list[dict[str, Any]] = [{} for _ in range(envs.num_envs)]
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> Any:
        """Start every env anew."""
        return self._envs.reset()[0]

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Step all envs; infos are built only where an episode ended."""
        obs, rewards, terminated, truncated, infos = self._envs.step(self._actions)
        dones = terminated | truncated
        row_infos = self._no_infos
        if dones.any():
            final_obs = infos.get("final_obs", obs)
            row_infos = [{} for _ in range(self.num_envs)]
            for row in np.flatnonzero(dones):
                cut = bool(truncated[row] and not terminated[row])
                row_infos[row] = {"terminal_observation": final_obs[row], "TimeLimit.truncated": cut}
        return obs, rewards, dones, row_infos

    def close(self) -> None:
        """Free the envs."""
        self._envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Say that there is nothing to render; no other attribute is asked for."""
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse: training never asks."""
        raise NotImplementedError(attr_name)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Refuse: training never asks."""
        raise NotImplementedError(method_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Say that no env is wrapped."""
        return [False] * self.num_envs
