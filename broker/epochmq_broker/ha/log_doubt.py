# pure: what a broker may rely on of its own log
"""What a broker may rely on of its own log after a start, and what it therefore must not do.

A log that was open when its machine lost power may lack what was not flushed; one whose disk failed, or whose
volume was restored, may lack more (`store.tail_state`). The rules:

- **Its epoch is given up.** The master of an epoch that may have lost bytes of it would write others in their
  place, and one epoch would have two histories. The first mastership that such a broker hears of is the one
  from before the loss: the broker gives it up, and leads under a newer epoch only.
- **In doubt** is a log that may lack *acknowledged* bytes. Its broker says so with every heartbeat, and is
  not elected while a member of the SyncStateSet lives that lacks nothing.
- **What may be wrong is verified**: after a loss of power what may not have been flushed (a record whose page
  was lost may look whole), all of the log when flushed bytes may be missing or wrong. It is known to be the
  master's when its content has been compared.
- **What was not flushed may be cut**, also where it was confirmed: the broker knows that it may have lost it.
  Any other difference below the confirmed offset is for a person to see.
- All of it holds over restarts, and ends when this broker has caught up with a living master, or has become
  one under a new epoch: then its log is the group's.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from epochmq_broker.store.tail_state import TailState
from epochmq_protocol.epoch_entries import EpochEntry


class LogDoubt(msgspec.Struct, frozen=True, rename="camel"):
    """What is kept beside the epochs. The default is a log of which all is known."""

    in_doubt: bool = False
    """It may lack acknowledged bytes."""
    gives_up: bool = False
    """The next mastership heard of is the one from before the loss."""
    given_up_epoch: int = 0
    """No mastership is taken under this epoch or an older one."""
    verify_all: bool = False
    """What was confirmed once is compared with the master's log all the same."""
    unflushed_from: int | None = None
    """From here on bytes may not have been flushed when power was lost."""

    @property
    def is_open(self) -> bool:
        """Whether anything is left to be settled with the group."""
        return self.in_doubt or self.gives_up or self.verify_all or self.unflushed_from is not None


def after_start(
    kept: LogDoubt,
    tail: TailState,
    *,
    may_lack_acknowledged: bool,
    confirmed: int,
    end: int,
    recovery_start: int = 0,
) -> LogDoubt:
    """What holds after a start. `kept` is from the life before; `confirmed` is up to where the log was known
    to be confirmed, `end` where recovery found it to end, `recovery_start` where it began to read. With
    less than what was confirmed a log has rotted, or was exchanged, whatever the store says; but what was
    confirmed before it was flushed (ASYNC_FLUSH) goes with a loss of power."""
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
    )


def given_up(kept: LogDoubt, epoch: int) -> LogDoubt:
    """The mastership of `epoch`, and of any older one, is given up."""
    return msgspec.structs.replace(kept, gives_up=False, given_up_epoch=max(kept.given_up_epoch, epoch))


def settled() -> LogDoubt:
    """The log is the group's own: of a new master, or of a replica that has caught up with one. (Masterships
    from before are over: the epochs on disk are newer.)"""
    return LogDoubt()


def may_lead(kept: LogDoubt, epoch: int) -> bool:
    """Whether the mastership of this epoch may be taken."""
    return not kept.gives_up and epoch > kept.given_up_epoch


def has_caught_up(*, reported: int, master_end: int, confirmed: int) -> bool:
    """Whether a replica, whose log was compared with its master's, lacks nothing that the master may have
    acknowledged: it has `reported` that its log reaches what the master had when the two met (`master_end`)
    and what is `confirmed` now."""
    return reported >= max(master_end, confirmed)


def verified_until(kept: LogDoubt, confirmed: int, end: int) -> int:
    """Up to where the log is known to be the group's after a start: what was confirmed, unless that may have
    been lost."""
    return 0 if kept.verify_all else kept_until(kept, min(confirmed, end))


def kept_until(kept: LogDoubt, confirmed: int) -> int:
    """Below which offset no difference from a master's log is explained by what this broker knows to have
    lost."""
    return confirmed if kept.unflushed_from is None else min(confirmed, kept.unflushed_from)


def reported_end(*, sync_flush: bool, flushed: int, end: int) -> int:
    """How far a replica says that its log reaches: with SYNC_FLUSH it acknowledges what it has flushed, else
    what it has received."""
    return min(flushed, end) if sync_flush else end


def written_epoch(entries: Sequence[EpochEntry], end: int) -> int:
    """The epoch of the last byte of a log that ends at `end`; -1 when there is none. An epoch is on disk
    before its first byte, and may be left without any: an election must not take its number for bytes."""
    for entry in reversed(entries):
        if entry.start_offset < end:
            return entry.epoch
    return -1


QUIET_MS = 30_000
"""How long a broker in doubt keeps quiet under RocketMQ's controllers: their heartbeat time-out (10 s), their
look for dead masters (5 s), and the same once more."""


def keeps_quiet(
    *, grants: bool | None, in_doubt: bool, gives_up_epoch: int | None, since_start_ms: float
) -> bool:
    """Whether a broker sends no heartbeats. RocketMQ's controllers (`grants` False) know no doubt and no
    epoch that was given up: they keep a master that they hear, and elect whom they hear. A broker that gives
    its epoch up is silent until they have replaced it; one in doubt is silent for a while, so that a replica
    without doubt is elected. While it is not known who leads, a broker in doubt waits to know."""
    if grants:
        return False
    if grants is False and gives_up_epoch is not None:
        return True
    return in_doubt and since_start_ms < QUIET_MS
