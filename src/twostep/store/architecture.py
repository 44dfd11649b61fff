"""From a policy to a description that JSON can hold, and from a description and tensors to the policy.

A description lies in the manifest of a saved state under `policy`; the tensors are the state's `policy_state_dict`.
Policies in a store and checkpoints of training have both, so either becomes a policy in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

import torch
from torch import Tensor, nn

from twostep.errors import CheckpointError, ConfigError, PolicyError
from twostep.policies.actor_critic import ActorCritic
from twostep.policies.adapter_base import Adapter
from twostep.policies.settings import AgentConfig
from twostep.store.spaces import space_from_plain, space_to_plain

DESCRIPTION, TENSORS = "policy", "policy_state_dict"
"""Where manifest and state keep the two."""
OWN = "ActorCritic"
_COMPILED = "_orig_mod"
_MALFORMED = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    *(CheckpointError, ConfigError, PolicyError),
)
"""What a description that we did not write can bring about."""

Description = dict[str, Any]

_FORM: dict[str, tuple[type, ...]] = {
    "architecture": (str,),
    "prefix": (str,),
    "num_params": (int,),
    "version": (int, type(None)),
    "saved_at": (int,),
    "metadata": (dict,),
}
"""What every description has."""


def described(policy: Any, metadata: Mapping[str, Any] | None = None) -> Description:
    """Return what is needed to build a policy anew, and what is said about it, as plain JSON.

    An `ActorCritic` is described whole. Of any other network only the name of its class is known.
    """
    network, prefix = _network(policy)
    description: Description = {
        "architecture": OWN if type(network) is ActorCritic else type(network).__qualname__,
        "prefix": prefix,
        "num_params": sum(parameter.numel() for parameter in network.parameters()),
        "version": getattr(policy, "version", None),
        "saved_at": time.time_ns(),
        "metadata": dict(metadata or {}),
    }
    if type(network) is ActorCritic:
        description |= {
            "config": asdict(network.config),
            "observation_space": space_to_plain(network.observation_space),
            "action_space": space_to_plain(network.action_space),
        }
    return description


def require_form(description: Any, where: object) -> None:
    """Refuse what is no description of a policy."""
    parts = cast("dict[str, Any]", description) if isinstance(description, dict) else {}
    wrong = [name for name, kinds in _FORM.items() if name not in parts or not isinstance(parts[name], kinds)]
    if wrong:
        raise CheckpointError(f"{where} describes a policy without {wrong[0]}, or with one of another kind: no policy.")


def rebuilt(description: Description, tensors: Mapping[str, Tensor], what: str) -> ActorCritic:
    """Build the `ActorCritic` that was described, with the tensors of then.

    Raises:
        PolicyError: It was another network, of which nobody here knows how it is built.
        CheckpointError: The description is not one of ours, or does not fit the tensors.
    """
    if description["architecture"] != OWN:
        raise PolicyError(
            f"{what} is of the class {description['architecture']}, which only your program can build. Make it, and "
            "pass it: record.policy(into=network)."
        )
    try:
        config = AgentConfig(**_tuples(description["config"]))
        seen, done = space_from_plain(description["observation_space"]), space_from_plain(description["action_space"])
        kept = _without_prefix(tensors, description["prefix"])
        with torch.device("meta"):  # costs no memory: what does not fit is refused before it is made
            _require_fitting(ActorCritic(seen, done, config), kept)
        with torch.random.fork_rng(devices=[]):
            policy = ActorCritic(seen, done, config)
    except _MALFORMED as error:
        raise CheckpointError(
            f"{what} cannot be built from its description: {type(error).__name__}: {error}"
        ) from error
    policy.load_state_dict(kept)
    if description["version"] is not None:
        policy.version = description["version"]
    return policy


def load_into(policy: Any, description: Description, tensors: Mapping[str, Tensor], what: str) -> None:
    """Give a network that is built already the tensors of a saved one; nothing changes where they do not fit."""
    network, _ = _network(policy)
    kept = _without_prefix(tensors, description["prefix"])
    try:
        _require_fitting(network, kept)
    except PolicyError as error:
        raise PolicyError(f"{what} does not fit into this {type(network).__name__}: {error}") from None
    network.load_state_dict(kept)


def _network(policy: Any) -> tuple[nn.Module, str]:
    """Look through what is around a network; return it, and how its tensors are named from outside."""
    if not isinstance(policy, nn.Module):
        raise PolicyError(f"{type(policy).__name__} is no torch.nn.Module, so it has no tensors to be kept.")
    if isinstance(policy, (Adapter, nn.DataParallel)):
        inner, around = cast("nn.Module", policy.module), "module"
    elif _COMPILED in dict(policy.named_children()):
        inner, around = dict(policy.named_children())[_COMPILED], _COMPILED
    else:
        return policy, ""
    network, prefix = _network(inner)
    return network, f"{around}.{prefix}"


def _without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _require_fitting(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    own, other = (_shapes(parts) for parts in (network.state_dict(), tensors))
    different = sorted(name for name in {*own, *other} if own.get(name) != other.get(name))
    if different:
        name = different[0]
        raise PolicyError(f"{name} is {_said(other.get(name))} there, {_said(own.get(name))} here.")


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _said(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else str(list(shape))


def _tuples(config: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the lists of JSON into the tuples of settings."""
    settings: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, list):
            settings[name] = tuple(cast("list[Any]", value))
        elif isinstance(value, dict):
            settings[name] = _tuples(cast("dict[str, Any]", value))
        else:
            settings[name] = value
    return settings
