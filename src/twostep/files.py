"""Files that are replaced in one step."""

from __future__ import annotations

import os
from pathlib import Path


def replace_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text so that whoever reads the file, also after a crash, finds the old text or the new one, whole."""
    path = Path(path)
    beside = path.with_name(f"{path.name}.partial")
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    return path
