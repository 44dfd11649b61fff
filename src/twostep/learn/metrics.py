"""What an update measures: the names, and how pieces and minibatches become one number each."""

from __future__ import annotations

import torch
from torch import Tensor

from twostep.learn.losses import Metrics

LOSS_METRICS = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac", "ratio_error")
OWN_METRICS = (*LOSS_METRICS, "grad_norm", "explained_variance", "epochs", "lr")
"""What every update measures."""


def joined(total: Metrics, piece: Metrics) -> Metrics:
    """Add up pieces of means; the worst ratio stays the worst."""
    both = {name: total[name] + piece[name] for name in total.keys() & piece.keys()}
    if "ratio_error" in both:
        both["ratio_error"] = torch.maximum(total["ratio_error"], piece["ratio_error"])
    return {**total, **piece, **both}


def means(measured: list[Metrics]) -> dict[str, float]:
    """Bring everything to the host in one transfer: means over all minibatches, the ratio's error of the first.

    What custom losses measure only now and then is the mean of when they did.
    """
    columns: dict[str, list[Tensor]] = {}
    for metrics in measured:
        for name, value in metrics.items():
            columns.setdefault(name, []).append(value)
    columns["ratio_error"] = columns["ratio_error"][:1]
    table = torch.stack([torch.stack(column).double().mean() for column in columns.values()])
    return dict(zip(columns, table.tolist(), strict=True))
