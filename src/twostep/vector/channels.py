"""What a VectorEnv and its worker processes say to each other, over a pair of sockets that nobody else can reach.

A frame is one byte, which says what it is, and, where that byte has `WITH_MESSAGE` set, eight bytes of length and a
pickled message. Pickles are read here and nowhere else in twostep: both ends are processes that one program started,
and no file and no network comes near them.
"""

from __future__ import annotations

import importlib
import pickle
import select
import socket
import struct
import time
from typing import Any, NamedTuple

from twostep.errors import EnvError

WITH_MESSAGE = 0x80
_cloudpickle: Any = importlib.import_module("cloudpickle")  # comes with Gymnasium, and without types
_LENGTH = struct.Struct("<Q")
_HEAD = 1 + _LENGTH.size
_PIECE = 1 << 16


class ChannelClosed(Exception):  # noqa: N818 - not an error: it is how the end of a process is noticed
    """The process at the other end is gone."""


class Overdue(Exception):  # noqa: N818 - not an error: the caller decides what a silent process is worth
    """The process at the other end has not answered in time."""


class Frame(NamedTuple):
    """One thing said."""

    kind: int
    message: bytes = b""


class Channel:
    """One end of a socket pair.

    On a socket that does not block, nothing waits longer than a deadline, a time of `time.monotonic`.
    """

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._arrived = bytearray()

    def send(self, kind: int, message: bytes | None = None, deadline: float | None = None) -> None:
        """Send a frame, with a message unless it is None."""
        frame = bytes([kind]) if message is None else bytes([kind | WITH_MESSAGE]) + _LENGTH.pack(len(message))
        rest = memoryview(frame + (message or b""))
        while rest:
            rest = rest[self._send_some(rest) :]
            if rest:
                self._wait(select.POLLOUT, deadline)

    def _send_some(self, piece: memoryview) -> int:
        try:
            return self.socket.send(piece)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ChannelClosed from error

    def receive(self, deadline: float | None = None) -> Frame:
        """Return the next frame."""
        while True:
            frame = self._next_frame()
            if frame is not None:
                return frame
            try:
                piece = self.socket.recv(_PIECE)
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)
                continue
            except OSError as error:
                raise ChannelClosed from error
            if not piece:
                raise ChannelClosed
            self._arrived += piece

    def _next_frame(self) -> Frame | None:
        arrived = self._arrived
        if not arrived:
            return None
        kind = arrived[0]
        end = 1
        if kind & WITH_MESSAGE:
            if len(arrived) < _HEAD:
                return None
            end = _HEAD + _LENGTH.unpack_from(arrived, 1)[0]
            if len(arrived) < end:
                return None
        message = bytes(arrived[_HEAD:end])
        del arrived[:end]
        return Frame(kind & ~WITH_MESSAGE, message)

    def _wait(self, event: int, deadline: float | None) -> None:
        poller = select.poll()
        poller.register(self.socket, event)
        if not poller.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000):
            raise Overdue

    def close(self) -> None:
        """Let go of this end."""
        self.socket.close()


def packed_for_worker(message: Any, what: str) -> bytes:
    """Return a message as bytes; functions and classes that a new process cannot import travel with their code."""
    try:
        return _cloudpickle.dumps(message)
    except Exception as error:
        raise EnvError(
            f"{what} cannot be sent to another process: {type(error).__name__}: {error}. "
            f"Make what cannot travel (open files, locks, simulators) inside the function that makes the environment."
        ) from error


def packed_for_parent(message: Any, what: str) -> bytes:
    """Return a message as bytes, quickly where nothing in it came from `packed_for_worker` with its code."""
    try:
        return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return packed_for_worker(message, what)


def unpacked(message: bytes) -> Any:
    """Return the message that was made into bytes."""
    return pickle.loads(message)
