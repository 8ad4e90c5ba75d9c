# pure: the state files that an audit reads
"""Lists the state files that an audit reads: what it checks in each of them, and the kinds of findings that
name what is wrong. The table in docs/audit.md has the same rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class StateFile:
    """A state file by its path in the store, what is checked in it, and the kinds of its findings."""

    name: str
    checked: str
    kinds: tuple[str, ...]


STATE_FILES_READ: Final = (
    StateFile(
        "checkpoint",
        "its length; times up to tomorrow; offsets of at least 0; after a clean stop not all of them 0; "
        "the log reaches the confirm offset",
        ("state.unreadable", "state.missing", "log.cut-below-confirmed"),
    ),
    StateFile(
        "epochFileCheckpoint",
        "count, checksum, each line; against the log, the other replicas and the controllers",
        ("epoch.file-broken", "epoch.file-missing"),
    ),
    StateFile(
        "brokerIdentity",
        "`cluster#brokerName#brokerId`; the group; no other replica has the same id",
        ("state.unreadable", "state.missing", "directory.other-group", "directory.same-replica"),
    ),
    StateFile(
        "brokerIdentity-temp", "`cluster#brokerName#brokerId#registerCheckCode`", ("state.unreadable",)
    ),
    StateFile(
        "logExtent.json", "offsets of at least 0, the first not behind the last", ("state.unreadable",)
    ),
    StateFile("logPaths.json", "a list of directories", ("state.unreadable", "directory.unreadable")),
    StateFile("dataPaths.json", "a list of directories", ("state.unreadable", "directory.unreadable")),
    StateFile("queues.clean", "a time", ("state.unreadable",)),
    StateFile("brokerIdentity-incarnations", "names, separated by commas", ("state.unreadable",)),
    StateFile(
        "restoredFrom.json",
        "backup, group and mode have a name; offsets of at least 0, the first not behind the last",
        ("state.unreadable",),
    ),
    StateFile("logDoubt.json", "each field is true, false, or a number of at least 0", ("state.unreadable",)),
    StateFile("config/steering.json", "each field is true or false", ("state.unreadable",)),
    StateFile(
        "config/topics.json",
        "each entry: its name, numbers of queues of at least 0, permission 0 to 15; the version; equal to "
        "the table of the same version of another replica",
        ("state.unreadable", "state.missing", "state.differs"),
    ),
    StateFile(
        "config/subscriptionGroup.json",
        "each entry: its name, numbers in the range of their type; the version; equal to the table of the "
        "same version of another replica",
        ("state.unreadable", "state.missing", "state.differs"),
    ),
    StateFile(
        "config/consumerOffset.json",
        "each queue id and offset: at least 0; not beyond the end that any replica gives the queue",
        ("state.unreadable", "state.missing", "consumer-offset.ahead"),
    ),
    StateFile("config/lmqConsumerOffset.json", "the same", ("state.unreadable", "consumer-offset.ahead")),
    StateFile(
        "config/delayOffset.json",
        "each level: at least 1; each offset: at least 0; not beyond the end of the queue in any replica",
        ("state.unreadable", "delay-offset.ahead"),
    ),
    StateFile(
        "config/timercheck",
        "times up to tomorrow, offsets of at least 0; against the timer log and the queue",
        ("state.unreadable", "timer.checkpoint-ahead"),
    ),
    StateFile("config/timermetrics", "counts are numbers, times up to tomorrow", ("state.unreadable",)),
    StateFile("config/transactionMetrics", "counts are numbers, times up to tomorrow", ("state.unreadable",)),
    StateFile(
        "config/consumerOrderInfo.json",
        "each entry: rising offsets, a bit for each; not beyond the end of the queue",
        ("state.unreadable", "pop.broken-order", "pop.order-ahead"),
    ),
    StateFile(
        "config/consumerFilter.json",
        "each entry: topic, group, expression, positions in the bit map",
        ("state.unreadable", "filter.broken-entry"),
    ),
    StateFile(
        "config/messageRequestMode.json",
        "each entry names its topic and group",
        ("state.unreadable", "request-mode.broken-entry"),
    ),
    StateFile(
        "config/topicQueueMapping.json",
        "each queue: generations and offsets rise",
        ("state.unreadable", "static-topic.broken-mapping"),
    ),
    StateFile(
        "config/auth.json",
        "users, types, ACLs and their rules",
        ("state.unreadable", "auth.broken-entry", "auth.unknown-user"),
    ),
    StateFile(
        "compaction/position-checkpoint",
        "positions of at least -1; after a clean stop not beyond the end of the queue",
        ("state.unreadable", "compaction.position-ahead"),
    ),
    StateFile(
        "index/TIME",
        "the header: times up to tomorrow, offsets of at least 0, the first not behind the last, numbers "
        "that fit the size; the chains of its entries",
        ("index.broken-header", "index.broken-chain", "file.unreadable"),
    ),
    StateFile(
        "timerwheel",
        "size, the place of each slot; against the timer log",
        ("timer.broken-wheel", "timer.wrong-slot", "directory.incomplete"),
    ),
    StateFile(
        "dledger-ID/currterm",
        "the term; entries have no later one",
        ("dledger.broken-state", "dledger.term-behind"),
    ),
    StateFile(
        "dledger-ID/checkpoint",
        "the committed index; the log reaches it",
        ("dledger.broken-state", "log.cut-below-confirmed"),
    ),
    StateFile("queueEnds.json", "of a frozen view: queue ids and ends of at least 0", ("state.unreadable",)),
)
