"""`python -m epochmq_store.backups.pod_program`: takes a backup of a replica's volume, in a pod.

The program reads what was processed (offsets, timers), creates the file `--ready`, and waits until the file
`--cut` has an offset: whoever has ordered the backup reads the group's confirm offset only then, and writes
it. See `taking` for the reason.

The termination message is a JSON object: `id`, `parent`, `replica`, `takenMs`, `logStart`, `logEnd`,
`lastStoredMs`, `bytes`, `uploadedBytes`, `pruned` (how many older backups were deleted) and `warning` (why
older backups could not be deleted; empty without a fault). With an exit code other than 0 there is no
backup, and the message is `{"error"}`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from epochmq_protocol.errors import EpochMQError
from epochmq_store.backups import backup_plan, catalog, taking
from epochmq_store.backups.manifest import BackedUpGroup, BackupManifest
from epochmq_store.backups.object_storage import ObjectStorage
from epochmq_store.backups.pod_messages import (
    MESSAGE,
    MESSAGE_LENGTH_MAX,
    awaited_text,
    exit_when_terminated,
    progress_reporter,
    run_task,
)
from epochmq_store.backups.storage_url import open_storage
from epochmq_store.backups.taking import BackupCut

CUT_WAIT_S = 600.0
CUT_DIGITS_MAX = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 1 if there is no backup."""
    chosen = _parser().parse_args(arguments)
    return run_task(lambda: run(chosen), chosen.message)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="epochmq_store.backups.pod_program")
    parser.add_argument("--url", required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--broker-name", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--mode", required=True)
    parser.add_argument("--replica", required=True)
    parser.add_argument("--order", required=True)
    parser.add_argument("--ready", type=Path, required=True)
    parser.add_argument("--cut", type=Path, required=True)
    parser.add_argument("--cut-wait-s", type=float, default=CUT_WAIT_S)
    parser.add_argument("--keep", type=int)
    parser.add_argument("--message", type=Path, default=MESSAGE)
    return parser


def run(chosen: argparse.Namespace) -> dict[str, Any]:
    """Takes the backup and deletes old ones; returns the termination message. Raises EpochMQError and
    OSError."""
    storage = open_storage(chosen.url)
    group = BackedUpGroup(chosen.broker_name, chosen.cluster, chosen.mode)

    def make_cut() -> BackupCut:
        chosen.ready.touch()
        end = _awaited_cut(chosen.cut, chosen.cut_wait_s)
        return BackupCut(group, chosen.replica, chosen.store, chosen.store, end)

    taken = taking.take(
        storage,
        chosen.store,
        make_cut,
        product=version("epochmq"),
        order=chosen.order,
        report=progress_reporter(),
    )
    pruned, warning = (0, "") if chosen.keep is None else _prune(storage, chosen.keep)
    return {**summary(taken), "pruned": pruned, "warning": warning}


def _awaited_cut(path: Path, wait_s: float) -> int:
    """The offset in a file. Raises BackupError."""
    return int(awaited_text(path, wait_s, _is_offset, "offset", "an offset of the log"))


def _is_offset(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= CUT_DIGITS_MAX


def _prune(storage: ObjectStorage, keep: int) -> tuple[int, str]:
    """Deletes all but the newest backups: (how many, why not). The new backup exists whatever comes of it."""
    try:
        done = catalog.delete(storage, backup_plan.expired(catalog.existing(storage), keep))
    except (EpochMQError, OSError) as error:
        return 0, f"older backups were not deleted: {error}"[:MESSAGE_LENGTH_MAX]
    return len(done.backups), ""


def summary(taken: BackupManifest) -> dict[str, Any]:
    """What the termination message says of a backup."""
    return {
        "id": taken.id,
        "parent": taken.parent or "",
        "replica": taken.replica,
        "takenMs": taken.taken_ms,
        "logStart": taken.log_start,
        "logEnd": taken.log_end,
        "lastStoredMs": taken.last_stored_ms,
        "bytes": taken.total_bytes,
        "uploadedBytes": taken.uploaded_bytes,
    }


if __name__ == "__main__":
    exit_when_terminated()
    sys.exit(main())
