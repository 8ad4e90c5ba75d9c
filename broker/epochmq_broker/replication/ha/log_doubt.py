# pure: what a broker's log may lack after a start
"""Says what a broker's log may lack after a start, and what the broker must not do until that is resolved.

A log that was open when its machine lost power may lack the bytes that were not flushed. A log whose disk
failed, or whose volume was restored, may lack more (`store.tail_state`). The rules:

- **The broker gives up its epoch.** If the master of an epoch lost bytes of that epoch and continued writing
  under it, one epoch would have two histories. The first mastership that such a broker hears of is the one
  from before the loss. The broker gives it up, and becomes master only under a newer epoch.
- **A log is in doubt** if it may lack *acknowledged* bytes. The broker says so in every heartbeat. It is not
  elected while a member of the SyncStateSet is alive whose log is not in doubt.
- **Suspect bytes are compared with the master's.** After a power loss these are the bytes that may not have
  been flushed, because a record can look whole although one of its pages was lost. If flushed bytes may be
  missing or wrong, it is the whole log.
- **A log without its first files** cannot be compared there. Its doubt ends only under a master that lacks
  them, too.
- **Bytes that were not flushed may be truncated**, even below the confirmed offset, because the broker knows
  that it may have lost them. Any other difference below the confirmed offset needs an administrator.
- The doubt survives restarts. It ends when the broker has caught up with a living master, or has become
  master under a new epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from epochmq_formats.abort_file import TailState
from epochmq_protocol.epoch_entries import EpochEntry
from epochmq_protocol.errors import InvariantError


class LogDoubt(msgspec.Struct, frozen=True, rename="camel"):
    """What a log may lack; kept on disk beside the epochs. The default says that it lacks nothing."""

    in_doubt: bool = False
    """The log may lack acknowledged bytes."""
    gives_up: bool = False
    """The next mastership that the broker hears of is from before the loss, and is to be given up."""
    given_up_epoch: int = 0
    """The broker becomes master only under an epoch newer than this one. Never falls until the doubt ends."""
    verify_all: bool = False
    """The whole log is compared with the master's, confirmed bytes included. Invariant: only of a broker that
    gives up, or has given up, the mastership from before the loss."""
    unflushed_from: int | None = None
    """From this offset on, bytes may not have been flushed when the power failed. Invariant: likewise, and
    not negative."""

    missing_from: int | None = None
    """The offset of the first of the files that are missing at the log's start. Invariant: like
    `verify_all`."""

    @property
    def is_open(self) -> bool:
        """Whether anything remains to be resolved by comparing with the group."""
        return self.in_doubt or self.gives_up or self.has_loss

    @property
    def has_loss(self) -> bool:
        """Whether bytes are, or may be, lost or wrong."""
        return self.verify_all or self.unflushed_from is not None or self.missing_from is not None

    def check_invariants(self) -> None:
        """Raises InvariantError if the doubt contradicts the rules at its fields. O(1)."""
        gives_up = self.gives_up or self.given_up_epoch >= 1
        if (self.has_loss and not gives_up) or (self.unflushed_from or 0) < 0:
            raise InvariantError(
                "LogDoubt", "a broker whose log has lost bytes gives up the mastership of before", doubt=self
            )


def doubt_after_start(
    kept: LogDoubt,
    tail: TailState,
    *,
    may_lack_acknowledged: bool,
    confirmed: int,
    end: int,
    recovery_start: int = 0,
    missing_from: int | None = None,
) -> LogDoubt:
    """The doubt after a start.

    `kept` is the doubt on disk. `confirmed` is the confirmed offset that the checkpoint holds. Recovery read
    the log from `recovery_start` and found its end at `end`. `missing_from`: the offset from which on files
    are missing at the log's start. A log that ends before `confirmed` was damaged
    or replaced, whatever the store says; only under ASYNC_FLUSH can a power loss also take confirmed
    bytes."""
    unflushed = kept.unflushed_from
    if tail is TailState.UNFLUSHED_LOST:
        unflushed = recovery_start if unflushed is None else min(unflushed, recovery_start)
    if confirmed > end and not (tail is TailState.UNFLUSHED_LOST and may_lack_acknowledged):
        tail, may_lack_acknowledged = TailState.UNKNOWN, True
    return msgspec.structs.replace(
        kept,
        in_doubt=kept.in_doubt or may_lack_acknowledged,
        gives_up=kept.gives_up or tail is not TailState.INTACT,
        verify_all=kept.verify_all or tail is TailState.UNKNOWN,
        unflushed_from=unflushed,
        missing_from=missing_from if kept.missing_from is None else kept.missing_from,
    )


def given_up(kept: LogDoubt, epoch: int) -> LogDoubt:
    """The doubt after the broker has given up the mastership of `epoch` and of every older one."""
    return msgspec.structs.replace(kept, gives_up=False, given_up_epoch=max(kept.given_up_epoch, epoch))


def distrusted(kept: LogDoubt) -> LogDoubt:
    """The doubt of a store that another process of its broker may have overtaken: as of a restored volume."""
    return msgspec.structs.replace(kept, in_doubt=True, gives_up=True, verify_all=True)


def no_doubt() -> LogDoubt:
    """No doubt: the broker is a new master, or a replica that has caught up with its master. Older
    masterships need not be remembered, for the epochs on disk are newer."""
    return LogDoubt()


def may_lead(kept: LogDoubt, epoch: int) -> bool:
    """Whether the broker may become master of this epoch."""
    return not kept.gives_up and epoch > kept.given_up_epoch


def has_caught_up(*, reported: int, master_end: int, confirmed: int) -> bool:
    """Whether a replica, whose log was compared with its master's, has everything that the master may have
    acknowledged. Its `reported` end offset must reach the master's end at the handshake (`master_end`) and
    the present confirmed offset."""
    return reported >= max(master_end, confirmed)


def verified_until(kept: LogDoubt, confirmed: int, end: int) -> int:
    """Up to which offset the log needs no comparison after a start: the confirmed offset, as far as no
    confirmed byte may have been lost."""
    return 0 if kept.verify_all else protected_until(kept, min(confirmed, end))


def protected_until(kept: LogDoubt, confirmed: int) -> int:
    """The offset below which the log must not be truncated: a difference there is not explained by the bytes
    that this broker may have lost."""
    return confirmed if kept.unflushed_from is None else min(confirmed, kept.unflushed_from)


def reported_end(*, sync_flush: bool, flushed: int, end: int) -> int:
    """The end offset that a replica reports to its master: the flushed offset with SYNC_FLUSH, otherwise the
    end of its log."""
    return min(flushed, end) if sync_flush else end


def written_epoch(entries: Sequence[EpochEntry], end: int) -> int:
    """The epoch of the last byte of a log that ends at `end`; -1 if there is none.

    An epoch is on disk before its first byte, and may never get one. An election must not mistake the number
    of such an epoch for newer bytes."""
    for entry in reversed(entries):
        if entry.start_offset < end:
            return entry.epoch
    return -1


HEARTBEAT_SUSPENSION_MS = 30_000
"""How long a broker in doubt sends no heartbeats under RocketMQ's controllers: twice their heartbeat timeout
(10 s) and their interval of checking for dead masters (5 s)."""


def suspends_heartbeats(
    *, grants: bool | None, in_doubt: bool, gives_up_epoch: int | None, since_start_ms: float
) -> bool:
    """Whether a broker must send no heartbeats now.

    `grants`: whether the leading controller grants leases, that is, is one of EpochMQ's; None: unknown.
    RocketMQ's controllers (False) know neither doubt nor given-up epochs: they keep a master, and elect a
    replica, as long as its heartbeats arrive. A broker that has given up its epoch therefore sends none until
    they have replaced it. A broker in doubt sends none for a while, so that a replica without doubt is
    elected; it also sends none while the leading controller is unknown."""
    if grants:
        return False
    if grants is False and gives_up_epoch is not None:
        return True
    return in_doubt and since_start_ms < HEARTBEAT_SUSPENSION_MS
