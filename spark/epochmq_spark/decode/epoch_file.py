# pure: the text of an epoch file
"""Parses an epoch file, valid or not (`CheckpointFile`). `epochmq_protocol` parses valid files only."""

from __future__ import annotations

import zlib
from typing import Final

from epochmq_protocol.integers import LONG_MAX

LINES_MAX: Final = 100_000  # a line is an election
FAULTS_MAX: Final = 10  # lines that are named
DIGITS_MAX: Final = 19  # of a long


def parse_epoch_text(text: str) -> tuple[list[tuple[int, int]], str | None]:
    """The entries (epoch, start offset) in the file's order, and what is wrong with the file: its count, its
    checksum, or a line that is not an entry of two longs. Order and overlaps are not checked."""
    if not text.strip():
        return [], "empty"
    lines = text.splitlines()
    if len(lines) > LINES_MAX:
        return [], f"{len(lines)} lines, expected at most {LINES_MAX}"
    entries: list[tuple[int, int]] = []
    faults: list[str] = []
    broken = 0
    for number, line in enumerate(lines[2:], 3):
        if not line:
            continue
        try:
            epoch, start = (_long(part) for part in line.split("-"))
            entries.append((epoch, start))
        except ValueError:
            broken += 1
            if broken <= FAULTS_MAX:
                faults.append(f"line {number} is {line[:40]!r}, expected epoch-startOffset")
    if broken > FAULTS_MAX:
        faults.append(f"{broken - FAULTS_MAX} more such lines")
    try:
        count, checksum = int(lines[0]), int(lines[1])
    except (ValueError, IndexError):
        faults.append("the first two lines are not a count and a checksum")
    else:
        if count != len(entries):
            faults.append(f"{len(entries)} entries, but the count is {count}")
        body = "".join(f"{line}\n" for line in lines[2:] if line)
        if checksum and checksum != zlib.crc32(body.encode()) & 0x7FFFFFFF:
            faults.append(f"checksum {checksum} does not match the lines")
    return entries, "; ".join(faults) or None


def _long(text: str) -> int:
    """A number as RocketMQ's `Long.parseLong` reads it, but not negative. Raises ValueError."""
    if len(text) > DIGITS_MAX or not text.isdecimal() or int(text) > LONG_MAX:
        raise ValueError(text[:DIGITS_MAX])
    return int(text)
