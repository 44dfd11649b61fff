"""States as named tensors and a structure for JSON.

A state is a tree of dicts, lists and tuples whose leaves are tensors, arrays, numbers, strings, truth values and None.
What comes back is of the same kind everywhere: an array an array, NumPy's numbers of the same precision.
"""

from __future__ import annotations

import json
import math
from typing import Any, cast

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as tensors_to_bytes

from twostep.errors import CheckpointError

State = Any
"""A tree of dicts, lists and tuples with plain leaves, tensors and arrays."""

_NUMBERS = {
    np.dtype(kind).name: np.dtype(kind).type
    for kind in ("?", *np.typecodes["AllInteger"], "float16", "float32", "float64")
}


def pack(state: State) -> tuple[dict[str, torch.Tensor], Any]:
    """Split a state into named tensors on the CPU and a structure for JSON; `unpack` joins them again."""
    tensors: dict[str, torch.Tensor] = {}
    return tensors, _structure_of(state, "", tensors)


def _structure_of(node: State, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(node, np.generic) and not isinstance(node, str):
        return _number(cast("np.generic[Any]", node), name, tensors)
    if node is None or isinstance(node, (bool, int, str)):
        return node
    if isinstance(node, float):
        return float(node) if math.isfinite(node) else {"float": str(float(node))}
    if isinstance(node, torch.Tensor):
        return {"tensor": _stored(node, name, tensors), "shape": list(node.shape), "dtype": str(node.dtype)}
    if isinstance(node, np.ndarray):
        return _array(cast("np.ndarray[Any, Any]", node), name, tensors)
    if isinstance(node, dict):
        items = cast("dict[Any, Any]", node).items()
        pairs = [(_checked_key(key, name), _structure_of(value, _child(name, key), tensors)) for key, value in items]
        return {"dict": dict(pairs)} if all(isinstance(key, str) for key, _ in pairs) else {"items": pairs}
    if isinstance(node, list) or type(node) is tuple:
        elements = cast("list[Any] | tuple[Any, ...]", node)
        kind = "list" if isinstance(node, list) else "tuple"
        return {kind: [_structure_of(element, _child(name, i), tensors) for i, element in enumerate(elements)]}
    raise _refused(node, name)


def _refused(node: Any, name: str) -> CheckpointError:
    kind = type(node).__name__ + (f" of {node.dtype}" if isinstance(node, (np.ndarray, np.generic)) else "")
    return CheckpointError(
        f"{name or 'The state'} is a {kind}, which cannot be stored. "
        "Use dicts, lists, tuples, tensors, arrays of numbers, numbers, strings, truth values and None."
    )


def _number(number: np.generic[Any], name: str, tensors: dict[str, torch.Tensor]) -> Any:
    if number.dtype.name not in _NUMBERS:
        raise _refused(number, name)
    return {"number": _structure_of(number.item(), name, tensors), "dtype": number.dtype.name}


def _array(array: np.ndarray[Any, Any], name: str, tensors: dict[str, torch.Tensor]) -> Any:
    if array.dtype.name not in _NUMBERS:
        raise _refused(array, name)
    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).reshape(array.shape)
    stored = _stored(torch.from_numpy(native.copy()), name, tensors)
    return {"array": stored, "shape": list(array.shape), "dtype": array.dtype.name}


def _stored(tensor: torch.Tensor, name: str, tensors: dict[str, torch.Tensor]) -> str:
    while name in tensors or name in ("", "__metadata__"):  # one name of the format's own, and keys with slashes
        name += "_"
    tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return name


def _child(name: str, key: Any) -> str:
    return f"{name}/{key}" if name else str(key)


def _checked_key(key: Any, name: str) -> str | int:
    if isinstance(key, str) or type(key) is int:
        return key
    raise CheckpointError(f"{name or 'The state'} has the key {key!r}; keys must be strings or whole numbers.")


def unpack(tensors: dict[str, torch.Tensor], structure: Any) -> State:
    """Join what `pack` split."""
    if structure is None or isinstance(structure, (bool, int, float, str)):
        return structure
    content = cast("dict[str, Any]", structure)
    (kind, inside), *_ = content.items()
    if kind == "tensor":
        return _restored(tensors, inside, content, str)
    if kind == "array":
        return _restored(tensors, inside, content, lambda dtype: str(dtype).removeprefix("torch.")).numpy()
    if kind == "number":
        return _NUMBERS[content["dtype"]](unpack(tensors, inside))
    if kind == "float":
        return float(inside)
    if kind == "dict":
        return {key: unpack(tensors, value) for key, value in inside.items()}
    if kind == "items":
        return {key: unpack(tensors, value) for key, value in inside}
    if kind in ("list", "tuple"):
        elements = [unpack(tensors, element) for element in inside]
        return elements if kind == "list" else tuple(elements)
    raise CheckpointError(f"{kind!r} is no kind of node that this version knows. Update twostep.")


_LENGTH = 8


def to_bytes(state: State) -> bytes:
    """Write a state as bytes, to be sent to another process."""
    tensors, structure = pack(state)
    told = json.dumps(structure).encode()
    return len(told).to_bytes(_LENGTH, "little") + told + tensors_to_bytes(tensors)


def from_bytes(content: bytes) -> State:
    """Read what `to_bytes` wrote."""
    end = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    return unpack(load_tensors(content[end:]), json.loads(content[_LENGTH:end]))


def _restored(tensors: dict[str, torch.Tensor], name: str, content: dict[str, Any], named: Any) -> torch.Tensor:
    if name not in tensors:
        raise CheckpointError(f"the tensor {name!r} is missing. Use an older checkpoint.")
    tensor = tensors[name]
    found, expected = (list(tensor.shape), named(tensor.dtype)), (content["shape"], content["dtype"])
    if found != expected:
        raise CheckpointError(f"the tensor {name!r} is {found} instead of {expected}. Use an older checkpoint.")
    return tensor
