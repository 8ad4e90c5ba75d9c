"""Reads the records of queue units from the files of the commit log, on a worker thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from epochmq_broker.services.compaction.keyed_records import KeyedRecord, keyed_record

READ_MAX_BYTES: Final = 4 << 20
"""Adjacent records are read together up to so many bytes."""


class LoggedRecord(NamedTuple):
    """Where a record is: at position `at` of a log file that begins with the physical offset `start`."""

    path: Path
    start: int
    at: int
    size: int


def read_keyed_records(
    places: Iterable[LoggedRecord], faulty: Callable[[LoggedRecord, bytes, Exception], None]
) -> list[KeyedRecord]:
    """The records at these places that have keys. Files that have expired meanwhile are skipped. `faulty` is
    called with each record that cannot be read: its place, its bytes and the error. Raises OSError."""
    keyed = []
    for piece in _adjacent(places):
        first = piece[0]
        try:
            data = _read(first.path, first.at, piece[-1].at + piece[-1].size - first.at)
        except FileNotFoundError:
            continue
        for place in piece:
            at = place.at - first.at
            found = data[at : at + place.size]
            try:
                record = keyed_record(found, place.start + place.at)
            except Exception as error:
                faulty(place, found, error)
                continue
            if record is not None:
                keyed.append(record)
    return keyed


def _adjacent(places: Iterable[LoggedRecord]) -> Iterator[list[LoggedRecord]]:
    piece: list[LoggedRecord] = []
    for place in places:
        if piece:
            last = piece[-1]
            adjacent = place.path == last.path and place.at == last.at + last.size
            if not adjacent or place.at + place.size - piece[0].at > READ_MAX_BYTES:
                yield piece
                piece = []
        piece.append(place)
    if piece:
        yield piece


def _read(path: Path, at: int, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, at)
    finally:
        os.close(descriptor)
