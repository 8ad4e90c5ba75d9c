"""Finds out whether a master has the files that a replica's log has lost at its start."""

from __future__ import annotations

from epochmq_broker.replication.ha.checksum_comparison import LogRange
from epochmq_broker.replication.ha.epochs import HADivergedError
from epochmq_broker.replication.ha.log_doubt import LogDoubt
from epochmq_broker.replication.ha.master_checksums import MasterChecksumClient
from epochmq_store.log.commit_log import CommitLog


async def check_missing_start(
    log: CommitLog, doubt: LogDoubt, master: MasterChecksumClient | None, epoch: int
) -> None:
    """Raises HADivergedError if this log has lost files at its start that the master of `epoch` has, or may
    have, if it is one of RocketMQ's and cannot say. A replica copies nothing in front of its log, so it would
    never get them. Raises EpochMQError if the master does not respond."""
    missing, first = doubt.missing_from, log.min_offset
    if missing is None or first <= missing:
        return
    found = None
    if master is not None:
        found = await master.checksums(LogRange(missing, missing + 1, 1), epoch)
    if found is not None and found.begins >= first:
        return
    has = "may have" if found is None else "has"
    raise HADivergedError(
        f"the log in {log.files.directory} begins at {first}: files that this broker has not deleted, from "
        f"{missing} on, are missing, and the master {has} them. Nothing was changed. To copy the whole log: "
        "stop this broker, and empty its store"
    )
