"""Reads and writes the state files `currterm` and `checkpoint`: properties files that are replaced as a whole
(`MemberState.persistTerm`, `DLedgerMmapFileStore.persistCheckPoint`). The previous content stays as `.bak`.
Both hold a checksum, which DLedger ignores: one flipped bit in term or vote could make a peer vote twice, one
in the committed index could commit what is not. `memberships` is EpochMQ's own: JSON, with a checksum, of a
peer whose log takes blocks.

The previous content of `currterm` does not replace the current one: a peer that used it could vote twice in a
term. So an empty or damaged `currterm` is a lost vote (`SavedVote.is_lost`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from epochmq_dledger.core.types import SavedMembership
from epochmq_formats.dledger_peer_files import STOPPED_KEY, decode_properties, encode_properties
from epochmq_protocol.checksum import crc32
from epochmq_protocol.durable_files import TEMPORARY_SUFFIX, backup_of, replace_file

log = logging.getLogger(__name__)

CURRTERM, CHECKPOINT, MEMBERSHIPS = "currterm", "checkpoint", "memberships"
STATE_FILE_NAMES = (CURRTERM, f"{CURRTERM}.bak", CHECKPOINT, f"{CHECKPOINT}.bak", MEMBERSHIPS)
"""The state files of a peer's directory."""


@dataclass(frozen=True)
class SavedVote:
    """The term, and the peer that this peer voted for. `is_lost`: it may have voted since, also in later
    terms."""

    term: int = 0
    voted_for: str | None = None
    is_lost: bool = False


def _read_properties(path: Path) -> dict[str, str]:
    """The properties of a file, none if it is missing or damaged."""
    try:
        return decode_properties(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}


def _read_vote(path: Path) -> SavedVote | None:
    found = _read_properties(path)
    try:
        # Without the second key the file is truncated: both keys are written together.
        return SavedVote(int(found["currTerm"].strip()), found["voteLeader"].strip() or None)
    except (KeyError, ValueError):
        return None


def load_vote(folder: Path) -> SavedVote:
    """The vote of a peer's directory, term 0 for a new one."""
    path = folder / CURRTERM
    vote = _read_vote(path)
    if vote is not None:
        return vote
    if not path.exists():
        # DLedger removes the old file before it renames the new one.
        renamed = _read_vote(path.with_name(path.name + TEMPORARY_SUFFIX))
        if renamed is not None:
            return renamed
        if not backup_of(path).exists():
            return SavedVote()
    before = _read_vote(backup_of(path))
    return SavedVote(before.term if before is not None else 0, None, is_lost=True)


def save_vote(folder: Path, term: int, voted_for: str | None) -> None:
    """Saves term and vote durably."""
    data = encode_properties({"currTerm": str(term), "voteLeader": voted_for or ""})
    replace_file(folder / CURRTERM, data, keep_backup=True)


def load_committed(folder: Path) -> int | None:
    """The committed index of the last checkpoint or of the one before, which is also true: -1 if no entry was
    committed. None without a checkpoint."""
    path = folder / CHECKPOINT
    for candidate in (path, backup_of(path)):
        with contextlib.suppress(KeyError, ValueError):
            return int(_read_properties(candidate)["committedIndex"].strip())
    if path.exists():
        log.warning("cannot read %s; this peer learns the committed index from its leader", path)
    return None


def load_stopped_end(folder: Path) -> int | None:
    """The index of the last entry when the peer stopped in order, -1 without entries; None if it was killed,
    runs, or is DLedger's. The checkpoint before says nothing: the log may have been truncated since."""
    found = _read_properties(folder / CHECKPOINT)
    if found.get(STOPPED_KEY) != "true":
        return None
    try:
        return int(found["endIndex"].strip())
    except (KeyError, ValueError):
        return None


def save_checkpoint(folder: Path, end_index: int, committed_index: int, *, has_stopped: bool = False) -> None:
    """Writes the checkpoint. `has_stopped`: the peer stops in order, and the log ends with `end_index`."""
    values = {"endIndex": str(end_index), "committedIndex": str(committed_index)}
    if has_stopped:
        values[STOPPED_KEY] = "true"
    replace_file(folder / CHECKPOINT, encode_properties(values), keep_backup=True)


def load_memberships(folder: Path) -> list[SavedMembership]:
    """The memberships of a peer's log, none without the file. ValueError: the file is damaged."""
    path = folder / MEMBERSHIPS
    try:
        checksum, _, text = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return []
    if checksum != b"%08x" % crc32(text):
        raise ValueError(
            f"{path} is damaged: this peer does not know the voters of its group. Remove the peer from the "
            "group, clear its directory, and add the peer again"
        )
    return msgspec.json.decode(text, type=list[SavedMembership])


def save_memberships(folder: Path, memberships: Sequence[SavedMembership]) -> None:
    """Saves the memberships durably."""
    text = msgspec.json.encode(list(memberships))
    replace_file(folder / MEMBERSHIPS, b"%08x\n%s" % (crc32(text), text))
