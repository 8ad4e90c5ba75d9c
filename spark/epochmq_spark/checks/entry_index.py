# pure: entries of a DLedger log against its index files
"""Compares the entries of a DLedger log with the units of its index files (`DLedgerMmapFileStore`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from epochmq_spark.checks.consume_queues import LISTED_MAX, HoleRanges
from epochmq_spark.findings import finding

Row = dict[str, Any]


@dataclass(frozen=True)
class EntryPlace:
    """Where an entry lies in the data files, its size with the header, and its term; by its header, or by its
    unit. A unit that is not one of its place has a negative size."""

    position: int
    size: int
    term: int


@dataclass(frozen=True)
class EntryLimits:
    """What to expect. Entries up to `last_index` exist, and those before `unit_end` must have units. Holes
    are ranges of the log without a valid entry."""

    log_start: int
    last_index: int
    unit_end: int
    holes: HoleRanges


def compare_entries(
    who: tuple[str, str],
    entries: Sequence[tuple[int, EntryPlace]],
    units: Mapping[int, EntryPlace],
    limits: EntryLimits,
) -> list[Row]:
    """Findings for a range of indexes of the replica `who`, (group, name). `entries` are all entries of the
    log in that range, with their indexes. Units behind the last entry were left by a truncation."""
    findings: list[Row] = []
    by_index = dict(entries)
    for index, unit in sorted(units.items()):
        entry = by_index.get(index)
        columns: Row = {"queue_offset": index, "start_offset": unit.position}
        if index > limits.last_index:
            break
        if entry is not None and unit != entry:
            columns["start_offset"] = entry.position
            detail = _difference(unit, entry)
            findings.append(finding(*who, "dledger.wrong-unit", **columns, detail=detail))
        elif entry is None and unit.position >= limits.log_start and not limits.holes.contain(unit.position):
            findings.append(finding(*who, "dledger.no-entry", **columns))
    for index, entry in sorted(by_index.items()):
        if index not in units and index < limits.unit_end:
            columns = {"start_offset": entry.position, "end_offset": entry.position + entry.size}
            findings.append(finding(*who, "dledger.missing-unit", queue_offset=index, **columns))
    if len(findings) > LISTED_MAX:
        detail = f"{len(findings) - LISTED_MAX} of the index of entries"
        findings = [*findings[:LISTED_MAX], finding(*who, "more", detail=detail)]
    return findings


def _difference(unit: EntryPlace, entry: EntryPlace) -> str:
    if unit.size < 0:
        return "its magic number or its index is not that of a unit in this place"
    names = ("position", "size", "term")
    return "; ".join(
        f"{name} {getattr(unit, name)}, the entry has {getattr(entry, name)}"
        for name in names
        if getattr(unit, name) != getattr(entry, name)
    )
