"""Files that mean harm, under the names of a checkpoint's: none may run, all must be refused at once."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import resource
import struct
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from wreckage import folder, fresh_copy, state

from twostep.checkpoint import MANIFEST_FILE, TENSORS_FILE, TrainingCheckpointer, load_state, save_state
from twostep.errors import CheckpointError

Spoil = Callable[[Path], None]


class Runs:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def pickles(marker: Path) -> Iterator[tuple[str, bytes]]:
    """Yield payloads that leave a mark where anybody unpickles them."""
    mark = f"open({str(marker)!r}, 'w')"
    for protocol in (0, 2, 4, 5):
        yield f"os.system, protocol {protocol}", pickle.dumps(Runs(os.system, f"touch {marker}"), protocol)
    yield "eval", pickle.dumps(Runs(eval, mark))
    yield "exec", pickle.dumps(Runs(exec, mark))
    yield "nested", pickle.dumps({"weights": [Runs(os.system, f"touch {marker}")] * 3})
    memory = io.BytesIO()
    torch.save({"weights": Runs(os.system, f"touch {marker}")}, memory)
    yield "torch.save", memory.getvalue()


def zips() -> Iterator[tuple[str, bytes]]:
    """Yield archives that would fill memory or leave their folder."""
    for name, inside, content in (
        ("zip bomb", "data", bytes(200_000_000)),
        ("zip slip", "../../../../tmp/twostep-slipped", b"out"),
    ):
        memory = io.BytesIO()
        with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(inside, content)
        yield name, memory.getvalue()
    yield "gzip bomb", gzip.compress(bytes(100_000_000))


def forged(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Rewrite a manifest with a digest that fits."""
    content = json.loads((path / MANIFEST_FILE).read_text())
    content["manifest_sha256"] = "0" * 64
    change(content)
    forged_text(path, json.dumps(content, indent=1))


def forged_text(path: Path, text: str) -> None:
    """Write a manifest with a digest that fits, whatever it says."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    (path / MANIFEST_FILE).write_text(text.replace("0" * 64, digest, 1))


def forged_tensors(path: Path, content: bytes) -> None:
    """Replace the tensors, with a manifest that names their size and digest."""
    (path / TENSORS_FILE).write_bytes(content)
    about = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    forged(path, lambda manifest: manifest["tensors"].update(about))


def header(text: str, rest: bytes = b"", length: int | None = None) -> bytes:
    """Return a file of tensors with such a head."""
    return struct.pack("<Q", len(text) if length is None else length) + text.encode() + rest


HEADS = {
    "head longer than the file": header("{}", length=2**62),
    "head of 90 MB": header("{}", bytes(100), length=90_000_000),
    "no head": b"",
    "empty head": header(""),
    "huge shape": header('{"weights":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,8]}}', bytes(8)),
    "overflowing shape": header(
        '{"weights":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}', bytes(8)
    ),
    "negative shape": header('{"weights":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}}', bytes(8)),
    "NaN as shape": header('{"weights":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}', bytes(8)),
    "unknown dtype": header('{"weights":{"dtype":"OBJ","shape":[2],"data_offsets":[0,8]}}', bytes(8)),
    "offsets beyond the end": header('{"weights":{"dtype":"F32","shape":[2],"data_offsets":[0,999999]}}', bytes(8)),
    "offsets that overlap": header(
        '{"weights":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
        '"other":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}',
        bytes(12),
    ),
    "deep head": header('{"a":' * 50_000 + "1" + "}" * 50_000),
}

STRUCTURES: dict[str, Any] = {
    "unknown node": {"code": "__import__('os').system('true')"},
    "float that is code": {"float": "__import__('os').getpid()"},
    "number of objects": {"number": 1, "dtype": "object"},
    "array of objects": {"array": "weights", "shape": [5000], "dtype": "object"},
    "tensor outside": {"tensor": "../../../../etc/passwd", "shape": [1], "dtype": "torch.float32"},
    "tensor named by a list": {"tensor": ["weights"], "shape": [5000], "dtype": "torch.int64"},
    "dict that is none": {"dict": 5},
    "items that are none": {"items": [["a"]]},
    "list without end": {"list": [[[[]]]]},
}


def nested(depth: int) -> Any:
    node: Any = 1
    for _ in range(depth):
        node = {"list": [node]}
    return node


def spoilt(marker: Path) -> Iterator[tuple[str, Spoil]]:
    """Yield every way to spoil a saved state, by its name."""
    for name, payload in (*pickles(marker), *zips()):
        yield f"{name} as manifest", lambda path, payload=payload: _write(path / MANIFEST_FILE, payload)
        yield f"{name} as tensors", lambda path, payload=payload: _write(path / TENSORS_FILE, payload)
        yield f"{name} as tensors, digest forged", lambda path, payload=payload: forged_tensors(path, payload)
    for name, content in HEADS.items():
        yield name, lambda path, content=content: forged_tensors(path, content)
    for name, structure in STRUCTURES.items():
        yield name, lambda path, structure=structure: forged(path, lambda one: one.update(structure=structure))
    deep = json.dumps({"format_version": 1, "manifest_sha256": "0" * 64, "manifest": {}, "tensors": {}})
    yield "deep structure", lambda path: forged(path, lambda one: one.update(structure=nested(400)) or _lose(one))
    yield (
        "deep JSON",
        lambda path: forged_text(path, deep[:-1] + ', "structure": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    )
    yield "wide JSON", lambda path: forged_text(path, deep[:-1] + ', "structure": [' + "[]," * 4_000_000 + "1]}")
    for value in (-1, 1e400, "8", None, [8], 10 * 2**30):
        yield f"{value} bytes", lambda path, value=value: forged(path, lambda one: one["tensors"].update(bytes=value))
    yield "tensors elsewhere", lambda path: forged(path, lambda one: one["tensors"].update(file="../../etc/passwd"))
    yield "YAML object", lambda path: _write(path / MANIFEST_FILE, b"!!python/object/apply:os.system ['true']")
    yield "UTF-16", lambda path: _write(path / MANIFEST_FILE, (path / MANIFEST_FILE).read_text().encode("utf-16"))
    yield "10 GiB manifest", lambda path: os.truncate(path / MANIFEST_FILE, 10 * 2**30)
    yield "10 GiB of tensors", _huge_tensors
    yield "manifest is a link", lambda path: _link(path / MANIFEST_FILE, "/etc/passwd")
    yield "tensors are a link to /dev/zero", lambda path: _link(path / TENSORS_FILE, "/dev/zero")
    yield "tensors are a link to themselves", lambda path: _link(path / TENSORS_FILE, TENSORS_FILE)
    yield "manifest is a pipe", lambda path: _pipe(path / MANIFEST_FILE)
    yield "tensors are a folder", lambda path: _folder(path / TENSORS_FILE)


def _lose(content: dict[str, Any]) -> None:
    content["structure"] = {"list": [content["structure"], {"tensor": "gone", "shape": [], "dtype": "torch.float32"}]}


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _huge_tensors(path: Path) -> None:
    with (path / TENSORS_FILE).open("wb") as file:
        file.truncate(10 * 2**30)  # takes no room
    forged(path, lambda content: content["tensors"].update(bytes=10 * 2**30))


def _link(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def malicious() -> dict[str, Any]:
    """B12: every such file is refused within a second, in little memory, and nothing in it has run."""
    longest, count = 0.0, 0
    with folder() as where:
        marker = where / "executed"
        saved = save_state(where / "saved", state(1))
        for name, spoil in spoilt(marker):
            path = fresh_copy(saved, where)
            spoil(path)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            began = time.monotonic()
            try:
                load_state(path)
            except CheckpointError as error:
                refused = str(error)
            else:
                raise AssertionError(f"{name} was not refused")
            longest = max(longest, time.monotonic() - began)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert grown < 200 * 1024, f"{name} took {grown} KiB"
            assert str(path) in refused, name
            assert not marker.exists(), name
            assert not Path("/tmp/twostep-slipped").exists(), name
            count += 1
        checkpoints = TrainingCheckpointer(where / "checkpoints")
        with pytest.raises(CheckpointError, match="There is no checkpoint"):
            checkpoints.load()
    assert longest < 1.0
    return {"files": count, "refused": count, "run": 0, "longest, seconds": round(longest, 3)}
