"""Replays in files: read with care, for they may come from strangers, and written whole or not at all."""

from __future__ import annotations

import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twostep.errors import ConfigError, TwostepError
from twostep.replay.checks import check_replay
from twostep.worlds.skirmish import load_replay

MOST_BYTES = 64 * 2**20
"""Of a replay, packed and unpacked: some twenty thousand frames of forty units."""
_MOST_PARTS, _LONGEST_HEADER = 64, 512
_ENCRYPTED = 1
_HEADER = re.compile(
    rb"\x93NUMPY\x01\0(?P<length>..)\{'descr': '[<>|][biuf](?P<bytes>\d)', 'fortran_order': (?:False|True), "
    rb"'shape': \((?P<shape>[\d, ]*)\), \} *\n",
    re.DOTALL,
)
"""An array of numbers as numpy writes it; other headers, objects among them, are not even given to numpy."""
_UNREADABLE = (
    *(OSError, ValueError, EOFError, OverflowError, NotImplementedError, RecursionError),
    *(struct.error, zipfile.BadZipFile, zlib.error),
)
"""What damaged files make the readers of zip, numpy and JSON raise."""


def read_replay(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a replay of skirmish, or say in an error what is wrong with the file; nothing in it can do harm."""
    file = Path(path)
    try:
        _check_archive(file)
        replay = load_replay(file)
    except FileNotFoundError:
        raise ConfigError(f"there is no file {file}: give a replay, a file that ends with .npz.") from None
    except _UNREADABLE as error:
        if isinstance(error, TwostepError):
            raise
        about = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(f"{file} is no replay, or it is damaged: {about}. Record the match again.") from error
    check_replay(replay, str(file))
    return replay


@contextmanager
def writing(target: Path) -> Generator[Path]:
    """Give a path to write to; what was written there becomes `target` at the end, and is gone after an error."""
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield part
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror or error}. Choose another place.") from error


def _check_archive(file: Path) -> None:
    """Look at what the file claims to hold, before anything of that size is made."""
    if not file.exists():
        raise FileNotFoundError(file)
    if not file.is_file():
        raise ConfigError(f"{file} is no file: give a replay, a file that ends with .npz.")
    size = file.stat().st_size
    if size > MOST_BYTES:
        raise ConfigError(f"{file} has {size:,} bytes, but no replay has more than {MOST_BYTES:,}. Give a replay.")
    with zipfile.ZipFile(file) as archive:
        parts = archive.infolist()
        total = sum(part.file_size for part in parts)
        if len(parts) > _MOST_PARTS or total > MOST_BYTES:
            raise ValueError(f"{len(parts)} parts of {total:,} bytes in all are more than a replay has")
        for part in parts:
            _check_part(archive, part)


def _check_part(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> None:
    """Refuse what is not a plain array of numbers, all of which are there."""
    if part.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or part.flag_bits & _ENCRYPTED:
        raise ValueError(f"{part.filename} is packed in a way that replays are not")
    with archive.open(part) as stream:
        header = _HEADER.match(stream.read(_LONGEST_HEADER))
    if header is None or header.end() - header.end("length") != int.from_bytes(header["length"], "little"):
        raise ValueError(f"{part.filename} is no array of numbers")
    shape = [int(side) for side in header["shape"].replace(b",", b" ").split()]
    if math.prod(shape, start=int(header["bytes"])) != part.file_size - header.end():
        raise ValueError(f"{part.filename} claims the shape {shape}, which is not what is there")
