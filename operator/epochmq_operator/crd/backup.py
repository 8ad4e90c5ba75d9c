"""Defines the status and the columns of `BrokerGroupBackup` in the API server."""

# pure: plain data.

from __future__ import annotations

from typing import Any

from epochmq_operator.crd.schema import Schema
from epochmq_operator.crd.simple_kind import SimpleKind, number, text
from epochmq_operator.crd.status import CONDITIONS, column
from epochmq_operator.resources.backup import (
    BACKUP_KIND,
    BACKUP_RULES,
    EXPECTED_OF_BACKUPS,
    BrokerGroupBackup,
    BrokerGroupBackupSpec,
)

BACKUP_CONDITIONS = ("Progressing", "Complete", "Ready", "Reconciling", "Stalled")

_RUN: Schema = {
    "number": number("Number of the run, counted for each resource."),
    "trigger": text("What started it: once, a time of the schedule, or asked and the annotation's value."),
    "started": text("Time when it began."),
    "finished": text("Time when it ended."),
    "backup": text("Id of the backup; empty if the run failed."),
    "parent": text("Id of the backup that it took the rest from; empty: it has everything itself."),
    "replica": text("Pod of the replica that was read."),
    "logStart": number("Physical offset of the log where the backup starts."),
    "logEnd": number("Physical offset of the log up to which the backup has every message."),
    "lastMessage": text("Greatest store time of its messages."),
    "bytes": number("Size of everything that the backup consists of."),
    "uploadedBytes": number("Number of bytes that the run added to the storage."),
    "deleted": number("Number of older backups that the run deleted."),
    "reason": text("Reason for a failure, in CamelCase."),
    "message": text("Explanation of a failure, or why older backups were not deleted."),
}

BACKUP_STATUS: Schema = {
    "description": "Observed state, written by the operator only.",
    "type": "object",
    "x-kubernetes-preserve-unknown-fields": True,
    "properties": {
        "observedGeneration": number("Generation of the resource that this status describes."),
        "phase": text("Summary phase: Waiting, Running, Done, Failed, Suspended or Invalid."),
        "backup": text("Id of the last backup."),
        "logEnd": number("Physical offset of the log up to which the last backup has every message."),
        "lastMessage": text("Greatest store time of the messages of the last backup."),
        "bytes": number("Size of everything that the last backup consists of."),
        "lastSuccess": text("Time when the last run with a backup began: what came later is not in it."),
        "lastFinished": text("Time when the last run ended."),
        "error": text("Explanation of the failure of the last run; absent if it has a backup."),
        "nextRun": text("Time when the next backup is due."),
        "run": {
            "description": "The present run and its step.",
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": True,
        },
        "history": {
            "description": "The last runs, newest first.",
            "type": "array",
            "maxItems": 1000,
            "x-kubernetes-list-type": "atomic",
            "items": {
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": True,
                "properties": _RUN,
            },
        },
        "conditions": {
            **CONDITIONS,
            "description": f"Conditions of the backup: {', '.join(BACKUP_CONDITIONS)}.",
        },
    },
}

BACKUP_COLUMNS: list[dict[str, Any]] = [
    column("Group", ".spec.brokerGroup"),
    column("Schedule", ".spec.schedule"),
    column("Phase", ".status.phase"),
    column("Backup", ".status.backup"),
    column("Success", ".status.lastSuccess", "date"),
    column("Bytes", ".status.bytes", "integer"),
    column("Age", ".metadata.creationTimestamp", "date"),
    column("Error", ".status.error", priority=1),
]

BACKUP = SimpleKind(
    kind=BACKUP_KIND,
    short_name="bgb",
    model=BrokerGroupBackup,
    spec=BrokerGroupBackupSpec,
    rules=BACKUP_RULES,
    expected=EXPECTED_OF_BACKUPS,
    status=BACKUP_STATUS,
    columns=BACKUP_COLUMNS,
    inner="history",
)
