"""What is asked of the machine: of glibc alone, once asked for, and never by importing."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest
import torch

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
    program = (
        "import ctypes, torch; calls = []; ctypes.CDLL = lambda *given: calls.append(given); import twostep.runtime; "
        "print(calls, torch.get_float32_matmul_precision())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[] highest\n", done.stderr


@pytest.mark.parametrize(
    ("samples", "device", "exact", "expected"),
    [(1024, "cpu", True, "medium"), (1023, "cpu", True, "highest"), (9999, "cuda", True, "highest"),
     (9999, "cpu", False, "highest")],
)  # fmt: skip
def test_the_other_kernel_is_for_large_products_where_it_is_exact(monkeypatch, samples, device, exact, expected):
    """And the process is left as it was, after an error too."""
    monkeypatch.setattr(runtime, "_stays_exact", lambda: exact)
    seen = []

    def learn():
        with runtime.fast_products(samples, torch.device(device)):
            seen.append(torch.get_float32_matmul_precision())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn()
    assert seen == [expected]
    assert torch.get_float32_matmul_precision() == "highest"


def test_what_is_called_exact_is_exact():
    """Whatever this processor does, large products keep single precision."""
    a, b = torch.randn(2, 1024, 1024, generator=torch.Generator().manual_seed(1))
    with runtime.fast_products(1024, torch.device("cpu")):
        product = a @ b
    exact = a.double() @ b.double()
    assert ((product - exact).abs().max() / exact.abs().max()).item() < 2e-6
    assert torch.get_float32_matmul_precision() == "highest"


def test_small_networks_compute_in_one_thread_for_a_while(monkeypatch):
    """One thread inside, as many as before outside; the environment's word and large networks change nothing."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    small, large, cpu = torch.nn.Linear(2, 2), torch.nn.Linear(600, 600), torch.device("cpu")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with runtime.suitable_threads(small, cpu):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with runtime.suitable_threads(large, cpu):
            assert torch.get_num_threads() == 2
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        with runtime.suitable_threads(small, cpu):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
