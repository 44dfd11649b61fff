"""All that the rest of a training depends on, as one state: what was learned, and where collecting stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from twostep.checkpoint import from_bytes, process_generators, restore_process_generators, seed_from, to_bytes
from twostep.collect.collector import RolloutCollector
from twostep.errors import CheckpointError
from twostep.group import Group
from twostep.learn.ppo import PPOOptimizer
from twostep.protocols import Stateful
from twostep.seeds import process_seed

_FIXED = ("optimizer", "weight_decay", "adam_eps")
"""Settings that the optimizer's own state repeats."""

Companions = Mapping[str, Stateful]


def kept(learner: PPOOptimizer, collector: RolloutCollector | None, companions: Companions) -> dict[str, Any]:
    """Return the state of everything that learns, collects or goes along, and of the process's random generators.

    Processes that learn together call it together; it is whole for the one that leads, with the `others` as bytes.
    """
    own = {
        "companions": {name: companion.state_dict() for name, companion in companions.items()},
        "collection": None if collector is None else collector.state_dict(),
        "rng": process_generators(),
    }
    others = learner.group.collect(to_bytes(own) if learner.group.size > 1 else b"")[1:]
    return {
        "policy_state_dict": learner.policy.state_dict(),
        **learner.state_dict(),
        "config": asdict(learner.config),
        **own,
        "others": [torch.frombuffer(bytearray(other), dtype=torch.uint8) for other in others],
    }


def take_up(
    state: Mapping[str, Any],
    learner: PPOOptimizer,
    collector: RolloutCollector | None,
    companions: Companions,
    *,
    same_episodes: bool = True,
) -> None:
    """Let everything go on from where `kept` was called; `RolloutCollector.load_state_dict` says what of episodes.

    Each of several processes takes up its own part. Where there were more or fewer of them, episodes begin anew, from
    seeds that follow from the state.

    Raises:
        CheckpointError: The state is of another network or optimizer, or lacks a companion.
    """
    _take_up_learner(state, learner)
    others = state.get("others", [])
    processes, number = 1 + len(others), learner.group.rank % (1 + len(others))
    state = from_bytes(others[number - 1].numpy().tobytes()) if number else state
    for name, companion in companions.items():
        if name not in state["companions"]:
            raise CheckpointError(
                f"The checkpoint holds no {name!r}, which this trainer has among its companions. Load one that "
                "had it, or take it out of trainer.companions."
            )
        companion.load_state_dict(state["companions"][name])
    if collector is not None and state["collection"] is not None:
        if processes == learner.group.size:
            collector.load_state_dict(state["collection"], same_episodes=same_episodes)
        else:
            collector.load_state_dict(_elsewhere(state["collection"], learner.group), same_episodes=False)
            collector.restart_reason = f"{processes} processes learned together, and now {learner.group.size}"
    restore_process_generators(state["rng"])


def _elsewhere(collection: Mapping[str, Any], group: Group) -> dict[str, Any]:
    """Return random numbers for a process of this rank that follow from those of processes that were not as many."""
    seed = process_seed(seed_from(collection["generator"]), group.rank)
    return {**collection, "generator": torch.Generator().manual_seed(seed).get_state(), "running": None}


def _take_up_learner(state: Mapping[str, Any], learner: PPOOptimizer) -> None:
    before = state["config"]
    for name in _FIXED:
        if before[name] != getattr(learner.config, name):
            raise CheckpointError(
                f"{name}={getattr(learner.config, name)!r}, but the checkpoint is of a run with {before[name]!r}. "
                f"{name} cannot change in the middle of a run: leave it as it was."
            )
    try:
        learner.policy.load_state_dict(state["policy_state_dict"])
    except RuntimeError as error:
        raise CheckpointError(
            f"The checkpoint is of another network: {' '.join(str(error).split())}. Build the policy as it was."
        ) from error
    learner.policy.version += 1  # data from before are not of the policy as it is now
    learner.load_state_dict(dict(state))
    if any(before[name] != getattr(learner.config, name) for name in ("lr", "desired_kl")):
        learner.restart_schedule()
