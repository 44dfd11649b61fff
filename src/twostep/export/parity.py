"""Whether a file does what the policy does: both see the same random sequences, and what they say is compared."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from twostep.export.deployed import Deployed, Port
from twostep.policies.actor_critic import ActorCritic
from twostep.policies.boxes import AS_GOOD_AS_INFINITE
from twostep.policies.encoders import NORMALIZED_RANGE, space_tree
from twostep.tree import Tree, tree_items, tree_leaves, tree_map

TOLERANCE = 1e-4
"""How far numbers may lie apart, as a part of their size where that is above 1."""
STEPS, RESETS, ALLOWED = 20, 0.1, 0.7
"""Length of a sequence, and how often memory is forgotten and a choice allowed in it."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Parity:
    """How far a file is from the policy that it was made of."""

    inputs: int
    """Observations that both were shown, in sequences."""
    difference: float
    """The largest one between two numbers that should be equal."""
    excess: float
    """The largest difference, as a part of what is tolerated."""
    worst: str
    """The output that it was seen in."""

    @property
    def holds(self) -> bool:
        """Whether every number is near enough; one that is not finite never is."""
        return self.excess <= 1.0

    def __str__(self) -> str:
        return f"{self.inputs:,} random inputs, largest difference {self.difference:.2g} (in {self.worst})"


def compare(policy: ActorCritic, deployed: Deployed, session: Any, *, inputs: int = 1_000, seed: int = 0) -> Parity:
    """Show a policy and an open file the same random sequences, with memory forgotten at random; compare the outputs.

    A choice may differ only between options that are equally likely: what counts is how much less likely, as a
    logarithm, the policy finds the file's choice than its own.
    """
    rows = max(1, -(-inputs // STEPS))
    steps = min(STEPS, inputs)
    random = np.random.default_rng(seed)
    obs = _observations(policy, steps, rows, random)
    starts = torch.from_numpy(random.random((steps, rows)) < RESETS)
    conditions = _conditions(policy, deployed, steps, rows, random)
    with torch.inference_mode():
        output = policy(obs, policy.initial_state(rows), starts, **conditions)
        chosen = output.distribution.mode()
        answers = _answers(deployed, session, (obs, starts, conditions))
        alone = _answers(deployed, session, tree_map(lambda leaf: leaf[:, :1], (obs, starts, conditions)))
        shortfall = _shortfall(policy, output.distribution, chosen, answers)
    wanted = [*tree_leaves(policy.to_env(chosen)), *(leaf[:, :, :1].squeeze(2) for leaf in tree_leaves(output.state))]
    found = [*answers.actions, *answers.memory]
    first = [*alone.actions, *alone.memory]
    measured = [(shortfall, TOLERANCE, "choices")]
    for port, want, have, have_first in zip(deployed.outputs, wanted, found, first, strict=True):
        if want.is_floating_point():
            single = have[:, :1] if port in deployed.outputs[: len(answers.actions)] else have[:1]
            measured += [_apart(port, want, have), _apart(port, single, have_first)]
    difference, allowed, worst = max(measured, key=lambda one: _share(one[0], one[1]))
    return Parity(steps * rows, difference, _share(difference, allowed), worst)


@dataclass(frozen=True)
class _Answers:
    """What a file said: actions `[T, B, ...]`, and memory after the last step `[B, ...]`."""

    actions: list[Tensor]
    memory: list[Tensor]


def _answers(deployed: Deployed, session: Any, given: tuple[Tree, Tensor, dict[str, Any]]) -> _Answers:
    """Step the file through the sequences; it keeps its own memory."""
    steps, rows = given[1].shape
    count = sum(not port.name.endswith("_out") for port in deployed.outputs)
    memory = [port.example(rows) for port in deployed.outputs[count:]]
    said: list[list[Tensor]] = []
    for t in range(steps):
        obs, starts, conditions = tree_map(lambda leaf, at=t: leaf[at], given)
        inputs = deployed.flat(obs, tuple(memory), starts, conditions)
        outputs = session.run(None, {name: leaf.contiguous().numpy() for name, leaf in inputs.items()})
        tensors = [torch.from_numpy(np.asarray(leaf)) for leaf in outputs]
        said.append(tensors[:count])
        memory = tensors[count:]
    return _Answers([torch.stack(leaves) for leaves in zip(*said, strict=True)], memory)


def _shortfall(policy: ActorCritic, distribution: Any, chosen: Tree, answers: _Answers) -> float:
    """Return by how much the policy's own choice is likelier than the file's, at most, as a logarithm."""
    zero = policy.to_env(tree_map(torch.zeros_like, chosen))
    theirs = iter(answers.actions)

    def taken(mine: Tensor, none: Tensor) -> Tensor:
        action = next(theirs)
        return mine if mine.is_floating_point() else (action - none).reshape(mine.shape)

    other = tree_map(taken, chosen, zero)
    if all(bool((a == b).all()) for a, b in zip(tree_leaves(chosen), tree_leaves(other), strict=True)):
        return 0.0
    return float((distribution.log_prob(chosen) - distribution.log_prob(other)).max())


def _apart(port: Port, want: Tensor, have: Tensor) -> tuple[float, float, str]:
    """Return the largest difference by what is tolerated there, that tolerance, and the output's name."""
    apart = (want - have).abs().nan_to_num(nan=np.inf).flatten()
    allowed = TOLERANCE * want.abs().clamp_min(1.0).flatten()
    at = int((apart / allowed).argmax())
    return float(apart[at]), float(allowed[at]), port.name


def _share(difference: float, allowed: float) -> float:
    return difference / allowed


def _observations(policy: ActorCritic, steps: int, rows: int, random: np.random.Generator) -> Tree:
    """Draw observations like those the policy was trained on, as far as its statistics tell."""
    vectors = policy.encoder.vectors()
    tree = space_tree(policy.observation_space)
    paths = iter([path for path, _ in tree_items(tree)])

    def draw(space: spaces.Space[Any]) -> Tensor:
        path = next(paths)
        if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            drawn = _members(space, steps * rows, random)
        elif path in vectors and vectors[path].normalized:
            vector = vectors[path]
            spread = random.normal(0.0, NORMALIZED_RANGE / 4, (steps * rows, vector.out_features))
            drawn = vector.mean.numpy() + spread / vector.inverse_std.numpy()
        else:
            drawn = _points(space, steps * rows, random)
        shaped = torch.from_numpy(np.asarray(drawn)).reshape(steps, rows, *(space.shape or ()))
        return shaped.float() if shaped.is_floating_point() else shaped

    return tree_map(draw, tree)


def _members(space: spaces.Space[Any], count: int, random: np.random.Generator) -> Array:
    drawing = copy.deepcopy(space)
    drawing.seed(int(random.integers(2**31)))
    return np.stack([np.asarray(drawing.sample()) for _ in range(count)])


def _points(space: spaces.Box, count: int, random: np.random.Generator) -> Array:
    """Draw from all of a box where it has an end, and near 0 where it has none."""
    low, high = (np.asarray(side, dtype=np.float64) for side in (space.low, space.high))
    ended = (np.abs(low) < AS_GOOD_AS_INFINITE) & (np.abs(high) < AS_GOOD_AS_INFINITE)
    inside = np.where(ended, low, 0.0) + random.random((count, *space.shape)) * np.where(ended, high - low, 0.0)
    return np.where(ended, inside, np.clip(random.normal(size=(count, *space.shape)), low, high))


def _conditions(
    policy: ActorCritic, deployed: Deployed, steps: int, rows: int, random: np.random.Generator
) -> dict[str, Any]:
    conditions: dict[str, Any] = {}
    if policy.config.context_size:
        drawn = random.normal(size=(steps, rows, policy.config.context_size))
        conditions["context"] = torch.from_numpy(drawn).float()
    if deployed.masks is not None:
        widths = {port.name: port.shape[0] for port in deployed.inputs if port.dtype is torch.bool and port.shape}

        def allowed(name: str) -> Tensor:
            mask = random.random((steps, rows, widths[name])) < ALLOWED
            return torch.from_numpy(mask)

        conditions["action_masks"] = tree_map(allowed, deployed.masks)
    return conditions
