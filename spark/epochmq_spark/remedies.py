# pure: what repairs each kind of finding
"""Says for each kind of finding what repairs it. `fix_plan` makes steps of it for the replicas of an audit.

A remedy that removes something keeps it in a directory beside the store, and is proposed only if another
replica has everything that the removed files hold, or if the store's own log has it. `otherwise` is what a
person must do or decide if that is not so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class RemedyAction(StrEnum):
    """What repairs a finding. The order is that in which the steps of a plan are taken."""

    AUDIT_AGAIN = "audit-again"
    """Nothing is known to be wrong with a store: the audit did not get, or could not read, what it needs."""
    DECIDE = "decide"
    """A person must decide, because files cannot tell what is right."""
    RESTORE = "restore"
    """No replica has the bytes: they are lost, unless a backup has them."""
    STOP = "stop"
    """The brokers whose files the next steps change are stopped."""
    SET_FILE_ASIDE = "set-file-aside"
    """A file that no broker reads is moved out of the store."""
    COPY_TABLE = "copy-table"
    """A table of `config` is copied from a replica whose table is right."""
    REBUILD_QUEUES = "rebuild-queues"
    """Consume queues and index are moved out of the store; its next start builds them from the log."""
    REBUILD_WHEEL = "rebuild-wheel"
    """The timer wheel is moved out of the store; its next start builds it from the timer log."""
    REPLACE_STORE = "replace-store"
    """The store is moved away; the replica copies everything from the others."""
    START = "start"
    """The broker repairs it by itself, when it runs."""
    NOTHING = "nothing"
    """A note: there is nothing to repair."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """What repairs a kind of finding. `text` says what happens, or what a person must do. `needs_copy`: only
    while a whole replica has the same part of the log. `otherwise` is for the case that there is none."""

    action: RemedyAction
    text: str
    needs_copy: bool = False
    otherwise: str = ""


NO_COPY: Final = (
    "no replica without findings has this part of the log, so nothing may be removed; restore a backup into "
    "new directories if there is one, or accept the loss"
)
_REBUILD: Final = "the next start builds consume queues and index from the log"
_REPLACE: Final = (
    "a start with an empty directory copies everything from the other replicas; under controllers the "
    "replica gets a new broker id, and mqadmin cleanBrokerMetadata removes the former one"
)
_SCRUB: Final = "the broker repairs the records from the other replicas within an hour of its start"
_TABLE: Final = "a replica without findings has the table"
_AGAIN: Final = "audit again with what was missing"


def _nothing(text: str = "nothing has to be repaired") -> Remedy:
    return Remedy(RemedyAction.NOTHING, text)


def _again(text: str = _AGAIN) -> Remedy:
    return Remedy(RemedyAction.AUDIT_AGAIN, text)


def _decide(text: str) -> Remedy:
    return Remedy(RemedyAction.DECIDE, text)


def _start(text: str, *, needs_copy: bool = False) -> Remedy:
    return Remedy(RemedyAction.START, text, needs_copy, NO_COPY if needs_copy else "")


def _replace(text: str = _REPLACE, otherwise: str = NO_COPY) -> Remedy:
    return Remedy(RemedyAction.REPLACE_STORE, text, needs_copy=True, otherwise=otherwise)


def _rebuild() -> Remedy:
    return Remedy(RemedyAction.REBUILD_QUEUES, _REBUILD)


def _table(otherwise: str) -> Remedy:
    return Remedy(RemedyAction.COPY_TABLE, _TABLE, needs_copy=True, otherwise=otherwise)


_OF_LOG: Final = (
    "all replicas have these records, and the broker sets aside what its services cannot handle; decide "
    "whether the messages are sent again"
)
_DUPLICATED: Final = (
    "the log itself says so; if other findings name a damaged record, repair that first, otherwise consumers "
    "may skip or repeat messages of this queue, and nothing repairs it"
)
_HISTORIES: Final = (
    "save the messages that only one side has, by the offsets in the findings, or send them again; then keep "
    "one side, move the other store away, and start it with an empty directory"
)
_TIMER: Final = (
    "no other replica has everything; after config/timercheck, timerlog and timerwheel were moved away, the "
    "broker reads its timer messages again from the start of the log, and delivers some twice"
)

REMEDIES: Final[dict[str, Remedy]] = {
    "directory.missing": _start(_REPLACE),
    "directory.empty": _start(_REPLACE),
    "directory.foreign": _again("name the directory of the replica's store"),
    "directory.unreadable": _again("make the directory readable, or replace its disk"),
    "directory.other-group": _again("name a directory of this group"),
    "directory.other-mode": _again(
        "name a directory of this group; of a group that was upgraded, all stores"
    ),
    "directory.incomplete": _replace(),
    "directory.same-replica": _again(
        "name each replica once; a copy that was started needs another broker id"
    ),
    "directory.same-files": _again("name each replica once; replace links by copies of the files"),
    "group.one-replica": _again("name the directories of two replicas or more"),
    "file.unreadable": _again("make the file readable; if its disk fails, replace the disk and the store"),
    "check.failed": _again("this is an error of the audit; report it with the text of the finding"),
    "file.foreign": Remedy(RemedyAction.SET_FILE_ASIDE, "no broker reads a file of this name"),
    "file.wrong-size": _replace(),
    "file.short": _replace(),
    "epoch.file-missing": _replace(),
    "epoch.file-broken": _replace(),
    "epoch.out-of-order": _replace(),
    "epoch.overlap": _replace(),
    "epoch.gap": _replace(),
    "epoch.before-first": _nothing(),
    "epoch.beyond-log": _replace(),
    "epoch.inside-record": _replace(),
    "epoch.missing": _replace(),
    "epoch.unknown": _replace(),
    "epoch.two-masters": _decide(_HISTORIES),
    "epoch.ahead-of-controller": _decide(
        "the controllers have lost decisions; if all of them have lost their storage: epochmq controllers "
        "adopt --dry-run, then epochmq controllers adopt"
    ),
    "epoch.behind-controller": _start("the master writes the epoch when it leads"),
    "controller.unknown-replica": _decide(
        "start the broker and look at epochmq status; if the controllers refuse its store: epochmq replica "
        "adopt GROUP/ID if the newer store is lost, epochmq replica discard GROUP/ID if it is a copy; if "
        "they know no replica of the group: epochmq controllers adopt"
    ),
    "controller.not-supplied": _again("name the directory of this replica, too"),
    "controller.not-in-sync": _start("the replica copies what it lacks from the master", needs_copy=True),
    "log.missing-segment": _replace(),
    "log.hole": _start(_SCRUB, needs_copy=True),
    "log.broken-record": _start(_SCRUB, needs_copy=True),
    "log.remains": _nothing(),
    "log.cut-below-confirmed": _start(
        "the replica copies the end of the log from the master", needs_copy=True
    ),
    "log.no-record": _nothing("the replica copies the log when it runs"),
    "log.behind": _nothing("the replica copies the rest of the log when it runs"),
    "log.diverged": _replace(
        otherwise="no majority tells which record is right: compare the two, decide, and start the replica "
        "that is wrong with an empty directory"
    ),
    "log.tail-not-common": _decide(_HISTORIES),
    "log.unacknowledged-tail": _nothing("the next start truncates the tail"),
    "log.two-histories": _decide(_HISTORIES),
    "dledger.gap": _replace(),
    "dledger.term-order": _replace(),
    "dledger.term-behind": _replace(),
    "dledger.missing-unit": _replace(),
    "dledger.wrong-unit": _replace(),
    "dledger.no-entry": _replace(),
    "dledger.broken-state": _replace(),
    "record.checksum": _start(_SCRUB, needs_copy=True),
    "record.store-time": _decide(
        "if only this replica has these times, log.diverged names them, too; if all have them, a clock was "
        "wrong: the messages stay as they are, but are found at another time and expire with their segment"
    ),
    "message.missing": _start(_SCRUB, needs_copy=True),
    "message.one-sided": _decide(_HISTORIES),
    "message.not-copied": _start("the shorter replica copies the messages when both run"),
    "message.in-both": _nothing(),
    "queue.missing-unit": _rebuild(),
    "queue.wrong-unit": _rebuild(),
    "queue.no-record": _rebuild(),
    "queue.not-repaired": _rebuild(),
    "queue.behind": _nothing("the next start completes the queue"),
    "queue.remains": _nothing(),
    "queue-offset.duplicate": _decide(_DUPLICATED),
    "queue-offset.skipped": _decide(_DUPLICATED),
    "topic.deleted": _nothing(),
    "topic.without-queues": _decide(
        "if the topic was not made again, its queues are lost: a start with an empty directory copies them"
    ),
    "topic.made-again": _nothing(),
    "consumer-offset.ahead": _start("the master lowers the offset to the end of the queue at its start"),
    "consumer-offset.at-zero": _nothing("if no person has reset the offsets, set them: epochmq group reset"),
    "consumer-offset.no-queue": _nothing("if the queue never was there: epochmq group, to delete the offset"),
    "state.unreadable": _table(
        "the start reads the file's .bak; if the broker does not start, write the file"
    ),
    "state.missing": _table("the start writes the file"),
    "state.differs": _table("compare the two tables, and set the right values with epochmq topic or group"),
    "delay-offset.ahead": _table(
        "edit config/delayOffset.json: the offset of the level must not be beyond the end of its queue, or "
        "the level delivers nothing until the queue reaches it"
    ),
    "index.missing-entry": _rebuild(),
    "index.missing-range": _rebuild(),
    "index.broken-header": _rebuild(),
    "index.broken-chain": _rebuild(),
    "index.wrong-time": _rebuild(),
    "timer.broken-wheel": Remedy(
        RemedyAction.REBUILD_WHEEL, "the next start builds the wheel from the timer log"
    ),
    "timer.wrong-slot": Remedy(
        RemedyAction.REBUILD_WHEEL, "the next start builds the wheel from the timer log"
    ),
    "timer.broken-chain": _replace(otherwise=_TIMER),
    "timer.broken-unit": _replace(otherwise=_TIMER),
    "timer.missing-file": _replace(otherwise=_TIMER),
    "timer.no-record": _replace(otherwise=_TIMER),
    "timer.missing-unit": _replace(otherwise=_TIMER),
    "timer.checkpoint-ahead": _replace(otherwise=_TIMER),
    "transaction.broken-half": _decide(_OF_LOG),
    "transaction.broken-op": _decide(_OF_LOG),
    "transaction.op-without-half": _decide(_OF_LOG),
    "transaction.unended": _decide(
        "ask the producer what became of the transaction, and send its message again if it was committed"
    ),
    "index.none": _nothing("if messageIndexEnable is true, a start without consume queues builds the index"),
    "transaction.pending": _nothing(),
    "pop.broken-record": _decide(_OF_LOG),
    "pop.record-ahead": _decide(_OF_LOG),
    "pop.broken-order": _table("remove the entry from config/consumerOrderInfo.json"),
    "pop.order-ahead": _table("remove the entry from config/consumerOrderInfo.json"),
    "batch-queue.no-record": _rebuild(),
    "batch-queue.missing-unit": _rebuild(),
    "batch-queue.wrong-unit": _rebuild(),
    "compaction.missing-file": _replace(),
    "compaction.wrong-unit": _replace(),
    "compaction.no-record": _replace(),
    "compaction.position-ahead": _replace(),
    "extension.broken-unit": _rebuild(),
    "extension.wrong-unit": _rebuild(),
    "extension.missing-unit": _nothing(),
    "extension.other-bit-map": _nothing(),
    "filter.broken-entry": _table("let the consumers of the group subscribe again, which writes the entry"),
    "request-mode.broken-entry": _table("set the request mode again: mqadmin setConsumeMode"),
    "static-topic.broken-mapping": _table("write the mapping again: mqadmin updateStaticTopic"),
    "auth.broken-entry": _table("write the user or the rule again: epochmq user, epochmq acl"),
    "auth.unknown-user": _decide("delete the rule, or create its user: epochmq acl, epochmq user"),
    "message.duplicate": _nothing(),
    "more": _again("repair what is listed first; the next audit lists what is left"),
}
"""The remedy of each kind in `findings.KINDS`."""
