"""Finds what no correct peer of the group sends, before it changes anything.

Everybody on the network reaches a peer's port. A message can be well formed and still destroy the group: a
term near the end of its range leaves no term for the next election, and an entry whose size contradicts its
body cannot be written. Such a message gets UNEXPECTED_ARGUMENT and is counted.

The rules, and why a correct peer keeps to them:

- A term is at most TERM_LEAP_MAX ahead of this peer's. An election raises the term by one, and two elections
  of a group are at least `vote_interval_min_ms` apart. With DLedger's 300 ms a group that elected without a
  pause would need 20 years for that lead. A peer that has never been in a term has nothing to compare with,
  and takes terms up to FIRST_TERM_MAX.
- A term is at most TERM_MAX, an index at most INDEX_MAX, a position at most POSITION_MAX. The rest of their
  ranges stays free for what follows from them: the next term, the next entry, the position of an index unit.
  Up to TERM_MAX there are 2^31 leaps, and this peer syncs its vote for each.
- An entry has DLedger's form and a term up to its sender's, and lies in one data file.
- An id is a word, and a membership names 1 to MEMBERS_MAX voters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from epochmq_formats.dledger_log import ENTRY_HEADER_SIZE, FILLER_SIZE_MIN
from epochmq_protocol.dledger import (
    ENTRY_MAGIC,
    MEMBERS_MAX,
    DLedgerEntry,
    InstallSnapshotRequest,
    PushEntryRequest,
    RequestOrResponse,
)

TERM_LEAP_MAX: Final = 1 << 31
FIRST_TERM_MAX: Final = 1 << 61
TERM_MAX: Final = 1 << 62
INDEX_MAX: Final = 1 << 56
POSITION_MAX: Final = 1 << 62
_ID: Final = re.compile(r"[^\s\x00-\x1f\x7f]{1,255}")


def find_fault(message: RequestOrResponse, *, term: int, file_size: int) -> str | None:
    """What is wrong with a message: its field, the value, and what was expected. None for a message that this
    peer may handle. `term` is this peer's, 0 if it was in none; `file_size` the bytes of its data files."""
    term_max = min(term + TERM_LEAP_MAX, TERM_MAX) if term > 0 else FIRST_TERM_MAX
    if message.term > term_max:
        return f"term={message.term}, expected at most {term_max}: the term here is {term}"
    for name, peer in (("leaderId", message.leader_id), ("localId", message.local_id)):
        if peer is not None and not _ID.fullmatch(peer):
            return f"{name}={peer!r:.100}, expected 1 to 255 characters without blanks"
    if isinstance(message, PushEntryRequest):
        return (
            _fault_of_index("commitIndex", message.commit_index)
            or _fault_of_index("epochmqFirstIndex", message.epochmq_first_index or 0)
            or _fault_of_members(message.epochmq_members)
            or _fault_of_entries(message.entries, message.term, file_size)
        )
    if isinstance(message, InstallSnapshotRequest):
        return _fault_of_members(message.members) or _fault_of_entries(
            (message.entry,), message.term, file_size
        )
    return None


def _fault_of_index(name: str, index: int) -> str | None:
    return f"{name}={index}, expected at most {INDEX_MAX}" if index > INDEX_MAX else None


def _fault_of_members(members: dict[str, str] | None) -> str | None:
    if members is None or 0 < len(members) <= MEMBERS_MAX:
        return None
    return f"members={len(members)} voters, expected 1 to {MEMBERS_MAX}"


def _fault_of_entries(entries: Iterable[DLedgerEntry], term: int, file_size: int) -> str | None:
    """The fault of the entries of a message of this term."""
    for entry in entries:
        size = ENTRY_HEADER_SIZE + len(entry.body)
        if entry.magic != ENTRY_MAGIC:
            return f"entry.magic={entry.magic}, expected {ENTRY_MAGIC}"
        if not 0 <= entry.index <= INDEX_MAX:
            return f"entry.index={entry.index}, expected 0 to {INDEX_MAX}"
        if not 0 <= entry.term <= term:
            return f"entry.term={entry.term}, expected 0 to {term}, the term of the message"
        if entry.size != size:
            return f"entry.size={entry.size}, expected {size} for a body of {len(entry.body)} bytes"
        if not 0 <= entry.pos <= POSITION_MAX:
            return f"entry.pos={entry.pos}, expected 0 to {POSITION_MAX}"
        if entry.pos % file_size + size + FILLER_SIZE_MIN > file_size:
            return f"entry.pos={entry.pos}, expected room for {size} bytes in a file of {file_size}"
    return None
