"""`currterm` and `checkpoint`: small properties files, replaced as a whole (`MemberState.persistTerm`,
`DLedgerMmapFileStore.persistCheckPoint`). The previous content stays beside them as `.bak`.

The previous content of `currterm` is no substitute for the present one: a peer that falls back to it may vote
a second time in a term. So a `currterm` that is empty or garbled is a lost vote (`SavedVote.is_lost`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from epochmq_protocol import properties
from epochmq_protocol.durable_files import TEMPORARY_SUFFIX, backup_of, replace_file

log = logging.getLogger(__name__)

CURRTERM, CHECKPOINT = "currterm", "checkpoint"
STATE_FILE_NAMES = (CURRTERM, f"{CURRTERM}.bak", CHECKPOINT, f"{CHECKPOINT}.bak")
"""The small files of a peer's folder."""


@dataclass(frozen=True)
class SavedVote:
    """The term, and whom this peer voted for in it. `is_lost`: it may have voted since, also in later
    terms."""

    term: int = 0
    voted_for: str | None = None
    is_lost: bool = False


def _read_integers(path: Path, *keys: str) -> dict[str, int] | None:
    """The whole numbers of these keys; None when the file is missing, or one of them cannot be read."""
    try:
        found = properties.parse(path.read_bytes().decode())
        return {key: int(found[key].strip()) for key in keys}
    except (FileNotFoundError, KeyError, ValueError):
        return None


def _read_vote(path: Path) -> SavedVote | None:
    numbers = _read_integers(path, "currTerm")
    if numbers is None:
        return None
    found = properties.parse(path.read_text(encoding="utf-8"))
    if "voteLeader" not in found:
        return None  # cut off: both are written as one
    return SavedVote(numbers["currTerm"], found["voteLeader"].strip() or None)


def load_vote(folder: Path) -> SavedVote:
    """The vote of a peer's folder; term 0 for a new one."""
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
    """Makes term and vote durable."""
    text = f"currTerm={term}\nvoteLeader={voted_for or ''}\n"
    replace_file(folder / CURRTERM, text.encode(), keep_backup=True)


def load_committed(folder: Path) -> int:
    """The committed index of the last checkpoint, -1 where there is none. The one before it is as true."""
    path = folder / CHECKPOINT
    for candidate in (path, backup_of(path)):
        found = _read_integers(candidate, "committedIndex")
        if found is not None:
            return found["committedIndex"]
    if path.exists():
        log.warning("%s: cannot be read; what is committed will be learned from the leader", path)
    return -1


def save_checkpoint(folder: Path, end_index: int, committed_index: int) -> None:
    """Writes the checkpoint."""
    text = f"endIndex={end_index}\ncommittedIndex={committed_index}\n"
    replace_file(folder / CHECKPOINT, text.encode(), keep_backup=True)
