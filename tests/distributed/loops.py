"""The trainer and the functional loop, each in several processes: the same seeds, and one of them cut in the middle."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from twostep import (
    AgentConfig,
    PPOConfig,
    PPOTrainer,
    TrainerConfig,
    TrainingCheckpointer,
    TrainingState,
    functional_training_loop,
    make_env,
    make_policy,
)
from twostep.checkpoint import save_state, to_bytes
from twostep.group import Group, joined_group

SETTINGS: dict[str, Any] = {"rollout_steps": 8, "bptt_length": 4, "num_minibatches": 2, "lr_schedule": "linear"}
STEPS = 160


def main(folder: Path) -> None:
    """Train both ways, and let the process that leads write down what came out."""
    with joined_group(patience=60) as group:
        env, policy = parts(group)
        trainer = PPOTrainer(policy, env, PPOConfig(**SETTINGS), device="cpu", seed=3)
        history = trainer.train(STEPS)
        results = {"trainer": learned(group, trainer.policy, trainer.state), "returns": history["mean_reward"]}
        env.close()
        for stopped_after in (STEPS // 2, STEPS):  # the second time it goes on from its checkpoint
            env, policy = parts(group)

            def step(state: TrainingState, *given: Any, last: int = stopped_after) -> dict[str, float]:
                from twostep import default_training_step

                metrics = default_training_step(state, *given)
                state.should_stop = group.rank == 1 and state.agent_steps >= last
                return metrics

            state = functional_training_loop(
                TrainerConfig(total_timesteps=STEPS, checkpoint_every=40),
                PPOConfig(**SETTINGS),
                policy,
                vecenv=env,
                checkpointer=TrainingCheckpointer(folder / "checkpoints", keep_last=100),
                step_fn=step,
                seed=3,
                device="cpu",
            )
            results["functional"] = learned(group, policy, state)
            env.close()
        if group.leads:
            save_state(folder / "loops", results)


def parts(group: Group) -> Any:
    """Make environments, not as many in each process, and a network, not the same in each."""
    env = make_env("CartPole-v1", 2 + group.rank)
    return env, make_policy(env, AgentConfig(hidden_size=8, memory="gru", memory_size=4), seed=group.rank)


def learned(group: Group, policy: Any, state: TrainingState) -> dict[str, Any]:
    """Return weights and counters, and what each process has of them in short."""
    result = {"weights": dict(policy.state_dict()), "counters": state.state_dict()}
    return result | {"digests": group.tell(hashlib.sha256(to_bytes(result)).hexdigest())}
