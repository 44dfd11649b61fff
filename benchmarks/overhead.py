"""What does it cost that collecting and learning are apart? The trainer against one function made of the same parts.

Both start from the same seed and must end with the same weights, bit for bit. They are timed in turns.

    python benchmarks/overhead.py                     # 25 rounds; exit code 1 where a target is missed
    python benchmarks/overhead.py --rounds 3 --updates 5
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import deque
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import numpy as np
import torch
from torch import Tensor
from workloads import WORKLOADS, Workload, make_gym_env

from twostep import ActorCritic, PPOConfig, PPOTrainer, gae, make_env, make_policy
from twostep.advantages import explained_variance
from twostep.collect.acting import Actor
from twostep.learn.losses import normalized
from twostep.learn.ppo import PPOOptimizer
from twostep.rollout import RolloutBuffer
from twostep.runtime import keep_freed_memory
from twostep.sequences import Sequences
from twostep.tree import tree_leaves, tree_map

TARGET = 1.02
RECENT_EPISODES = 100
WARM_UP = 3
"""Updates before the clock starts: the first ones fill caches."""


def main(argv: list[str] | None = None) -> int:
    """Compare on the chosen workloads and print a verdict for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="A8,C-GRU-16", help="workloads of workloads.py stepped by make_env")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--updates", type=int, default=20, help="updates per round and side")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    verdicts = [compare(name, options.rounds, options.updates) for name in options.only.split(",")]
    return 0 if all(verdicts) else 1


def compare(name: str, rounds: int, updates: int) -> bool:
    """Time both sides in turns; return whether weights and overhead are as they must be."""
    workload = WORKLOADS[name]
    for side in (train_apart, train_in_one_loop):
        side(workload, 1, seed=0)
    ratios: list[float] = []
    identical = True
    for number in range(rounds):
        sides = (train_apart, train_in_one_loop)
        order = sides if number % 2 == 0 else sides[::-1]
        took: dict[Any, float] = {}
        weights: dict[Any, Tensor] = {}
        for side in order:
            took[side], weights[side] = side(workload, updates, seed=number)
        ratios.append(took[train_apart] / took[train_in_one_loop])
        identical &= torch.equal(weights[train_apart], weights[train_in_one_loop])
    overhead = median(ratios)
    met = "met" if overhead <= TARGET else "MISSED"
    print(
        f"{name}: {updates} updates, {rounds} rounds: apart / one loop = {overhead:.4f} "
        f"({min(ratios):.3f} to {max(ratios):.3f}), target {TARGET:g}: {met}; "
        f"weights bit-identical: {'met' if identical else 'MISSED'}",
        flush=True,
    )
    return overhead <= TARGET and identical


def parts(workload: Workload, seed: int) -> tuple[Any, ActorCritic, PPOConfig]:
    """Build what both sides take."""
    from peer_twostep import agent_config, ppo_config

    env = make_env(lambda: make_gym_env(workload.env), workload.rows, seed)
    return env, make_policy(env, agent_config(workload), seed=seed), ppo_config(workload)


def weights_of(policy: ActorCritic) -> Tensor:
    """Return all parameters in one row."""
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])


def train_apart(workload: Workload, updates: int, seed: int) -> tuple[float, Tensor]:
    """Train by `PPOTrainer.train`: collect, then learn."""
    env, policy, config = parts(workload, seed)
    trainer = PPOTrainer(policy, env, config, device="cpu", seed=seed)
    trainer.train(WARM_UP * workload.batch)
    started = time.perf_counter()
    trainer.train((WARM_UP + updates) * workload.batch)
    return time.perf_counter() - started, weights_of(policy)


def train_in_one_loop(  # noqa: C901, PLR0915 - one function is the point
    workload: Workload, updates: int, seed: int
) -> tuple[float, Tensor]:
    """Train by one function in which both phases are one, and nothing is handed over."""
    env, policy, config = parts(workload, seed)
    env_seed, action_seed, order_seed = (
        int(part.generate_state(1)[0]) for part in np.random.SeedSequence(seed).spawn(3)
    )
    learner = PPOOptimizer(policy, device="cpu", config=config, seed=order_seed)
    actor = Actor(policy, torch.Generator().manual_seed(action_seed))
    keep_freed_memory()
    step, state, rows = env.reset(env_seed), policy.initial_state(env.num_rows), env.num_rows
    episode_returns, episode_lengths = np.zeros(rows), np.zeros(rows, dtype=np.int64)
    recent_returns: deque[float] = deque(maxlen=RECENT_EPISODES)
    recent_lengths: deque[int] = deque(maxlen=RECENT_EPISODES)
    history: list[dict[str, float]] = []
    length = min(config.bptt_length, config.rollout_steps) if tree_leaves(state) else 1
    started = time.perf_counter()
    for update in range(WARM_UP + updates):
        if update == WARM_UP:
            started = time.perf_counter()
        actor.begin()
        outputs: list[tuple[Tensor, Tensor, Tensor]] = []
        cuts: list[tuple[int, Any, Any, Any]] = []
        with torch.inference_mode():
            example = policy(torch.as_tensor(step.obs)[None], state, torch.as_tensor(step.episode_starts)[None])
        actions = example.distribution.mode()[0]
        rollout = RolloutBuffer.create(
            config.rollout_steps, rows, torch.as_tensor(step.obs), actions, state=state, sequence_length=length
        )
        obs, starts, rewards = rollout.obs.numpy(), rollout.episode_starts.numpy(), rollout.rewards.numpy()
        terminated, truncated = rollout.terminated.numpy(), rollout.truncated.numpy()
        with torch.inference_mode():
            for t in range(config.rollout_steps):
                obs[t], starts[t] = step.obs, step.episode_starts
                if t % length == 0:
                    tree_map(lambda kept, now, at=t // length: kept[at].copy_(now), rollout.states, state)
                actions, outward, logprobs, values, state = actor(
                    rollout.obs[t : t + 1], state, rollout.episode_starts[t : t + 1], {}
                )
                outputs.append((actions, logprobs, values))
                step = env.step(outward.numpy())
                rewards[t], terminated[t], truncated[t] = step.rewards, step.terminated, step.truncated
                episode_returns += step.rewards
                episode_lengths += 1
                if step.final_rows is not None:
                    recent_returns.extend(episode_returns[step.final_rows].tolist())
                    recent_lengths.extend(episode_lengths[step.final_rows].tolist())
                    episode_returns[step.final_rows], episode_lengths[step.final_rows] = 0.0, 0
                    only_cut = step.truncated[step.final_rows] & ~step.terminated[step.final_rows]
                    if only_cut.any():
                        at = step.final_rows[only_cut]
                        kept = tree_map(lambda leaf, at=at: leaf[torch.as_tensor(at)], state)
                        cuts.append((t, at, step.final_obs[only_cut], kept))
            for name, column in zip(("actions", "logprobs", "values"), zip(*outputs, strict=True), strict=True):
                getattr(rollout, name).copy_(torch.cat(column))
            last_obs = torch.cat([torch.tensor(part) for part in (step.obs, *(cut[2] for cut in cuts))])[None]
            last_starts = torch.zeros(last_obs.shape[:2], dtype=torch.bool)
            last_starts[0, :rows] = torch.as_tensor(step.episode_starts)
            memories = [state, *(cut[3] for cut in cuts)]
            memory = tree_map(lambda *leaves: torch.cat(leaves), memories[0], *memories[1:])
            last_values = policy(last_obs.to(rollout.obs.dtype), memory, last_starts).values[0]
            rollout.next_values[:-1] = rollout.values[1:]
            rollout.next_values[-1] = last_values[:rows]
            for place, (t, row) in enumerate((t, row) for t, at, _, _ in cuts for row in at):
                rollout.next_values[t, row] = last_values[rows + place]
        advantages, returns = gae(
            rollout.rewards,
            rollout.values,
            rollout.next_values,
            rollout.terminated,
            rollout.truncated,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
            valid=rollout.valid,
        )
        explained = explained_variance(rollout.values, returns, rollout.valid)
        sequences = Sequences(rollout, advantages, returns)
        count = sequences.minibatch_count(config.minibatch_size, config.num_minibatches)
        measured: list[dict[str, Tensor]] = []
        for _ in range(config.update_epochs):
            for minibatch in sequences.epoch(count, learner.generator):
                minibatch.advantages = normalized(minibatch.advantages, minibatch.valid)
                measured.append(learner.gradient(minibatch))
                learner.optimizer.advance()
        table = torch.stack([torch.stack(list(metrics.values())) for metrics in measured]).double().mean(0).tolist()
        metrics = dict(zip(measured[0], table, strict=True)) | {"explained_variance": float(explained)}
        if recent_returns:
            metrics["mean_reward"] = sum(recent_returns) / len(recent_returns)
            metrics["mean_length"] = sum(recent_lengths) / len(recent_lengths)
        history.append(metrics | {"timesteps": float((update + 1) * workload.batch)})
    return time.perf_counter() - started, weights_of(policy)


if __name__ == "__main__":
    sys.exit(main())
