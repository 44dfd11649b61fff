"""Saved states: a folder with `tensors.safetensors` and `manifest.json`, whole or refused, and never a pickle.

Both files are written to a folder beside the target, synced to the disk and renamed, so that a process killed at any
moment leaves the old state or the new one. The manifest holds the SHA-256 of both files; no tool needs torch to read
them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any, cast

import safetensors
from safetensors.torch import load as load_tensors
from safetensors.torch import save as tensors_to_bytes

from twostep.checkpoint.packing import State, pack, unpack
from twostep.errors import CheckpointError

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
TENSORS_FILE = "tensors.safetensors"
LARGEST_MANIFEST = 8 * 2**20
"""Bytes; a manifest holds numbers and names, so a larger one is no manifest. Likewise what tells of the tensors."""

_USE = "Use an older checkpoint."
_NO_DIGEST = b"0" * 64
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading JSON of any other shape than ours raises."""
_DIGEST_FIELD = re.compile(rb'"manifest_sha256": "([0-9a-f]{64})"')
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class NewerFormatError(CheckpointError):
    """A state that a newer twostep has written: older ones beside it are no way out."""


def save_state(path: str | os.PathLike[str], state: State, manifest: dict[str, Any] | None = None) -> Path:
    """Write a state, and beside it whatever JSON can say, so that it replaces an older one at `path` in one step.

    Raises:
        CheckpointError: Something cannot be stored or written; what was at `path` is untouched.
    """
    path = Path(path).resolve()
    tensors, structure = pack(state)
    tensor_bytes = tensors_to_bytes(tensors)
    manifest_bytes = _manifest_bytes(structure, tensor_bytes, manifest or {}, path)
    fresh, aside = _fresh(path), aside_of(path)
    try:
        _require_replaceable(path)
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
    path = _standing(Path(path))
    content = _content(path / MANIFEST_FILE)
    try:
        about = content["tensors"]
        name, expected_size, expected_digest = about["file"], about["bytes"], about["sha256"]
    except _MALFORMED as error:
        raise CheckpointError(f"{path / MANIFEST_FILE} lacks {error}: it was not written by save_state.") from error
    if name != TENSORS_FILE or type(expected_size) is not int:
        raise CheckpointError(f"{path / MANIFEST_FILE} tells of other tensors: it was not written by save_state.")
    tensor_bytes = _read(path / TENSORS_FILE, expected_size)
    if hashlib.sha256(tensor_bytes).hexdigest() != expected_digest:
        raise CheckpointError(
            f"{path / TENSORS_FILE} is damaged: its SHA-256 is not the one in {MANIFEST_FILE}. {_USE}"
        )
    try:
        return unpack(load_tensors(tensor_bytes), content["structure"]), content["manifest"]
    except (CheckpointError, safetensors.SafetensorError, *_MALFORMED) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _manifest_bytes(structure: Any, tensor_bytes: bytes, manifest: dict[str, Any], path: Path) -> bytes:
    tensors = {
        "file": TENSORS_FILE,
        "bytes": len(tensor_bytes),
        "sha256": hashlib.sha256(tensor_bytes).hexdigest(),
    }
    content = {
        "format_version": FORMAT_VERSION,
        "manifest_sha256": _NO_DIGEST.decode(),
        "manifest": _plain(manifest),
        "tensors": tensors,
        "structure": structure,
    }
    try:
        text = json.dumps(content, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"The manifest of {path} is more than JSON can say: {error}.") from error
    if len(text) > LARGEST_MANIFEST:
        raise CheckpointError(
            f"The manifest of {path} would have {len(text)} bytes, but can have {LARGEST_MANIFEST}. Keep large things "
            "in tensors or arrays."
        )
    return text.replace(_NO_DIGEST, hashlib.sha256(text).hexdigest().encode(), 1)


def _plain(node: Any) -> Any:
    """Return a manifest in which what is no number is null: other readers of JSON know no NaN."""
    if isinstance(node, dict):
        return {key: _plain(value) for key, value in cast("dict[Any, Any]", node).items()}
    if isinstance(node, (list, tuple)):
        return [_plain(value) for value in cast("list[Any]", node)]
    return None if isinstance(node, float) and not math.isfinite(node) else node


def load_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what was given to `save_state` as manifest, after checking it, without reading any tensor."""
    return _content(_standing(Path(path)) / MANIFEST_FILE)["manifest"]


def _standing(path: Path) -> Path:
    """Return where the state of this name stands: aside, where a save was killed between its two renames."""
    path = path.resolve()
    return aside_of(path) if not path.exists() and aside_of(path).exists() else path


def _content(path: Path) -> dict[str, Any]:
    raw = _read(path)
    field = _DIGEST_FIELD.search(raw)
    digest = field.group(1) if field else b""
    whole = bool(digest) and hashlib.sha256(raw.replace(digest, _NO_DIGEST, 1)).hexdigest().encode() == digest
    try:
        content = json.loads(raw)
        version = content["format_version"]
        if isinstance(version, int) and version > FORMAT_VERSION and (whole or not digest):
            raise NewerFormatError(
                f"{path} has format_version {version}, and this twostep reads up to {FORMAT_VERSION}. Update twostep."
            )
    except _MALFORMED as error:
        raise CheckpointError(f"{path} is cut off or damaged: {error!r}. {_USE}") from error
    if not whole:
        raise CheckpointError(f"{path} is damaged or was edited: its SHA-256 is not the one it carries. {_USE}")
    missing = sorted({"tensors", "structure", "manifest"} - set(content))
    if missing or not isinstance(content["manifest"], dict):
        raise CheckpointError(f"{path} lacks {', '.join(missing) or 'a manifest'}: it was not written by save_state.")
    return content


def _read(path: Path, expected_size: int | None = None) -> bytes:
    """Read a file after a look at what it is and how large, so that nothing blocks and no garbage fills the memory."""
    try:
        with open(os.open(path, os.O_RDONLY | _NO_LINKS), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path} is no regular file. {_USE}")
            if expected_size is None and status.st_size > LARGEST_MANIFEST:
                raise CheckpointError(
                    f"{path} has {status.st_size} bytes, but a manifest has at most {LARGEST_MANIFEST}. {_USE}"
                )
            if expected_size is not None:
                _require_tensors(path, file.read(8), status.st_size, expected_size)
                file.seek(0)
            return file.read()
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}. "
            f"A saved state is a folder with {MANIFEST_FILE} and {TENSORS_FILE}."
        ) from error


def _require_tensors(path: Path, start: bytes, size: int, expected_size: int) -> None:
    """Refuse a file of tensors whose size is not as expected, or whose head would fill it."""
    if size != expected_size:
        raise CheckpointError(f"{path} has {size} bytes instead of {expected_size}: it is cut off. {_USE}")
    head = int.from_bytes(start, "little")
    if not 2 <= head <= min(LARGEST_MANIFEST, size - 8):
        raise CheckpointError(f"{path} is damaged: it does not begin as safetensors do. {_USE}")


def _fresh(path: Path) -> Path:
    return path.with_name(f".{path.name}.saving")


def aside_of(path: Path) -> Path:
    """Return where a state is put while the one that replaces it is renamed."""
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
