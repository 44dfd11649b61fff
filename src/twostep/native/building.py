"""From C to a function: the machine's own compiler makes a library of it, which is kept for the next time."""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from twostep.errors import TwostepError

_NATIVE = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
FLAGS = (
    "-O3", _NATIVE, "-std=gnu11", "-fPIC", "-shared", "-w", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=fast",
)  # fmt: skip
"""Infinity and NaN stay what they are; sums are taken in another order only where the code says so."""
_PATIENCE_S = 120


class BuildError(TwostepError):
    """The C compiler is not there, or did not do what it should."""


def library(source: str, *, alone: bool) -> Any:
    """Compile and load C; `alone`: no other thread of Python runs during its calls, which makes them shorter.

    Raises:
        BuildError: There is no compiler, or no place for what it makes, or it fails.
    """
    compiler = os.environ.get("CC", shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"))
    if not compiler:
        raise BuildError("no C compiler was found: install gcc or clang, or name one in CC (CC= means none)")
    digest = hashlib.sha256("\n".join((source, compiler, *FLAGS, _machine())).encode()).hexdigest()[:32]
    load = ctypes.PyDLL if alone else ctypes.CDLL
    try:
        path = cache_folder() / f"{digest}.so"
        if path.exists():
            with suppress(OSError):  # of a machine that went down while it was written: made anew
                return load(str(path))
        _compile(compiler, source, path)
        return load(str(path))
    except OSError as error:
        raise BuildError(f"the library could not be kept or loaded: {error}") from error


def cache_folder() -> Path:
    """Return where libraries are kept: a folder of this user alone."""
    with suppress(OSError, RuntimeError):  # nobody's home, or one that cannot be written to
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twostep"
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = base.stat()
        if os.access(base, os.W_OK) and about.st_uid == os.getuid() and not about.st_mode & 0o022:
            return base
    return _folder_of_this_process()


@functools.cache
def _folder_of_this_process() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="twostep-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _compile(compiler: str, source: str, path: Path) -> None:
    """Let the library appear whole or not at all, whoever else builds it at the same time."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as folder:
        code, built = Path(folder) / "code.c", Path(folder) / "code.so"
        code.write_text(source)
        command = [*compiler.split(), *FLAGS, str(code), "-o", str(built), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            raise BuildError(f"{compiler} could not be run: {error}") from error
        if done.returncode:
            raise BuildError(f"{compiler} failed: {done.stderr[-500:]}")
        with built.open("rb") as file:
            os.fsync(file.fileno())
        built.replace(path)


@functools.cache
def _machine() -> str:
    """Tell processors apart, for folders that several machines share."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(line for line in lines[:40] if line.startswith(("model name", "flags", "Features")))
