"""Saved states: a folder with `tensors.safetensors` and `manifest.json`, whole or refused, and never a pickle.

A state is a tree of dicts, lists and tuples whose leaves are tensors, numbers, strings, truth values and None. Both
files are written to a folder beside the target, synced to the disk and renamed, so that a process killed at any moment
leaves the old state or the new one. The manifest holds the SHA-256 of both files; no tool needs torch to read
them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import safetensors
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as tensors_to_bytes

from twostep.errors import CheckpointError

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
TENSORS_FILE = "tensors.safetensors"
LARGEST_MANIFEST = 64 * 2**20
"""Bytes; a manifest holds numbers and names, so a larger one is no manifest."""

_USE = "Use an older checkpoint."
_NO_DIGEST = b"0" * 64
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading JSON of any other shape than ours raises."""
_DIGEST_FIELD = re.compile(rb'"manifest_sha256": "([0-9a-f]{64})"')

State = Any
"""A tree of dicts, lists and tuples with plain leaves and tensors."""


def save_state(path: str | os.PathLike[str], state: State, manifest: dict[str, Any] | None = None) -> Path:
    """Write a state, and beside it whatever JSON can say, so that it replaces an older one at `path` in one step.

    Raises:
        CheckpointError: Something cannot be stored or written; what was at `path` is untouched.
    """
    path = Path(path).resolve()
    _require_replaceable(path)
    tensors, structure = pack(state)
    tensor_bytes = tensors_to_bytes(tensors)
    manifest_bytes = _manifest_bytes(structure, tensor_bytes, manifest or {}, path)
    fresh, aside = _fresh(path), _aside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(fresh)
        fresh.mkdir()
        _write_synced(fresh / TENSORS_FILE, tensor_bytes)
        _write_synced(fresh / MANIFEST_FILE, manifest_bytes)
        _sync_folder(fresh)
        if path.exists():
            _remove(aside)
            path.rename(aside)
        fresh.rename(path)
        _sync_folder(path.parent)
        shutil.rmtree(aside, ignore_errors=True)  # what stays, the next save removes
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if aside.exists() and not path.exists():
            aside.rename(path)
        raise CheckpointError(
            f"{path} could not be written: {error}. An older state there is intact; make room or choose another place."
        ) from error
    return path


def load_state(path: str | os.PathLike[str]) -> tuple[State, dict[str, Any]]:
    """Read what `save_state` wrote, with tensors on the CPU, after checking every byte of it.

    Where a save was killed between its two renames, this is the state that it was about to replace.

    Raises:
        CheckpointError: Naming the path and what is wrong with it.
    """
    path = _readable(path)
    content = _read_manifest(path / MANIFEST_FILE)
    try:
        expected_size, expected_digest = content["tensors"]["bytes"], content["tensors"]["sha256"]
        structure, manifest = content["structure"], content["manifest"]
    except _MALFORMED as error:
        raise CheckpointError(f"{path / MANIFEST_FILE} lacks {error}: it was not written by save_state.") from error
    tensor_bytes = _read(path / TENSORS_FILE, expected_size)
    if hashlib.sha256(tensor_bytes).hexdigest() != expected_digest:
        raise CheckpointError(
            f"{path / TENSORS_FILE} is damaged: its SHA-256 is not the one in {MANIFEST_FILE}. {_USE}"
        )
    try:
        return unpack(load_tensors(tensor_bytes), structure), manifest
    except (CheckpointError, safetensors.SafetensorError, *_MALFORMED) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def load_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what was written beside a state, without its tensors, after checking every byte of it.

    Raises:
        CheckpointError: Naming the path and what is wrong with it.
    """
    path = _readable(path) / MANIFEST_FILE
    try:
        return dict(_read_manifest(path)["manifest"])
    except _MALFORMED as error:
        raise CheckpointError(f"{path} lacks {error}: it was not written by save_state.") from error


def _readable(path: str | os.PathLike[str]) -> Path:
    """Return where the state is: where it belongs, or where a save that was killed put it aside."""
    path = Path(path).resolve()
    return _aside(path) if not path.exists() and _aside(path).exists() else path


def _manifest_bytes(structure: Any, tensor_bytes: bytes, manifest: dict[str, Any], path: Path) -> bytes:
    tensors = {
        "file": TENSORS_FILE,
        "bytes": len(tensor_bytes),
        "sha256": hashlib.sha256(tensor_bytes).hexdigest(),
    }
    content = {
        "format_version": FORMAT_VERSION,
        "manifest_sha256": _NO_DIGEST.decode(),
        "manifest": manifest,
        "tensors": tensors,
        "structure": structure,
    }
    try:
        text = json.dumps(content, indent=1).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"The manifest of {path} is more than JSON can say: {error}.") from error
    return text.replace(_NO_DIGEST, hashlib.sha256(text).hexdigest().encode(), 1)


def _read_manifest(path: Path) -> dict[str, Any]:
    raw = _read(path)
    field = _DIGEST_FIELD.search(raw)
    digest = field.group(1) if field else b""
    blanked = raw.replace(digest, _NO_DIGEST, 1) if digest else raw
    try:
        content = json.loads(raw)
        version = content["format_version"]
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise CheckpointError(
                f"{path} has format_version {version}, and this twostep reads up to {FORMAT_VERSION}. Update twostep."
            )
    except _MALFORMED as error:
        raise CheckpointError(f"{path} is cut off or damaged: {error!r}. {_USE}") from error
    if hashlib.sha256(blanked).hexdigest().encode() != digest:
        raise CheckpointError(f"{path} is damaged or was edited: its SHA-256 is not the one it carries. {_USE}")
    return content


def _read(path: Path, expected_size: int | None = None) -> bytes:
    """Read a file after looking at its size, so that no garbage fills the memory."""
    try:
        size = path.stat().st_size
        if expected_size is None and size > LARGEST_MANIFEST:
            raise CheckpointError(f"{path} has {size} bytes, but a manifest has at most {LARGEST_MANIFEST}. {_USE}")
        if expected_size is not None and size != expected_size:
            raise CheckpointError(f"{path} has {size} bytes instead of {expected_size}: it is cut off. {_USE}")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}. "
            f"A saved state is a folder with {MANIFEST_FILE} and {TENSORS_FILE}."
        ) from error


def _fresh(path: Path) -> Path:
    return path.with_name(f".{path.name}.saving")


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.replaced")


def _require_replaceable(path: Path) -> None:
    """Refuse to replace anything but a saved state: what is replaced gets deleted."""
    if not path.exists():
        return
    others = [path.name] if not path.is_dir() else sorted({*os.listdir(path)} - {MANIFEST_FILE, TENSORS_FILE})
    if others:
        raise CheckpointError(
            f"{path} is no saved state but holds {others[0]!r}: it is not overwritten. Choose a new name."
        )


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    if os.name == "nt":  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def pack(state: State) -> tuple[dict[str, torch.Tensor], Any]:
    """Split a state into named tensors on the CPU and a structure for JSON; `unpack` joins them again."""
    tensors: dict[str, torch.Tensor] = {}
    return tensors, _structure_of(state, "", tensors)


def _structure_of(node: State, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    if node is None or isinstance(node, (bool, int, str)):
        return node
    if isinstance(node, float):
        return float(node) if math.isfinite(node) else {"float": str(float(node))}
    if isinstance(node, torch.Tensor):
        return _stored(node, name, tensors)
    if isinstance(node, dict):
        items = cast("dict[Any, Any]", node).items()
        pairs = [(_checked_key(key, name), _structure_of(value, _child(name, key), tensors)) for key, value in items]
        return {"dict": dict(pairs)} if all(isinstance(key, str) for key, _ in pairs) else {"items": pairs}
    if isinstance(node, list) or type(node) is tuple:
        elements = cast("list[Any] | tuple[Any, ...]", node)
        kind = "list" if isinstance(node, list) else "tuple"
        return {kind: [_structure_of(element, _child(name, i), tensors) for i, element in enumerate(elements)]}
    raise CheckpointError(
        f"{name or 'The state'} is a {type(node).__name__}, which cannot be stored. "
        "Use dicts, lists, tuples, tensors, numbers, strings, truth values and None."
    )


def _stored(tensor: torch.Tensor, name: str, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    while name in tensors or name in ("", "__metadata__"):  # one name of the format's own, and keys with slashes
        name += "_"
    tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return {"tensor": name, "shape": list(tensor.shape), "dtype": str(tensor.dtype)}


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
    if "tensor" in content:
        return _restored(tensors, content)
    (kind, inside), *_ = content.items()
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


def _restored(tensors: dict[str, torch.Tensor], content: dict[str, Any]) -> torch.Tensor:
    name = content["tensor"]
    if name not in tensors:
        raise CheckpointError(f"the tensor {name!r} is missing from {TENSORS_FILE}. {_USE}")
    tensor = tensors[name]
    found, expected = (list(tensor.shape), str(tensor.dtype)), (content["shape"], content["dtype"])
    if found != expected:
        raise CheckpointError(f"the tensor {name!r} is {found} instead of {expected}. {_USE}")
    return tensor


def generator_state(generator: torch.Generator | np.random.Generator) -> State:
    """Return where a generator stands, as a state to save."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return _without_arrays(generator.bit_generator.state)


def restore_generator(generator: torch.Generator | np.random.Generator, state: State) -> None:
    """Let a generator of the same kind go on from where `generator_state` was taken.

    A device cannot go on with the random numbers of another kind of device; its generator starts anew from a seed that
    the saved state decides, so that the run stays repeatable.
    """
    if isinstance(generator, torch.Generator):
        if state.shape == generator.get_state().shape:
            generator.set_state(state)
        else:
            generator.manual_seed(int.from_bytes(hashlib.sha256(state.numpy().tobytes()).digest()[:7], "big"))
    else:
        generator.bit_generator.state = state


def _without_arrays(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _without_arrays(value) for key, value in cast("dict[str, Any]", node).items()}
    return node.tolist() if isinstance(node, np.ndarray) else node
