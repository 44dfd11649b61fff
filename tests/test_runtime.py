"""What is asked of the machine: of glibc alone, once asked for, and never by importing."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from twostep import runtime


class RecordingLibrary:
    def __init__(self):
        self.calls = []

    def mallopt(self, option, value):
        self.calls.append((option, value))
        return 1


def test_freed_memory_is_kept_from_now_on(monkeypatch):
    """mallopt(M_MMAP_THRESHOLD = -3) and mallopt(M_TRIM_THRESHOLD = -1), both half a gigabyte."""
    library = RecordingLibrary()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    runtime.keep_freed_memory()
    assert sorted(library.calls) == [(-3, 2**29), (-1, 2**29)]


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_left_alone(monkeypatch, platform):
    library = RecordingLibrary()
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    runtime.keep_freed_memory()
    assert library.calls == []


def test_other_c_libraries_are_left_alone(monkeypatch):
    """Musl has no mallopt."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    runtime.keep_freed_memory()


def test_importing_asks_for_nothing():
    program = "import ctypes; ctypes.CDLL = None; import twostep.runtime; print('imported')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "imported\n", done.stderr
