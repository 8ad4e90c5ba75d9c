# pure: values
"""Describes what a scan of the commit log has found."""

from __future__ import annotations

from msgspec import Struct

from epochmq_store.log.damaged_ranges import DamagedRange


class ScannedPiece(Struct, frozen=True):
    """Whole records in [start, end) of the log, and the CRC-32 of these bytes."""

    start: int
    end: int
    crc: int


class ScannedUnit(Struct, frozen=True):
    """The result of a scan of [start, end) of the log. Both ends are starts of records. The pieces and the
    damaged ranges cover it in order, without the unused bytes behind a blank record."""

    start: int
    end: int
    pieces: tuple[ScannedPiece, ...]
    damaged: tuple[DamagedRange, ...]
