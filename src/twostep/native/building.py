"""From C to a function: the machine's own compiler makes a library of it, which is kept for the next time."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from twostep.errors import TwostepError

FLAGS = (
    "-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared", "-w", "-fno-math-errno", "-fno-trapping-math",
    "-fno-signed-zeros", "-fassociative-math", "-ffp-contract=fast",
)  # fmt: skip
"""Sums may be taken in any order; infinity and NaN stay what they are."""
_PATIENCE_S = 120


class BuildError(TwostepError):
    """The C compiler is not there, or did not do what it should."""


def library(source: str, *, alone: bool) -> Any:
    """Compile and load C; `alone`: no other thread of Python runs during its calls, which makes them shorter."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise BuildError("no C compiler was found: install gcc or clang, or name one in CC")
    digest = hashlib.sha256("\n".join((source, compiler, *FLAGS, _machine())).encode()).hexdigest()[:32]
    path = cache_folder() / f"{digest}.so"
    if not path.exists():
        _compile(compiler, source, path)
    return (ctypes.PyDLL if alone else ctypes.CDLL)(str(path))


def cache_folder() -> Path:
    """Return where libraries are kept: a folder of this user alone."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twostep"
    try:
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(base, os.W_OK) and base.stat().st_uid == os.getuid():
            return base
    except OSError:
        pass
    return _folder_of_this_process()


@functools.cache
def _folder_of_this_process() -> Path:
    return Path(tempfile.mkdtemp(prefix="twostep-"))


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
        built.replace(path)


@functools.cache
def _machine() -> str:
    """Tell processors apart, for folders that several machines share."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(line for line in lines[:40] if line.startswith(("model name", "flags", "Features")))
