"""What a checkpoint says of the program that wrote it."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch


@cache
def provenance(folder: Path | None = None) -> dict[str, Any]:
    """Return the versions of Python and torch, and the state of git in a folder, or in the working directory."""
    return {"python": platform.python_version(), "torch": torch.__version__, "git": git_state(folder or Path.cwd())}


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit that is checked out in a folder, and whether files differ from it; None without git."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    asked = ["git", "-C", str(folder), *words]
    return subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
