"""The clock that every library is measured with."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path


class EnoughMeasured(Exception):  # noqa: N818 - no error, a way out
    """Ends the training loop of a library that offers no other way out."""


class Meter:
    """Counts finished updates: some to warm up, then as many as fit into the measured time.

    Args:
        steps_per_update: Environment steps in one update, over all rows.
        started: When the process was started, in seconds since the epoch.
        warm_up: Seconds before the clock starts; at least one update passes in any case.
        measure: Seconds on the clock; at least two updates pass in any case.
    """

    def __init__(self, steps_per_update: int, started: float, warm_up: float, measure: float) -> None:
        self._steps_per_update = steps_per_update
        self._started = started
        self._warm_up = warm_up
        self._measure = measure
        self._updates = 0
        self._first_at = 0.0
        self._clock_started = 0.0
        self._clock_updates = 0
        self._clock_cpu = 0.0
        self._elapsed = 0.0
        self._elapsed_cpu = 0.0
        self.seconds_to_first_update = 0.0

    def update_done(self) -> bool:
        """Count one finished update and return whether to go on."""
        now = time.perf_counter()
        self._updates += 1
        if self._updates == 1:
            self.seconds_to_first_update = time.time() - self._started
            self._first_at = now
        if not self._clock_started:
            if now - self._first_at >= self._warm_up:
                self._clock_started, self._clock_updates = now, self._updates
                self._clock_cpu = time.process_time()
            return True
        self._elapsed = now - self._clock_started
        self._elapsed_cpu = time.process_time() - self._clock_cpu
        return self._elapsed < self._measure or self._updates - self._clock_updates < 2

    def result(self) -> dict[str, float]:
        """Return what was measured; steps per second of processor time tell something on a busy machine, too."""
        measured = self._updates - self._clock_updates
        return {
            "steps_per_second": measured * self._steps_per_update / self._elapsed,
            "steps_per_cpu_second": measured * self._steps_per_update / self._elapsed_cpu,
            "updates": measured,
            "seconds_to_first_update": self.seconds_to_first_update,
            "peak_mb": peak_memory_mb(),
        }


def peak_memory_mb() -> float:
    """Return the largest resident size that this process has had.

    Linux hands a parent's peak down to its children through `getrusage`, so the kernel's own count comes first.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
