"""Copies of policies that act while the policy itself learns, or against it."""

from __future__ import annotations

import copy
from typing import Any

import torch


def frozen_copy(policy: Any) -> Any:
    """Return a copy that shares nothing, learns nothing and never changes by itself."""
    with torch.inference_mode(False):
        twin = copy.deepcopy(policy)
    twin.zero_grad(set_to_none=True)
    return twin.eval().requires_grad_(False)
