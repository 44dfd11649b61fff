"""One process at a time trains in the folder of a run."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from twostep.errors import ConfigError

try:
    import fcntl
except ImportError:  # Windows: the process number alone must do
    fcntl = None

LOCK_FILE = ".lock"
_LARGEST = 4096


class RunLock:
    """Holds the folder of a run until it is left; a process that ended without leaving it holds nothing.

    The file says who holds it: process, its start, host. The system's own lock on the file decides who comes first;
    where a file system has none, or the holder is on another host, what the file says does.

    Raises:
        ConfigError: Another process trains there.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_FILE
        self._file: int | None = None

    def __enter__(self) -> RunLock:
        while self._file is None:
            try:
                file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise ConfigError(f"{self.path} cannot be made: {error.strerror}. Choose another folder.") from error
            try:
                self._take(file)
            except BaseException:
                os.close(file)
                raise
        return self

    def _take(self, file: int) -> None:
        is_ours = _locked(file)
        holder = _read(file)
        if not is_ours or _holds(holder):
            raise ConfigError(
                f"{self.path.parent} is in use: process {holder.get('pid', '?')} on {holder.get('host', '?')} trains "
                f"there since {holder.get('since', '?')}. Wait for it or stop it; if it is gone for certain, delete "
                f"{self.path}."
            )
        if not _is_at(file, self.path):  # whoever held it has deleted it meanwhile
            os.close(file)
            return
        about = {"pid": os.getpid(), "started": start_of(os.getpid()), "host": platform.node()}
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps({**about, "since": time.strftime("%Y-%m-%d %H:%M:%S")}).encode(), 0)
        self._file = file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        file, self._file = self._file, None
        if file is not None:
            self.path.unlink(missing_ok=True)
            os.close(file)


def _locked(file: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _read(file: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(file, _LARGEST, 0) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _holds(holder: dict[str, Any]) -> bool:
    """Say whether the process that wrote the file still runs; one on another host may."""
    if not holder:
        return False
    if holder.get("host") != platform.node():
        return True
    pid, started = holder.get("pid"), holder.get("started")
    if not isinstance(pid, int) or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    now = start_of(pid)
    return now is None or started is None or now == started


def start_of(pid: int) -> int | None:
    """Return when a process began, in ticks of the system's clock; None where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except OSError:
        return False
