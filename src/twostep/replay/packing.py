"""Columns of numbers as short text: rounded to steps, told by their changes, small changes in one byte.

The reader in `web/decode.js` needs no feature of the browser beyond `atob`. A match of a minute with ten units takes
some 60 kB, a fifth of what the float32 of the replay would; deflating it would save another third, at the price of a
page that can only start where browsers have `DecompressionStream`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

_PAYLOAD, _MORE = 0x7F, 0x80
"""Seven bits of a number per byte; the eighth says that more follow."""


@dataclass(frozen=True)
class Column:
    """Numbers `[T, M]`, and the finest difference worth keeping."""

    values: np.ndarray[Any, Any]
    resolution: float


def pack(columns: Mapping[str, Column]) -> dict[str, Any]:
    """Return what JSON can hold: where each column lies in one base64 text, and by what to multiply its numbers."""
    data = bytearray()
    places: dict[str, dict[str, float]] = {}
    for name, column in columns.items():
        begin = len(data)
        steps = np.rint(np.asarray(column.values, dtype=np.float64) / column.resolution).astype(np.int64)
        width = int(np.prod(steps.shape[1:], dtype=np.int64))
        for series in steps.reshape(len(steps), width).T:
            data += _changes(series)
        places[name] = {"resolution": column.resolution, "series": width, "begin": begin, "end": len(data)}
    return {"columns": places, "bytes": base64.b64encode(bytes(data)).decode("ascii")}


def _changes(series: np.ndarray[Any, Any]) -> bytes:
    """Write the differences of one series: a sign-free number each, and for runs of zeros a 0 and their number."""
    written = bytearray()
    differences = np.diff(series, prepend=0)
    for change, run in groupby(np.where(differences < 0, -2 * differences - 1, 2 * differences).tolist()):
        count = sum(1 for _ in run)
        if change == 0:
            written += b"\0" + _number(count)
        else:
            written += _number(change) * count
    return bytes(written)


def _number(value: int) -> bytes:
    written = bytearray()
    while value > _PAYLOAD:
        written.append(value & _PAYLOAD | _MORE)
        value >>= 7
    written.append(value)
    return bytes(written)
