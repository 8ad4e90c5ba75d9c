# pure: the text of an epoch file
"""An epoch file as it stands, sound or not (`CheckpointFile`; the sound form: `epochmq_protocol.epochs`)."""

from __future__ import annotations

import zlib


def parse(text: str) -> tuple[list[tuple[int, int]], str | None]:
    """The entries, in the file's order, and what is wrong with the file: its count, its checksum, or a line
    that is no entry. Order and overlaps are not looked at here."""
    if not text.strip():
        return [], "empty"
    lines = text.splitlines()
    entries: list[tuple[int, int]] = []
    faults: list[str] = []
    for number, line in enumerate(lines[2:], 3):
        if not line:
            continue
        try:
            epoch, start = line.split("-")
            entries.append((int(epoch), int(start)))
        except ValueError:
            faults.append(f"line {number} is {line[:40]!r}, expected epoch-startOffset")
    try:
        count, checksum = int(lines[0]), int(lines[1])
    except (ValueError, IndexError):
        faults.append("no count and checksum in its first two lines")
    else:
        if count != len(entries):
            faults.append(f"{len(entries)} entries, {count} announced")
        body = "".join(f"{line}\n" for line in lines[2:] if line)
        if checksum and checksum != zlib.crc32(body.encode()) & 0x7FFFFFFF:
            faults.append(f"checksum {checksum} does not fit its lines")
    return entries, "; ".join(faults) or None
