"""Says what is wrong with a store, by its flags."""

from __future__ import annotations

from typing import Final

from epochmq_broker.config.refusals import SendRefusal, disk_full, store_fault
from epochmq_store.log.damaged_ranges import REFILL
from epochmq_store.message_store import MessageStore
from epochmq_store.statuses import RunningFlags

STORE_FAULTS: Final = {
    RunningFlags.NOT_READABLE: "the store cannot be read",
    RunningFlags.NOT_WRITEABLE: "the store cannot be written",
    RunningFlags.WRITE_LOGICS_QUEUE_ERROR: "writing a consume queue failed",
    RunningFlags.WRITE_INDEX_FILE_ERROR: "writing an index file failed",
    RunningFlags.DISK_FULL: "the disk is full",
    RunningFlags.LOGIC_DISK_FULL: "the disk of the consume queues is full",
    RunningFlags.FLUSH_FAILED: "flushing the log to the disk failed",
    RunningFlags.LOG_DAMAGED: f"a confirmed record of the log is damaged (see the field `damage`): {REFILL}",
}
_DISKS_FULL: Final = RunningFlags.DISK_FULL | RunningFlags.LOGIC_DISK_FULL


def store_faults(flags: int, disk_used_ratio: float) -> tuple[str, ...]:
    """What is wrong with the store by its flags; of a full disk also how full it is (0 to 1)."""
    found = {flag: text for flag, text in STORE_FAULTS.items() if flags & flag}
    if RunningFlags.LOG_DAMAGED in found:
        found.pop(RunningFlags.FLUSH_FAILED, None)  # set as well, although no flush has failed
    if RunningFlags.DISK_FULL in found:
        found[RunningFlags.DISK_FULL] += f", {disk_used_ratio:.0%} used"
    return tuple(found.values())


def refusal_of_store(store: MessageStore) -> SendRefusal | None:
    """Why the store takes no messages of anyone; None if nothing is wrong with it."""
    flags = store.state.flags
    faults = store_faults(flags, store.disk_used_ratio)
    if not faults:
        return None
    return disk_full(faults) if flags & _DISKS_FULL else store_fault(faults)
