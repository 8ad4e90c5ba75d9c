"""`python -m epochmq_store.backups.restore_pod_program`: restores the volume of a replica, in a pod.

With `choose` the program only finds the backup whose log is to be restored, and checks that it can be. With
`restore` it waits until the file `--backup` has the id of that backup, and restores it to the volume
`--volume`. Whoever has ordered the restore writes that file once all pods of the group have a node.

The termination message is a JSON object: `backup` (an id), `brokerName` (of the group that was backed up),
`logStart` and `logEnd`, by `choose` also `takenMs` and `bytes`. With an exit code other than 0 the volume has
no store, and the message is `{"error"}`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from epochmq_store.backups import backup_plan, catalog
from epochmq_store.backups.backup_errors import BackupError, BackupStorageError
from epochmq_store.backups.backup_plan import RestorePoint
from epochmq_store.backups.manifest import BACKUP_ID
from epochmq_store.backups.pod_messages import (
    MESSAGE,
    awaited_text,
    exit_when_terminated,
    progress_reporter,
    run_task,
)
from epochmq_store.backups.storage_url import open_storage
from epochmq_store.backups.volume_restoring import restore_volume

ATTEMPTS = 5
PAUSE_S = 15.0
WAIT_S = 24 * 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 1 if nothing is restored."""
    chosen = _parser().parse_args(arguments)
    task = _choose if chosen.task == "choose" else _restore
    return run_task(lambda: _with_attempts(chosen, task), chosen.message)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="epochmq_store.backups.restore_pod_program")
    parser.add_argument("task", choices=("choose", "restore"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--offset", type=int)
    parser.add_argument("--time-ms", type=int)
    parser.add_argument("--attempts", type=int, default=ATTEMPTS)
    parser.add_argument("--pause-s", type=float, default=PAUSE_S)
    parser.add_argument("--message", type=Path, default=MESSAGE)
    choose = parser.add_argument_group("choose")
    choose.add_argument("--mode", default="")
    choose.add_argument("--backup-id")
    restore = parser.add_argument_group("restore")
    restore.add_argument("--volume", type=Path)
    restore.add_argument("--order", default="")
    restore.add_argument("--backup", type=Path)
    restore.add_argument("--wait-s", type=float, default=WAIT_S)
    return parser


def _with_attempts(
    chosen: argparse.Namespace, task: Callable[[argparse.Namespace], dict[str, Any]]
) -> dict[str, Any]:
    """The result of the task. A storage that cannot be reached is tried again some times."""
    for attempt in range(1, chosen.attempts + 1):
        try:
            return task(chosen)
        except BackupStorageError as error:
            if attempt == chosen.attempts:
                raise
            print(f"attempt {attempt} of {chosen.attempts} failed: {error}", file=sys.stderr, flush=True)
            time.sleep(chosen.pause_s)
    raise BackupError(f"--attempts: {chosen.attempts}, expected at least 1")


def _point(chosen: argparse.Namespace) -> RestorePoint:
    return RestorePoint(chosen.offset, chosen.time_ms)


def _choose(chosen: argparse.Namespace) -> dict[str, Any]:
    """Which backup's log is restored. Raises BackupError if the group cannot start from it."""
    storage = open_storage(chosen.url)
    found = catalog.existing(storage)
    log = backup_plan.log_for(found, catalog.choose(storage, found, chosen.backup_id), _point(chosen))
    if log.group.mode != chosen.mode:
        raise BackupError(
            f"backup {log.id} is of a group in the mode {log.group.mode}, and this group's mode is "
            f"{chosen.mode}: create the group in the mode {log.group.mode}"
        )
    return {
        "backup": log.id,
        "brokerName": log.group.broker_name,
        "logStart": log.log_start,
        "logEnd": log.log_end,
        "takenMs": log.taken_ms,
        "bytes": log.total_bytes,
    }


def _restore(chosen: argparse.Namespace) -> dict[str, Any]:
    """Restores the volume."""
    backup = awaited_text(chosen.backup, chosen.wait_s, _is_id, "id of a backup", "the id of a backup")
    restored = restore_volume(
        open_storage(chosen.url),
        chosen.volume,
        order=chosen.order,
        backup=backup,
        point=_point(chosen),
        report=progress_reporter(),
    )
    return {
        "backup": restored.backup,
        "brokerName": restored.broker_name,
        "logStart": restored.log_start,
        "logEnd": restored.log_end,
    }


def _is_id(text: str) -> bool:
    return BACKUP_ID.fullmatch(text) is not None


if __name__ == "__main__":
    exit_when_terminated()
    sys.exit(main())
