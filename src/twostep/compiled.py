"""Recordings turned into machine code, once a run has proved to be long.

A compiler takes a second, on another core, and gives other last digits than the recording that it replaces. So that a
run can be repeated and gone on with to the last bit, the moment of the change is counted in calls, never in seconds,
and is part of the state of whoever calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from twostep.native import NativeCall, lowered, machine_code
from twostep.recorded import ONE_AT_A_TIME, Recorded, Recording, signature
from twostep.tree import Tree

_LOG = logging.getLogger(__name__)
_AGREEMENT = 1e-4
"""How far compiled results may be from recorded ones, in parts of the largest number; a fault is much further off."""
_SMALL = 0.05
"""Below this, numbers are means of larger ones, which rounding may move by more than a part of what is left."""
_MOST_SHAPES = 6
"""How many shapes are compiled: where there are more, because minibatches change their size, the rest stay recorded."""
_HEAD_START = 0.5
"""At which part of the calls until the change the compiler is started."""
_COMPILING = ThreadPoolExecutor(1, thread_name_prefix="twostep-compiling")


class Compiled(Recorded):
    """A recorded function that goes over to machine code after so many calls with the same shapes.

    Where there is no compiler, or the code does not agree with the recording, the recording stays.
    """

    def __init__(
        self, module: nn.Module, fn: Callable[[Tree], Tree], generator: torch.Generator | None = None, *, after: float
    ) -> None:
        """See `Recorded`. `after`: how many calls with the same shapes; infinity keeps to the recording."""
        super().__init__(module, fn, generator)
        self.after = after
        self._made: dict[Any, Future[NativeCall | None]] = {}
        self._over: set[Any] = set()
        self._before: dict[str, int] = {}
        """Calls that were made before a state was saved, by signatures in words; -1 for what had gone over."""

    def notice_changes(self) -> None:
        """See `Recorded`; what was made of tensors that are gone is forgotten."""
        super().notice_changes()
        self._made = {called: code for called, code in self._made.items() if called in self.recordings}
        self._over &= self.recordings.keys()

    def recording(self, tree: Tree, key: Any = None) -> Recording | None:
        """See `Recorded`; where its time has come, what it returns is machine code from now on."""
        called = signature(tree, key)
        recording = self.recordings.get(called)
        if recording is None:
            if str(called) not in self._before:
                return None
            recording = self._taken_up(called, tree)
        if recording is not None and recording.calls >= self.after * _HEAD_START and called not in self._over:
            self._advance(called, recording)
        return recording

    def state_dict(self) -> dict[str, int]:
        """Return how often each signature was called, in words; -1 for what went over."""
        calls = {str(called): -1 if called in self._over else one.calls for called, one in self.recordings.items()}
        return self._before | calls

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there: what ran compiled is compiled at once when it is needed."""
        self._before = dict(state)

    def _taken_up(self, called: Any, tree: Tree) -> Recording | None:
        """Record at once what had been recorded when a state was saved."""
        calls = self._before.pop(str(called))
        random = None if self.generator is None else self.generator.get_state()
        self._record(called, tree, self._called(tree))
        if random is not None and self.generator is not None:
            self.generator.set_state(random)
        recording = self.recordings.get(called)
        if recording is not None:
            recording.calls = calls
            if calls < 0:
                self._begin(called, recording)
                self._go_over(called, recording)
        return recording

    def _advance(self, called: Any, recording: Recording) -> None:
        if called not in self._made and len(self._made) < _MOST_SHAPES:
            self._begin(called, recording)
        if recording.calls >= self.after and called in self._made:
            self._go_over(called, recording)

    def _begin(self, called: Any, recording: Recording) -> None:
        with ONE_AT_A_TIME:
            disposable = len(recording.draws or ())
            lowering = None if recording.exchange else lowered(recording.graph, recording.examples, disposable)
        made: Future[NativeCall | None] = Future()
        if lowering is None:
            made.set_result(None)
        else:
            made = _COMPILING.submit(machine_code, lowering)
        self._made[called] = made

    def _go_over(self, called: Any, recording: Recording) -> None:
        """Let a recording run as machine code, if that works and gives the same numbers up to rounding."""
        self._over.add(called)
        code = self._made[called].result()
        if code is None:
            return
        with torch.no_grad():
            expected = recording.operations(*[example.clone() for example in recording.examples])
            found = code(*[example.clone() for example in recording.examples])
        if all(_near(one, other) for one, other in zip(found, expected, strict=True)):
            recording.operations = code
        else:
            _LOG.warning("compiled code does not agree with what it was made from, and is not used")


def _near(compiled: Tensor, expected: Tensor) -> bool:
    largest = float(expected.abs().max()) if expected.numel() else 0.0
    return bool(((compiled - expected).abs() <= _AGREEMENT * max(largest, _SMALL)).all())
