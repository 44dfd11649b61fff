"""Frames over a socket pair: whole, in order, and never waited for longer than asked."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostep.errors import EnvError
from twostep.vector.channels import (
    WITH_MESSAGE,
    Channel,
    ChannelClosed,
    Frame,
    Overdue,
    packed_for_parent,
    packed_for_worker,
    unpacked,
)


def pair():
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    return [Channel(end) for end in ends]


frames = st.tuples(st.integers(0, WITH_MESSAGE - 1), st.none() | st.binary(max_size=300))


@given(sent=st.lists(frames, min_size=1, max_size=6), cuts=st.lists(st.integers(1, 20), min_size=1))
@settings(max_examples=60, deadline=None)
def test_frames_arrive_whole_however_the_stream_is_cut(sent, cuts):
    """E16."""
    ours, theirs = pair()
    raw, wire = socket.socketpair()
    for kind, message in sent:
        ours.send(kind, message, 0.0)
    ours.close()
    stream = b"".join(iter(lambda: theirs.socket.recv(1 << 16), b""))
    reader, found = Channel(wire), []
    wire.setblocking(False)
    while stream:
        length = cuts[len(found) % len(cuts)]
        raw.sendall(stream[:length])
        stream = stream[length:]
        try:
            while True:
                found.append(reader.receive(0.0))
        except Overdue:
            continue
    for end in (theirs, reader):
        end.close()
    raw.close()
    assert found == [Frame(kind, message or b"") for kind, message in sent]


def test_a_message_larger_than_every_buffer_gets_through():
    ours, theirs = pair()
    message = bytes(range(256)) * (1 << 14)
    sender = threading.Thread(target=ours.send, args=(5, message, time.monotonic() + 30))
    sender.start()
    assert theirs.receive(time.monotonic() + 30) == Frame(5, message)
    sender.join()
    ours.close()
    theirs.close()


def test_nothing_waits_longer_than_asked():
    """EB8: neither for an answer nor for room to write."""
    ours, theirs = pair()
    began = time.monotonic()
    with pytest.raises(Overdue):
        ours.receive(began + 0.1)
    with pytest.raises(Overdue):
        ours.send(1, bytes(1 << 22), began + 0.2)
    assert 0.2 <= time.monotonic() - began < 2
    ours.close()
    theirs.close()


def test_the_end_of_the_other_side_is_noticed_at_once():
    """EB8: also in the middle of a frame."""
    ours, theirs = pair()
    theirs.socket.send(bytes([WITH_MESSAGE | 1, 9]))
    theirs.close()
    with pytest.raises(ChannelClosed):
        ours.receive()
    with pytest.raises(ChannelClosed):
        ours.send(1)
    ours.close()


def test_what_travels_and_what_does_not():
    level = 3
    assert unpacked(packed_for_worker(lambda: level + 1, "A function"))() == 4
    assert unpacked(packed_for_parent({"a": (1, None)}, "An info")) == {"a": (1, None)}
    with pytest.raises(EnvError, match=r"A lock cannot be sent to another process: TypeError"):
        packed_for_parent(threading.Lock(), "A lock")
