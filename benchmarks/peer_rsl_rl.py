"""rsl_rl's OnPolicyRunner and PPO on the workloads."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np
import torch
from meter import EnoughMeasured, Meter
from rsl_rl.env import VecEnv
from rsl_rl.modules.distribution import Distribution
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict
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


def train(_name: str, workload: Workload, meter: Meter, seed: int) -> None:
    """Train until the meter has enough."""
    torch.set_num_threads(workload.threads)
    torch.set_float32_matmul_precision(workload.matmul)
    torch.manual_seed(seed)
    env = LocomotionEnv(workload) if workload.env == "locomotion" else GymEnv(workload, seed)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        runner = OnPolicyRunner(env, runner_config(workload, env), log_dir=None, device="cpu")
        log_quietly = runner.logger.log

        def log_and_count(**metrics: Any) -> None:
            log_quietly(**metrics)
            if not meter.update_done():
                raise EnoughMeasured

        runner.logger.log = log_and_count
        with contextlib.suppress(EnoughMeasured):
            runner.learn(10**9)


def runner_config(workload: Workload, env: VecEnv) -> dict[str, Any]:
    """Write the workload in rsl_rl's words; what the others do not do is switched off."""
    net: dict[str, Any] = {"class_name": "MLPModel", "hidden_dims": list(workload.hidden)}
    net["activation"] = workload.activation
    if workload.memory != "none":
        net |= {"class_name": "RNNModel", "rnn_type": workload.memory, "rnn_hidden_dim": workload.memory_size}
    return {
        "num_steps_per_env": workload.steps,
        "save_interval": 10**9,
        "check_for_nan": False,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": {**net, "distribution_cfg": env.cfg["distribution"]},
        "critic": net,
        "algorithm": {
            "class_name": "PPO",
            "num_learning_epochs": workload.epochs,
            "num_mini_batches": workload.minibatches,
            "clip_param": CLIP,
            "gamma": GAMMA,
            "lam": GAE_LAMBDA,
            "value_loss_coef": VALUE_WEIGHT,
            "entropy_coef": workload.entropy,
            "learning_rate": workload.lr,
            "max_grad_norm": MAX_GRADIENT_NORM,
            "use_clipped_value_loss": False,
            "schedule": "fixed",
            "normalize_advantage_per_mini_batch": True,
        },
    }


class Categorical(Distribution):
    """Discrete actions, which rsl_rl itself does not offer; stored as one float per row."""

    def __init__(self, output_dim: int, num_choices: int) -> None:
        super().__init__(output_dim)
        self._num_choices = num_choices
        self._distribution = torch.distributions.Categorical(torch.ones(num_choices))
        self._no_deviation = torch.zeros(1)

    def update(self, mlp_output: torch.Tensor) -> None:
        """Take the logits."""
        self._distribution = torch.distributions.Categorical(logits=mlp_output, validate_args=False)

    def sample(self) -> torch.Tensor:
        """Draw one action per row."""
        return self._distribution.sample().unsqueeze(-1).float()

    def deterministic_output(self, mlp_output: torch.Tensor) -> torch.Tensor:
        """Return the most likely action per row."""
        return mlp_output.argmax(-1, keepdim=True).float()

    def log_prob(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return one log-probability per row."""
        return self._distribution.log_prob(outputs[..., 0])

    @property
    def input_dim(self) -> int:
        """Width of the layer before."""
        return self._num_choices

    @property
    def mean(self) -> torch.Tensor:
        """Return the probabilities."""
        return self._distribution.probs

    @property
    def std(self) -> torch.Tensor:
        """Return zeros: only printed."""
        return self._no_deviation

    @property
    def entropy(self) -> torch.Tensor:
        """Return one entropy per row."""
        return self._distribution.entropy()

    @property
    def params(self) -> tuple[torch.Tensor, ...]:
        """Return what describes the distribution."""
        return (self._distribution.logits,)


class GymEnv(VecEnv):
    """Gymnasium envs in the shape that rsl_rl takes, stepped by Gymnasium's own vector env.

    One copy per step is needed: rsl_rl stores an observation only after the step that follows it.
    """

    def __init__(self, workload: Workload, seed: int) -> None:
        from gymnasium import spaces
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        if workload.env == "cartpole-vector":
            self._envs: Any = make_gym_vector_env(workload)
        else:
            makers = [lambda: make_gym_env(workload.env)] * workload.rows
            self._envs = SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        self.num_envs = workload.rows
        space = self._envs.single_action_space
        self._discrete = isinstance(space, spaces.Discrete)
        if isinstance(space, spaces.Discrete):
            self.num_actions = 1
            distribution = {"class_name": Categorical, "num_choices": int(space.n)}
        else:
            self.num_actions = int(space.shape[0])
            self._low, self._high = space.low, space.high
            distribution = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "log"}
        self.max_episode_length = 1000
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self.device = "cpu"
        self.cfg = {"distribution": distribution}
        self._observations = self._wrap(self._envs.reset(seed=seed)[0])

    def get_observations(self) -> TensorDict:
        """Return what was seen last."""
        return self._observations

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Step all envs once."""
        chosen = actions.numpy()
        chosen = chosen[:, 0].astype(np.int64) if self._discrete else np.clip(chosen, self._low, self._high)
        obs, rewards, terminated, truncated, _ = self._envs.step(chosen)
        self._observations = self._wrap(obs)
        dones = torch.from_numpy(terminated | truncated)
        extras = {"time_outs": torch.from_numpy(truncated & ~terminated)}
        return self._observations, torch.from_numpy(np.asarray(rewards, dtype=np.float32)), dones, extras

    def _wrap(self, obs: np.ndarray) -> TensorDict:
        return TensorDict({"policy": torch.tensor(obs, dtype=torch.float32)}, batch_size=[self.num_envs])


class LocomotionEnv(VecEnv):
    """The synthetic simulator in the shape that rsl_rl takes."""

    def __init__(self, workload: Workload) -> None:
        from synthetic import SyntheticLocomotion

        self._simulator = SyntheticLocomotion(workload.rows)
        self.num_envs = workload.rows
        self.num_actions = self._simulator.num_actions
        self.max_episode_length = self._simulator.max_episode_length
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.long)
        self.device = "cpu"
        self.cfg = {
            "distribution": {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "log"},
        }
        self._observations = self._wrap(self._simulator.reset())

    def get_observations(self) -> TensorDict:
        """Return what was seen last."""
        return self._observations

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Step all rows once."""
        obs, rewards, terminated, truncated, _ = self._simulator.step(actions)
        self._observations = self._wrap(obs)
        return self._observations, rewards, terminated | truncated, {"time_outs": truncated}

    def _wrap(self, obs: torch.Tensor) -> TensorDict:
        return TensorDict({"policy": obs}, batch_size=[self.num_envs])
