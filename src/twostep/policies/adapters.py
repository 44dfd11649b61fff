"""Any network of the usual signatures as a `Policy`."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from twostep.errors import PolicyError
from twostep.policies.adapter_base import Adapter, hold_still, parameters_of, warn_about
from twostep.policies.calling_adapters import (
    ActionAndValueAdapter,
    RecurrentActionAndValueAdapter,
    StateChangingAdapter,
)
from twostep.policies.foreign_state import WAY_OUT, ForeignState, find_state, recurrent_parts
from twostep.policies.parameter_adapters import ParameterAdapter, RecurrentParameterAdapter
from twostep.policies.versions import first_version
from twostep.tree import Tree

MakeState = Callable[[int], Any]

SIGNATURES = {
    "plain": "module(obs) -> (action parameters, value), or {'action_logits', 'value'}",
    "hidden": "module(obs, hidden) -> (action parameters, value, new hidden)",
    "action_and_value": "module.get_action_and_value(obs, action=None) -> (action, logprob, entropy, value)",
    "action_and_value_hidden": "module.get_action_and_value(obs, state, done, action=None) -> the same and next_state",
    "changed_state": "module(obs, state, action=None) -> (action, logprob, entropy, value, full_logprobs)",
}
"""What networks look like that can be adapted."""

MEMORY_WORDS = ("hidden", "state", "memory", "hxs")
"""What the name of a second parameter contains that takes memory."""

_KEPT = "_twostep_adapter"


def as_policy(policy: Any, action_space: Any = None, *, signature: str = "auto", initial_state: Any = None) -> Any:
    """Return `policy` itself when it follows `protocols.Policy`, otherwise an adapter around it.

    How a network is called is found out here, once; `signature` (a key of `SIGNATURES`) says it where that fails.
    `initial_state(rows)` makes empty memory as the network takes it, where the network has no method for it. The same
    network gets the same adapter every time: collector and learner must speak of one policy and its one version. So
    once somebody gave the action space, nobody else has to.
    """
    network = _unwrapped(policy)
    warn_about(hold_still(network), network)
    if _follows_the_protocol(network):
        if not hasattr(network, "version"):
            network.version = first_version()
        return _told(network, action_space)
    kept: Adapter | None = network.__dict__.get(_KEPT)
    asked_anew = signature != "auto" or initial_state is not None
    if kept is None or asked_anew or (action_space is not None and kept.action_space not in (None, action_space)):
        kept = _adapter(network, action_space, signature, initial_state)
        object.__setattr__(network, _KEPT, kept)  # past nn.Module, which would make it a part of the network
    return _told(kept, action_space)


def _told(policy: Any, action_space: Any) -> Any:
    """Tell an adapter the action space that it could not know before."""
    if isinstance(policy, Adapter) and policy.action_space is None and action_space is not None:
        policy.set_action_space(action_space)
    return policy


def memory_from(policy: Any, memory: Any) -> Tree:
    """Take over memory in whatever form the user's network keeps it."""
    return policy.state_from(memory) if isinstance(policy, Adapter) else memory


def memory_to(policy: Any, state: Tree) -> Any:
    """Hand out memory in the form in which the user's network keeps it."""
    return policy.state_to(state) if isinstance(policy, Adapter) else state


def _unwrapped(policy: Any) -> Any:
    """Refuse what is no network, and look through what only runs one on several devices."""
    if isinstance(policy, type):
        raise PolicyError(f"Got the class {policy.__name__}, not a network: pass {policy.__name__}(...).")
    if not isinstance(policy, nn.Module):
        raise PolicyError(
            f"{type(policy).__name__} is not a torch.nn.Module, so it has nothing that could be learned. Put the "
            "function or object into a Module and register its parameters there."
        )
    if isinstance(policy, DistributedDataParallel):
        return policy.module  # whoever learns adds up the gradients of all processes itself
    if isinstance(policy, nn.DataParallel):
        if len(policy.device_ids) > 1:
            warnings.warn(
                f"Of the devices {policy.device_ids} of DataParallel only the first is used: it would spread a rollout "
                "along time, not along rows.",
                UserWarning,
                stacklevel=3,
            )
        return policy.module
    return policy


def _follows_the_protocol(network: nn.Module) -> bool:
    return all(callable(getattr(network, name, None)) for name in ("initial_state", "to_env"))


def _adapter(network: Any, space: Any, signature: str, make: MakeState | None) -> Adapter:
    _require_single_precision(network)
    if signature == "auto":
        signature = _found_signature(network)
    if signature not in SIGNATURES:
        known = "; ".join(f"{name!r} for {call}" for name, call in SIGNATURES.items())
        raise PolicyError(f"signature={signature!r} is not known. There is {known}.")
    if signature in ("plain", "hidden") and space is None:
        raise PolicyError(
            f"{type(network).__name__} returns parameters of a distribution, but of which? Pass the action space: "
            "as_policy(network, env.action_space), before an optimizer or trainer gets the network."
        )
    if signature == "plain":
        return ParameterAdapter(network, space, _takes(network))
    if signature == "hidden":
        return RecurrentParameterAdapter(network, space, _takes(network), _required_state(network, make))
    if signature == "changed_state":
        adapter = StateChangingAdapter(network, _takes(network), recurrent_parts(network, make))
    else:
        takes = parameters_of(network.get_action_and_value)
        if signature == "action_and_value":
            adapter = ActionAndValueAdapter(network, takes, None)
        else:
            adapter = RecurrentActionAndValueAdapter(network, takes, _required_state(network, make))
    if space is not None:
        adapter.set_action_space(space)
    return adapter


def _plain(network: nn.Module) -> nn.Module:
    """Look through torch.compile, which hides how a network is called."""
    return getattr(network, "_orig_mod", network)


def _takes(network: nn.Module) -> dict[str, inspect.Parameter]:
    return parameters_of(_plain(network).forward)


def _require_single_precision(network: nn.Module) -> None:
    kinds = {parameter.dtype for parameter in network.parameters() if parameter.is_floating_point()}
    if kinds and torch.float32 not in kinds:
        found = ", ".join(sorted(map(str, kinds)))
        raise PolicyError(
            f"{type(network).__name__} has parameters of {found}, but observations come in torch.float32. Call "
            "network.float(); ActorCritic computes its products in 16 bits by precision='bf16'."
        )


def _required_state(network: nn.Module, make: MakeState | None) -> ForeignState:
    state = find_state(network, make)
    if state is None:
        raise PolicyError(f"{type(network).__name__} takes memory, but how does it start? {WAY_OUT}")
    return state


def _found_signature(network: nn.Module) -> str:
    """Tell from names and numbers of parameters how a network wants to be called."""
    method = getattr(network, "get_action_and_value", None)
    if callable(method):
        names = _positional(method)
        return "action_and_value" if len(names) < 2 or "action" in names[1] else "action_and_value_hidden"
    inside = [name for name in ("reset_hidden", "hidden_state") if hasattr(network, name)]
    names = _positional(_plain(network).forward)
    if len(names) >= 3 and "action" in names[2]:
        return "changed_state"
    if len(names) >= 2 and any(word in names[1] for word in MEMORY_WORDS):
        return "hidden"
    if inside:
        raise PolicyError(
            f"{type(network).__name__} keeps its memory inside ({', '.join(inside)}), where many rows and repeated "
            "passes over a rollout would mix it up. Let it take memory and return it: forward(obs, hidden) -> "
            "(action parameters, value, new hidden)."
        )
    if names:
        return "plain"
    raise PolicyError(
        f"{type(network).__name__} has no forward(obs, ...) and no get_action_and_value. Write one of: "
        f"{'; '.join(SIGNATURES.values())}."
    )


def _positional(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, parameter in parameters_of(function).items() if parameter.kind in kinds]
