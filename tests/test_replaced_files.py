"""A file is replaced in one step, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from twostep.files import replace_text


def test_readers_find_the_old_text_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """E29: also where the process ends between writing and renaming."""
    path = tmp_path / "best.json"
    assert replace_text(path, "old") == path
    real, found = os.replace, []

    def watched(source: Path, target: Path) -> None:
        found.append((Path(source).read_text(), Path(target).read_text()))
        real(source, target)

    monkeypatch.setattr(os, "replace", watched)
    replace_text(path, "new ü")
    assert found == [("new ü", "old")]
    assert path.read_text(encoding="utf-8") == "new ü"

    def killed(*_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        replace_text(path, "half")
    assert path.read_text(encoding="utf-8") == "new ü"
