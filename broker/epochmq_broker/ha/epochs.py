# pure: the epochs of a log
"""The epochs of one log (`EpochFileCache`), and where a replica's log stops being its master's.

The rules, from RIP-44 and RocketMQ's code:

- An epoch is appended only if both its number and its start are greater than the last one's. Two elections
  without a byte between them leave one entry, the first: its number is then behind the master's epoch.
- An epoch ends where the next one starts. The last one ends where the log does.
- A replica's log is its master's up to `truncation_point`. Without one, nothing is known to be common.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Protocol

from epochmq_protocol.epoch_entries import OFFSET_MAX, EpochEntry, truncation_point
from epochmq_protocol.errors import EpochMQError


class Epochs:
    """The epochs of one log, ascending."""

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self._entries: list[EpochEntry] = []
        for entry in entries:
            self.append(entry)

    @property
    def entries(self) -> list[EpochEntry]:
        """A copy of all entries."""
        return list(self._entries)

    @property
    def last(self) -> EpochEntry | None:
        """The newest entry."""
        return self._entries[-1] if self._entries else None

    @property
    def last_epoch(self) -> int:
        """The newest epoch's number, -1 without any."""
        return self._entries[-1].epoch if self._entries else -1

    def append(self, entry: EpochEntry) -> bool:
        """Appends an entry; False, and nothing changed, when it is not greater in both."""
        last = self.last
        if last is not None and (entry.epoch <= last.epoch or entry.start_offset <= last.start_offset):
            return False
        self._entries.append(entry)
        return True

    def truncate_suffix(self, offset: int) -> bool:
        """Forgets the epochs that start at or after `offset`; whether there were any."""
        kept = [entry for entry in self._entries if entry.start_offset < offset]
        changed = len(kept) != len(self._entries)
        self._entries = kept
        return changed

    def truncate_epochs_from(self, epoch: int) -> bool:
        """Forgets the epochs of this number and newer; whether there were any."""
        kept = [entry for entry in self._entries if entry.epoch < epoch]
        changed = len(kept) != len(self._entries)
        self._entries = kept
        return changed

    def truncate_prefix(self, offset: int) -> bool:
        """Forgets the epochs that end at or before `offset` (expired files); whether there were any. The last
        one has no end."""
        kept = [entry for entry in self._entries if self.end_of(entry) > offset]
        changed = len(kept) != len(self._entries)
        self._entries = kept
        return changed

    def end_of(self, entry: EpochEntry) -> int:
        """Where an entry's epoch ends; OFFSET_MAX for the last."""
        at = self._entries.index(entry) + 1
        return self._entries[at].start_offset if at < len(self._entries) else OFFSET_MAX

    def find(self, offset: int) -> EpochEntry | None:
        """The epoch that the byte at `offset` was, or will be, written in."""
        at = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset) - 1
        return self._entries[at] if at >= 0 else None


def began_elsewhere(local: Sequence[EpochEntry], master: Sequence[EpochEntry]) -> bool:
    """Whether a log without a common epoch is one that a former master began alone, of which the present
    one's election knows nothing: all of it is of one epoch, the master's first is newer, and both begin with
    the log's first byte. Then nothing of it is common. Any other pair of logs is a mistake of somebody's."""
    return (
        len(local) == 1
        and len(master) > 0
        and local[0].start_offset == master[0].start_offset == 0
        and local[0].epoch < master[0].epoch
    )


EARLIER_MAX = 100
"""Epochs without a byte that a master names."""


def told_history(entries: Sequence[EpochEntry]) -> list[EpochEntry]:
    """What a master tells replicas of its epochs. Those before its first one, if that begins with the log's
    first byte, had none, and are named so: a replica of RocketMQ's keeps the first epoch that it heard of,
    though its master was replaced before the first message; it finds that one here, ends it at 0, and goes
    on. Without it, it would connect again and again for ever (#9942)."""
    if not entries or entries[0].start_offset != 0:
        return list(entries)
    first = entries[0].epoch
    earlier = range(max(1, first - EARLIER_MAX), first)
    return [*(EpochEntry(epoch, 0) for epoch in earlier), *entries]


def with_bytes(told: Sequence[EpochEntry]) -> list[EpochEntry]:
    """Without the epochs that had no byte. A replica of ours decides by the others: a log that has bytes of
    such an epoch was written alone (`began_elsewhere`), or is a mistake that must not be cut to nothing."""
    last_of_start = {entry.start_offset: entry for entry in told}
    return list(last_of_start.values())


class HADivergedError(EpochMQError):
    """The two logs have no epoch in common: what of ours is the master's cannot be said."""


def common_end(
    local: Sequence[EpochEntry], start: int, end: int, master: Sequence[EpochEntry], master_end: int
) -> int:
    """Up to where a replica, whose log runs from `start` to `end`, keeps it when it begins to follow a master
    with these epochs; the epochs from there on are forgotten, too. HADivergedError."""
    if end == 0 and start <= 0:
        return 0  # an empty log is the beginning of any; what its epochs say is about bytes that are gone
    if not local:
        return end
    point = truncation_point(local, end, master, master_end)
    if point is None and began_elsewhere(local, master):
        return 0
    if point is None:
        raise HADivergedError(
            f"no epoch of this log {_brief(local)} is one of the master's {_brief(master)}: "
            "compare the two, and clear the store of the one that is wrong"
        )
    return min(point, end)


def _brief(entries: Sequence[EpochEntry]) -> str:
    shown = ", ".join(f"{entry.epoch} from {entry.start_offset}" for entry in entries[-5:])
    return f"[{'…, ' if len(entries) > 5 else ''}{shown}]"


class KeptEpochs(Protocol):
    """Epochs that may be on disk: `Epochs`, or the file that keeps them."""

    def append(self, entry: EpochEntry) -> bool: ...
    def truncate_suffix(self, offset: int) -> object: ...


def begin_epoch(kept: KeptEpochs, last_epoch: int, epoch: int, end: int) -> None:
    """A master begins `epoch` where its log ends. It may be its own already: an epoch has one master. An
    epoch without a byte here may have some elsewhere: its master may come back with what it wrote alone, and
    must not find its own epoch to agree on (#9942)."""
    if last_epoch == epoch:
        return
    kept.truncate_suffix(end)
    kept.append(EpochEntry(epoch, end))


def learn_epoch(kept: KeptEpochs, told: Sequence[EpochEntry], epoch: int, start_offset: int) -> None:
    """A replica is about to take bytes labelled so. Epochs that the labels skip, because nothing of them was
    to be sent, are known from what the master `told` in its handshake."""
    for entry in told:
        if entry.epoch < epoch:
            kept.append(entry)
    kept.append(EpochEntry(epoch, start_offset))
