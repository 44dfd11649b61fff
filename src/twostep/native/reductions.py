"""Operations whose numbers depend on several others: sums, largest ones, log-softmax, picking by index."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from twostep.native.programs import Routine, View, at, loops


def summed(result: View, source: View, shape: Sequence[int], to: Sequence[int], scale: float = 1.0) -> Routine:
    """Add up `shape`; `to` holds the result's strides in it, 0 along what is summed over."""
    kept = [d for d, stride in enumerate(to) if stride or shape[d] == 1]
    if kept and kept[-1] == len(shape) - 1 and len(kept) < len(shape):
        body = loops([prod(result.shape)], "        p0[i0] = 0.0f;\n") if result.shape else "    p0[0] = 0.0f;\n"
        body += loops(shape, f"        p0[{at(to)}] += p1[{at(source.strides)}];\n")
        if scale != 1.0:
            body += loops([prod(result.shape)], f"        p0[i0] *= {scale!r}f;\n")
        return _routine([result, source], body)
    return folded(result, source, shape, to, "0.0f", "s += {x};", f"s * {scale!r}f" if scale != 1.0 else "s")


def deviation(result: View, mean: View, source: View, shape: Sequence[int]) -> Routine:
    """Measure how far numbers are from their mean, in the sense of a sample's deviation."""
    inner = loops(shape, f"        float x = p2[{at(source.strides)}] - p1[0]; s += x * x;\n", sums=True)
    return _routine(
        [result, mean, source], f"    float s = 0.0f;\n{inner}    p0[0] = sqrtf(s / {prod(shape) - 1}.0f);\n"
    )


def folded(
    result: View, source: View, shape: Sequence[int], to: Sequence[int], start: str, step: str, end: str
) -> Routine:
    """Go over what belongs to each number of the result with one running number `s`."""
    kept = [d for d in range(len(shape)) if to[d]]
    gone = [d for d in range(len(shape)) if not to[d]]
    inner_at = at([source.strides[d] for d in gone], "j")
    outer_at = at([source.strides[d] for d in kept])
    inner = loops(
        [shape[d] for d in gone], "        " + step.replace("{x}", f"p1[{outer_at} + {inner_at}]") + "\n", "j"
    )
    body = f"    {source.c_type} s = {start};\n{inner}    p0[{at([to[d] for d in kept])}] = {end};\n"
    return _routine([result, source], loops([shape[d] for d in kept], body))


def largest_at(
    result: View, source: View, outer: Sequence[int], count: int, strides: Sequence[Sequence[int]]
) -> Routine:
    """Find where along the last dimension the largest number is, the first of equal ones."""
    to, of, step = strides[0], strides[1][:-1], strides[1][-1]
    body = (
        f"        int64_t best = 0; float most = p1[{at(of)}];\n"
        f"        for (int64_t n = 1; n < {count}; n++) {{ float x = p1[{at(of)} + n * {step}]; "
        "if (x > most || (x != x && most == most)) { most = x; best = n; } }\n"
        f"        p0[{at(to)}] = best;\n"
    )
    return _routine([result, source], loops(outer, body))


def log_softmax(
    result: View, source: View, outer: Sequence[int], count: int, strides: Sequence[Sequence[int]]
) -> Routine:
    """Normalise the last dimension: what is left after taking away the logarithm of the sum of exponentials."""
    (to, to_step), (of, step) = ((view[:-1], view[-1]) for view in strides)
    body = (
        f"        float most = p1[{at(of)}];\n"
        f"        for (int64_t n = 1; n < {count}; n++) most = larger(most, p1[{at(of)} + n * {step}]);\n"
        f"        float s = 0.0f;\n"
        f"        for (int64_t n = 0; n < {count}; n++) s += fast_exp(p1[{at(of)} + n * {step}] - most);\n"
        f"        float shift = most + fast_log(s);\n"
        f"        for (int64_t n = 0; n < {count}; n++) "
        f"p0[{at(to)} + n * {to_step}] = p1[{at(of)} + n * {step}] - shift;\n"
    )
    return _routine([result, source], loops(outer, body))


def log_softmax_backward(
    views: Sequence[View], outer: Sequence[int], count: int, strides: Sequence[Sequence[int]]
) -> Routine:
    """Return the gradient of `log_softmax`; views of the result, the gradient that comes in, and what came out."""
    places = [f"p{i}[{at(view[:-1])} + n * {view[-1]}]" for i, view in enumerate(strides)]
    body = (
        f"        float s = 0.0f;\n"
        f"        for (int64_t n = 0; n < {count}; n++) s += {places[1]};\n"
        f"        for (int64_t n = 0; n < {count}; n++) {places[0]} = {places[1]} - fast_exp({places[2]}) * s;\n"
    )
    return _routine(list(views), loops(outer, body))


def picked(
    views: Sequence[View], shape: Sequence[int], strides: Sequence[Sequence[int]], step: int, count: int
) -> Routine:
    """Take from the source what the index says; views of the result, source and index, the source's index left out.

    What lies outside is not read: it is no number, or 0 where there is no such thing.
    """
    body = (
        f"{_index(strides[2], count)}        p0[{at(strides[0])}] = inside ? p1[{at(strides[1])} + k * {step}] : NAN;\n"
    )
    return _routine(list(views), loops(shape, body))


def added_where(
    views: Sequence[View], shape: Sequence[int], strides: Sequence[Sequence[int]], step: int, count: int
) -> Routine:
    """Add the source where the index says; views of the result, source and index, the result's index left out."""
    body = (
        f"{_index(strides[2], count)}        if (inside) p0[{at(strides[0])} + k * {step}] += p1[{at(strides[1])}];\n"
    )
    routine = _routine(list(views), loops(shape, body))
    routine.read.add(views[0].buffer)
    return routine


def _index(strides: Sequence[int], count: int) -> str:
    """Read an index, which counts from the end where it is negative."""
    return (
        f"        int64_t k = p2[{at(strides)}];\n"
        f"        k += k < 0 ? {count} : 0;\n"
        f"        int inside = k >= 0 && k < {count};\n"
    )


def _routine(views: list[View], body: str) -> Routine:
    return Routine(views, {views[0].buffer}, {view.buffer for view in views[1:]}, body=body)
