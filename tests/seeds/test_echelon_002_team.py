"""Seed 002, the rest: vector environment, evaluation, model and the script's loop; only the import root changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from twostep import ActorCriticLSTM, EvalStats, PPOConfig, PPOTrainer, RolloutBuffer, VectorEnv, evaluate_vs_heuristic
from twostep.worlds.skirmish import EnvConfig

device = torch.device("cpu")
cfg = EnvConfig(team=("light", "heavy"), max_seconds=4, control="continuous", seed=5)
blue_ids = ["blue_0", "blue_1"]


def test_the_import_of_the_script() -> None:
    """E3: one line brings all of it."""
    names: dict[str, Any] = {}
    exec("from twostep import PPOTrainer, PPOConfig, VectorEnv, evaluate_vs_heuristic", names)
    assert all(callable(names[name]) for name in ("PPOTrainer", "PPOConfig", "VectorEnv", "evaluate_vs_heuristic"))


def test_the_docstring_of_the_vector_environment() -> None:
    """E18, E20: lists of dicts in, five lists of dicts out; seeds decide, indices choose."""
    vec_env = VectorEnv(num_envs=4, env_cfg=cfg)
    obs_list, infos = vec_env.reset(seeds=[0, 1, 2, 3])
    assert len(obs_list) == len(infos) == 4
    actions_list = [{agent: vec_env.action_space.sample() for agent in obs} for obs in obs_list]
    obs_list, rewards, terms, truncs, infos = vec_env.step(actions_list)
    for part in (obs_list, rewards, terms, truncs, infos):
        assert [set(of_env) for of_env in part] == [set(blue_ids)] * 4
    (again,), _ = vec_env.reset(seeds=[1], indices=[2])
    alone, _ = vec_env.reset(seeds=[0, 1, 2, 3])
    assert again["blue_0"] == pytest.approx(alone[1]["blue_0"])
    vec_env.close()
    vec_env.close()


def test_the_model_by_its_sizes() -> None:
    """E30: `ActorCriticLSTM(obs_dim, action_dim).to(device)` and `init_state(num_agents, device)`."""
    model = ActorCriticLSTM(10, 3).to(device)
    state = model.init_state(4, device)
    output = model(torch.zeros(1, 4, 10), state, torch.ones(1, 4, dtype=torch.bool))
    actions = model.to_env(output.distribution.sample()[0])
    assert actions.shape == (4, 3)
    assert bool((actions.abs() <= 1).all())


def test_the_loop_of_the_script() -> None:
    """E10, E11, E13, E25, E31: collect, update, evaluate, in the seed's own lines."""
    ppo_cfg, model_size = PPOConfig(rollout_steps=8, bptt_length=4, update_epochs=1), 16
    with VectorEnv(2, cfg, num_workers=1) as vec_env:
        obs_dim, action_dim = vec_env.observation_space.shape[0], vec_env.action_space.shape[0]
        model = ActorCriticLSTM(obs_dim, action_dim, model_size).to(device)
        trainer = PPOTrainer(model, ppo_cfg, device)

        lstm_state = model.init_state(2 * len(blue_ids), device)

        for _ in range(2):
            buffer, lstm_state = trainer.collect_rollout(vec_env, blue_ids, lstm_state)
            metrics = trainer.update(buffer)
            assert isinstance(buffer, RolloutBuffer)
            assert {"pg_loss", "vf_loss", "entropy", "grad_norm"} <= set(metrics)
            assert metrics["ratio_error"] < 1e-5
        eval_stats, replay = evaluate_vs_heuristic(model, cfg, 2, [0, 1], device, save_replay=True)
    assert isinstance(eval_stats, EvalStats)
    assert replay is not None
    assert replay["seed"] == 0
