# pure: the epochs of a log
"""Keeps the epochs of one log (`EpochFileCache`), and finds up to where two logs have a common history.

The rules, from RIP-44 and RocketMQ's code:

- An epoch is appended only if both its number and its start offset are greater than the last epoch's. Two
  elections without a byte between them leave only the first entry; its number is then older than the
  master's epoch.
- An epoch ends where the next one starts. The last epoch ends at the end of the log.
- A replica's log is equal to its master's up to `truncation_point`. If there is no such point, the epochs
  prove no common history.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Protocol

from epochmq_protocol.epoch_entries import OFFSET_MAX, EpochEntry, truncation_point
from epochmq_protocol.errors import EpochMQError, InvariantError


class Epochs:
    """The epochs of one log, oldest first."""

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self._entries: list[EpochEntry] = []
        """Invariants: numbers and start offsets rise strictly; each epoch ends where the next one starts, so
        that the entries cover the log from the first start offset to its end; the last one has no end of its
        own, and starts at most at the end of the log."""
        for entry in entries:
            self.append(entry)

    @property
    def entries(self) -> list[EpochEntry]:
        """A copy of all entries, oldest first."""
        return list(self._entries)

    @property
    def last(self) -> EpochEntry | None:
        """The newest entry."""
        return self._entries[-1] if self._entries else None

    @property
    def last_epoch(self) -> int:
        """The newest epoch's number; -1 if there is no epoch."""
        return self._entries[-1].epoch if self._entries else -1

    def append(self, entry: EpochEntry) -> bool:
        """Appends an entry; False, with nothing changed, if its number or start offset is not greater."""
        last = self.last
        if last is not None and (entry.epoch <= last.epoch or entry.start_offset <= last.start_offset):
            return False
        self._entries.append(entry)
        return True

    def truncate_suffix(self, offset: int) -> bool:
        """Removes the epochs that start at or after `offset`; whether there were any."""
        kept = [entry for entry in self._entries if entry.start_offset < offset]
        changed = len(kept) != len(self._entries)
        self._entries = kept
        return changed

    def truncate_epochs_from(self, epoch: int) -> bool:
        """Removes this epoch and newer ones; whether there were any."""
        kept = [entry for entry in self._entries if entry.epoch < epoch]
        changed = len(kept) != len(self._entries)
        self._entries = kept
        return changed

    def truncate_prefix(self, offset: int) -> bool:
        """Removes the epochs that end at or before `offset` (their files have expired); whether there were
        any. The last epoch has no end."""
        kept = [entry for entry in self._entries if self.end_of(entry) > offset]
        changed = len(kept) != len(self._entries)
        self._entries = kept
        return changed

    def check_invariants(self, log_end: int | None = None) -> None:
        """Raises InvariantError if the entries contradict each other or, with `log_end`, the log. O(1) for
        the last two entries, which are the only ones that change."""
        entries = self._entries
        if not entries:
            return
        last = entries[-1]
        before = entries[-2] if len(entries) > 1 else None
        if last.start_offset < 0 or (
            before is not None and not (before.epoch < last.epoch and before.start_offset < last.start_offset)
        ):
            raise InvariantError(
                "Epochs", "numbers and start offsets of epochs rise strictly", before=before, last=last
            )
        if log_end is not None and last.start_offset > log_end:
            raise InvariantError(
                "Epochs", "the last epoch starts at most at the end of the log", last=last, log_end=log_end
            )

    def end_of(self, entry: EpochEntry) -> int:
        """The offset where an entry's epoch ends; OFFSET_MAX for the last epoch."""
        at = self._entries.index(entry) + 1
        return self._entries[at].start_offset if at < len(self._entries) else OFFSET_MAX

    def find(self, offset: int) -> EpochEntry | None:
        """The entry of the epoch that the byte at `offset` belongs to; None before the first epoch."""
        at = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset) - 1
        return self._entries[at] if at >= 0 else None


def was_begun_alone(local: Sequence[EpochEntry], master: Sequence[EpochEntry]) -> bool:
    """Whether a former master wrote all of the local log alone, so that the group has none of it.

    The local log then has a single epoch, the master's first epoch is newer, and both start at offset 0. The
    local log may be truncated to 0. Any other pair of logs without a common epoch is a person's mistake, for
    example a store of another group."""
    return (
        len(local) == 1
        and len(master) > 0
        and local[0].start_offset == master[0].start_offset == 0
        and local[0].epoch < master[0].epoch
    )


EMPTY_EPOCHS_MAX = 100
"""The most epochs without a byte that a master's handshake names."""


def epochs_for_handshake(entries: Sequence[EpochEntry]) -> list[EpochEntry]:
    """The epochs that a master names in its handshake: its own, and earlier ones without a byte.

    If the master's first epoch starts at offset 0, every earlier epoch had no byte. A RocketMQ replica keeps
    the first epoch that it heard of, even if that master was replaced before the first message. It finds that
    epoch in the handshake, ends it at 0, and follows. Without it, the replica would reconnect for ever
    (#9942)."""
    if not entries or entries[0].start_offset != 0:
        return list(entries)
    first = entries[0].epoch
    earlier = range(max(1, first - EMPTY_EPOCHS_MAX), first)
    return [*(EpochEntry(epoch, 0) for epoch in earlier), *entries]


def without_empty_epochs(master_epochs: Sequence[EpochEntry]) -> list[EpochEntry]:
    """The epochs of a master's handshake without those that have no byte.

    EpochMQ's replicas decide by the remaining ones. A log that has bytes of an epoch which is empty on the
    master was written by a former master alone (`was_begun_alone`), or is a mistake, and must not be
    truncated to 0 then."""
    last_of_start = {entry.start_offset: entry for entry in master_epochs}
    return list(last_of_start.values())


class HADivergedError(EpochMQError):
    """This log and the master's have diverged in a way that only an administrator can resolve."""


def common_prefix_end(
    local: Sequence[EpochEntry], start: int, end: int, master: Sequence[EpochEntry], master_end: int
) -> int:
    """The offset at which a replica truncates its log, which runs from `start` to `end`, before it follows a
    master with these epochs. Its epochs are truncated at the same offset. Raises HADivergedError."""
    if end == 0 and start <= 0:
        return 0  # an empty log is a prefix of any log; its epochs are of bytes that are gone
    if not local:
        return end
    point = truncation_point(local, end, master, master_end)
    if point is None and was_begun_alone([entry for entry in local if entry.start_offset < end], master):
        return 0
    if point is None:
        raise HADivergedError(
            f"no epoch of this log {_brief(local)} is one of the master's {_brief(master)}: "
            "compare the two logs (epochmq audit), and clear the store of the one that is wrong"
        )
    return min(point, end)


def _brief(entries: Sequence[EpochEntry]) -> str:
    shown = ", ".join(f"{entry.epoch} from {entry.start_offset}" for entry in entries[-5:])
    return f"[{'…, ' if len(entries) > 5 else ''}{shown}]"


class EpochStore(Protocol):
    """Where epochs are kept: `Epochs` in memory, or an `EpochFile`."""

    def append(self, entry: EpochEntry) -> bool: ...
    def truncate_suffix(self, offset: int) -> object: ...


def begin_epoch(kept: EpochStore, last_epoch: int, epoch: int, end: int) -> None:
    """Appends the epoch of a new mastership, which starts at the log's end offset `end`.

    Epochs that start at `end`, and so have no byte in this log, are removed first. Their master may have
    written bytes in them alone. When it comes back, it must not find its own epoch to agree on (#9942)."""
    if last_epoch == epoch:
        return
    kept.truncate_suffix(end)
    kept.append(EpochEntry(epoch, end))


def record_received_epoch(
    kept: EpochStore, master_epochs: Sequence[EpochEntry], epoch: int, start_offset: int
) -> None:
    """Appends the epoch of a block that a replica is about to append to its log.

    Epochs that no block named, because they have no byte to send, are taken from `master_epochs`, of the
    master's handshake."""
    for entry in master_epochs:
        if entry.epoch < epoch:
            kept.append(entry)
    kept.append(EpochEntry(epoch, start_offset))
