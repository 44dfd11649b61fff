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
_SHORT = [bytes([kind]) for kind in range(256)]


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

    With patience, every call of the system waits so long by itself, which is the quickest way where answers come soon,
    and no call of `send` or `receive` waits much longer than its deadline, a time of `time.monotonic`.
    """

    def __init__(self, end: socket.socket, patience: float | None = None) -> None:
        self.socket = end
        self._arrived = bytearray()
        if patience is not None:
            seconds, fraction = divmod(patience, 1)
            interval = struct.pack("ll", int(seconds), int(fraction * 1e6))
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)

    def send(self, kind: int, message: bytes | None = None, deadline: float | None = None) -> None:
        """Send a frame, with a message unless it is None."""
        if message is None:
            rest: bytes | memoryview = _SHORT[kind]
        else:
            rest = memoryview(_SHORT[kind | WITH_MESSAGE] + _LENGTH.pack(len(message)) + message)
        while True:
            sent = self._send_some(rest)
            if sent == len(rest):
                return
            rest = rest[sent:]
            self._wait(select.POLLOUT, deadline)

    def _send_some(self, piece: bytes | memoryview) -> int:
        try:
            return self.socket.send(piece)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ChannelClosed from error

    def receive(self, deadline: float | None = None) -> Frame:
        """Return the next frame."""
        while True:
            frame = self.receive_soon()
            if frame is not None:
                return frame
            self._wait(select.POLLIN, deadline)

    def receive_soon(self) -> Frame | None:
        """Return the next frame; None where it is not whole after the patience of one call of the system."""
        arrived = self._arrived
        if arrived:
            frame = self._next_frame()
            if frame is not None:
                return frame
        try:
            piece = self.socket.recv(_PIECE)
        except BlockingIOError:
            return None
        except OSError as error:
            raise ChannelClosed from error
        if len(piece) == 1 and not arrived and piece[0] < WITH_MESSAGE:
            return Frame(piece[0])
        if not piece:
            raise ChannelClosed
        arrived += piece
        return self._next_frame()

    def _next_frame(self) -> Frame | None:
        arrived = self._arrived
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
