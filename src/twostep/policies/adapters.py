"""Any network of the usual signatures as a `Policy`."""

from __future__ import annotations

from typing import Any

from torch import nn

from twostep.errors import PolicyError
from twostep.policies.versions import first_version


def as_policy(policy: Any, action_space: Any = None) -> Any:
    """Return `policy` itself when it already follows `protocols.Policy`."""
    if isinstance(policy, nn.Module) and hasattr(policy, "initial_state") and hasattr(policy, "to_env"):
        if not hasattr(policy, "version"):
            policy.version = first_version()  # pyright: ignore
        return policy
    raise PolicyError(f"{type(policy).__name__} is no policy.")
