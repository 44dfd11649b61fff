"""What an update measures: the names, and how pieces and minibatches become one number each."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from twostep.group import Group
from twostep.learn.losses import Metrics

LOSS_METRICS = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac", "ratio_error")
OWN_METRICS = (*LOSS_METRICS, "grad_norm", "explained_variance", "epochs", "lr")
"""What every update measures."""
SKIPPED = "skipped_minibatches"
"""What an update measures where minibatches were not learned from."""


def joined(total: Metrics, piece: Metrics) -> Metrics:
    """Add up pieces of means; the worst ratio stays the worst."""
    both = {name: total[name] + piece[name] for name in total.keys() & piece.keys()}
    if "ratio_error" in both:
        both["ratio_error"] = torch.maximum(total["ratio_error"], piece["ratio_error"])
    return {**total, **piece, **both}


def of_all(
    group: Group, measures: dict[str, float], beside: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return of all processes what each of them knows in part only, and the mean of what stands beside it.

    The worst ratio is that of the process with the worst; what custom losses measure are parts of a mean. A metric that
    only some have counts where it is.
    """
    parts = [name for name in measures if name not in (*OWN_METRICS, SKIPPED)]
    told = group.tell([measures["ratio_error"], {name: measures[name] for name in parts}, dict(beside)])
    worst = max(error for error, _, _ in told)
    sums = {name: sum(part[name] for part in found) for name, found in _by_name([part for _, part, _ in told])}
    means_beside = {
        name: sum(part[name] for part in found) / len(found) for name, found in _by_name([part for *_, part in told])
    }
    return measures | sums | {"ratio_error": worst}, means_beside


def _by_name(parts: list[dict[str, float]]) -> list[tuple[str, list[dict[str, float]]]]:
    names = dict.fromkeys(name for part in parts for name in part)
    return [(name, [part for part in parts if name in part]) for name in names]


def means(measured: list[Metrics]) -> dict[str, float]:
    """Bring everything to the host in one transfer: means over all minibatches, the ratio's error of the first.

    What custom losses measure only now and then is the mean of when they did.
    """
    columns: dict[str, list[Tensor]] = {}
    for metrics in measured:
        for name, value in metrics.items():
            columns.setdefault(name, []).append(value)
    if "ratio_error" in columns:
        columns["ratio_error"] = columns["ratio_error"][:1]
    table = torch.stack([torch.stack(column).double().mean() for column in columns.values()])
    return dict(zip(columns, table.tolist(), strict=True))
