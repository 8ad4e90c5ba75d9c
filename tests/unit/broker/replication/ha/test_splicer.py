"""Tests the moving of bytes from a socket into a file by `splice`."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochmq_broker.replication.ha.splicer import SocketToFileSplicer

BODY = bytes(range(256)) * 1024


class Way:
    """A socket to write to, a splicer at its other end, and a file of zeros."""

    def __init__(self, path: Path) -> None:
        self.near, self._far = socket.socketpair()
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * len(BODY))
        self._far.setblocking(False)
        self.passage = SocketToFileSplicer(self._far.fileno())
        self.path = path
        path.write_bytes(bytes(2 * len(BODY)))
        self.file = os.open(path, os.O_RDWR)

    def close(self) -> None:
        """Closes everything that was opened."""
        self.passage.close()
        os.close(self.file)
        self.near.close()
        self._far.close()

    def take(self, at: int, most: int) -> int:
        """Moves bytes until no more arrive, or until `most` were moved."""
        done = 0
        while done < most and (count := self.passage.splice(self.file, at + done, most - done)):
            done += count
        return done


@pytest.fixture
def way(tmp_path: Path) -> Iterator[Way]:
    made = Way(tmp_path / "file")
    yield made
    made.close()


def test_arrived_bytes_are_moved_to_their_position(way: Way) -> None:
    way.near.sendall(BODY[:5000])
    assert way.take(100, 4000) == 4000
    assert way.take(4100, 4000) == 1000
    found = way.path.read_bytes()
    assert found[100:5100] == BODY[:5000]
    assert not any(found[:100])
    assert not any(found[5100:])


def test_nothing_is_moved_without_bytes_or_after_the_peer_has_closed(way: Way) -> None:
    assert way.take(0, 100) == 0
    way.near.close()
    assert way.take(0, 100) == 0
    assert way.passage.is_supported


def test_a_file_system_without_splice_gets_the_bytes_by_write(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes that had left the socket by then are not lost."""
    real = os.splice

    def refuse(*args: int, offset_dst: int | None = None, flags: int = 0) -> int:
        if offset_dst is not None:
            raise OSError(errno.EINVAL, "this file system does not splice")
        return real(*args, flags=flags)

    monkeypatch.setattr(os, "splice", refuse)
    way.near.sendall(BODY[:9000])
    moved = way.passage.splice(way.file, 0, 9000)
    assert moved > 0
    assert not way.passage.is_supported
    assert way.path.read_bytes()[:moved] == BODY[:moved]


def test_a_socket_that_cannot_be_spliced_keeps_its_bytes(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: int, **options: int) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(os, "splice", refuse)
    way.near.sendall(BODY[:10])
    assert way.passage.splice(way.file, 0, 10) == 0
    assert not way.passage.is_supported


def test_a_disk_error_is_raised(way: Way) -> None:
    way.near.sendall(BODY[:10])
    with pytest.raises(OSError, match="Bad file descriptor"):
        way.passage.splice(-1, 0, 10)
