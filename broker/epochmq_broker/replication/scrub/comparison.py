# pure: checksums in, decisions out
"""Decides what the checksums of a group's replicas say about the parts of one unit of the log.

Every replica has the same bytes below the confirmed offset. So a part that is whole here and has another
checksum elsewhere was changed on one of the disks, and the majority says on which, if there is one. A part
that is broken here is repaired from replicas that have whole records there, and are known to have the same
log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from epochmq_store.log.damaged_ranges import DamagedRange
from epochmq_store.log.scanned_unit import ScannedUnit

REPAIRED_BYTES_MAX = 64 << 20
"""A larger range is not repaired: so much of it is held in memory."""
PARTS_MAX = 1024
"""The most parts of one request. Damage behind them is left for the next pass."""


class Part(Struct, frozen=True):
    """A range of the log that is compared as a whole. `crc` is the checksum here; None if it is broken
    here."""

    start: int
    end: int
    crc: int | None


PeerChecksums = Mapping[str, Sequence[int]]
"""The checksums of a unit's parts by the address of the replica that sent them."""


def parts_of(unit: ScannedUnit) -> list[Part]:
    """The first PARTS_MAX parts of a unit, in order. Damaged ranges too large to be repaired are left out."""
    found = [Part(one.start, one.end, one.crc) for one in unit.pieces]
    found += [Part(one.start, one.end, None) for one in unit.damaged if one.size <= REPAIRED_BYTES_MAX]
    return sorted(found, key=lambda one: one.start)[:PARTS_MAX]


def sources(parts: Sequence[Part], number: int, peers: PeerChecksums) -> list[list[str]]:
    """The replicas from which a broken part may be repaired, in groups with equal bytes, the largest group
    first. Two replicas agree in a group, or one has the same bytes as this broker in the whole parts beside
    the broken one."""
    beside = [at for at in (number - 1, number + 1) if 0 <= at < len(parts) and parts[at].crc is not None]
    groups: dict[int, list[str]] = {}
    known: set[int] = set()
    for address, crcs in peers.items():
        groups.setdefault(crcs[number], []).append(address)
        if all(crcs[at] == parts[at].crc for at in beside):
            known.add(crcs[number])
    trusted = (group for crc, group in groups.items() if len(group) > 1 or crc in known)
    return sorted(trusted, key=len, reverse=True)


def chosen(whole: Sequence[Sequence[str]]) -> Sequence[str] | None:
    """The group to repair from, of those whose bytes are whole records; None if no bytes have a majority of
    the replicas with whole records."""
    by_size = sorted(whole, key=len, reverse=True)
    if not by_size or (len(by_size) > 1 and len(by_size[0]) == len(by_size[1])):
        return None
    return by_size[0]


def differing(parts: Sequence[Part], peers: PeerChecksums) -> list[int]:
    """The numbers of the parts that are whole here and have another checksum elsewhere."""
    return [
        number
        for number, part in enumerate(parts)
        if part.crc is not None and any(crcs[number] != part.crc for crcs in peers.values())
    ]


def is_outvoted(crc: int, others: Sequence[int]) -> bool:
    """Whether this broker's bytes may be the wrong ones, given the checksums of the other replicas whose
    records are whole: unless more replicas, this one included, have its bytes than any others."""
    votes = Counter([crc, *others])
    return any(count >= votes[crc] for other, count in votes.items() if other != crc)


def majority(crc: int, others: Sequence[int]) -> int | None:
    """The checksum that at least two other replicas have, and more than have any other one, this broker's
    included. None without one."""
    votes = Counter([crc, *others])
    found = max(votes, key=lambda one: votes[one])
    rest = max((count for one, count in votes.items() if one != found), default=0)
    return found if found != crc and votes[found] > max(rest, 1) else None


def differing_range(
    start: int, bounds: Sequence[int], own: bytes, theirs: bytes, address: str
) -> DamagedRange | None:
    """The records in which the copy of the replica at `address` differs from this broker's. `bounds` are the
    offsets of this broker's records in the part, and its end."""
    size = min(len(own), len(theirs))
    first = next((at for at in range(size) if own[at] != theirs[at]), None)
    if first is None:
        return None
    last = next(at for at in range(size - 1, -1, -1) if own[at] != theirs[at])
    begin = max(one for one in bounds if one <= start + first)
    end = min(one for one in bounds if one > start + last)
    fault = f"the replica at {address} has other records there, which are whole, too"
    return DamagedRange(begin, end, fault, repairable=False)
