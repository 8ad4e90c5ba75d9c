"""Implements `epochmq backup` and `epochmq restore`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec

from epochmq.exits import ExitCode, UsageError, print_error
from epochmq.verbs.cluster_calls import confirm, parse_time
from epochmq.verbs.output import Column, OutputTable, ResultFormat, VerbResult, print_result
from epochmq_operator.resources import GroupMode
from epochmq_store.backups import backup_plan, catalog, restoring, taking
from epochmq_store.backups.backup_plan import RestorePoint
from epochmq_store.backups.manifest import BackedUpGroup, BackupManifest
from epochmq_store.backups.storage_url import open_storage
from epochmq_store.backups.taking import BackupCut

IDENTITY_FILE = "brokerIdentity"
REPORT_EVERY_S = 5.0

COLUMNS = (
    Column("ID", "id"),
    Column("TAKEN", "takenMs", is_time=True),
    Column("GROUP", "group"),
    Column("START", "logStart"),
    Column("END", "logEnd"),
    Column("LAST MESSAGE", "lastStoredMs", is_time=True),
    Column("BYTES", "bytes"),
    Column("UPLOADED", "uploadedBytes"),
    Column("PARENT", "parent", is_wide=True),
    Column("REPLICA", "replica", is_wide=True),
)


def create(
    group: str | None, url: str, state: Path, directory: Path | None, *, full: bool, output: ResultFormat
) -> int:
    """Takes a backup of a group of a run, or of the store of a stopped broker."""
    if group is None and directory is None:
        raise UsageError("give a group of a run, or the store of a stopped broker by --directory")
    storage, started = open_storage(url), time.monotonic()
    if directory is not None:
        store = directory
        _reject_store_in_use(store)
        progress_of, make_cut = store, lambda: _cut_of_stopped(store, group)
    else:
        assert group is not None
        progress_of, make_cut = _running_group(state, group)
    taken = taking.take(
        storage, progress_of, make_cut, product=version("epochmq"), full=full, report=_reporter("backup")
    )
    seconds = time.monotonic() - started
    _note(f"backup {taken.id}: {taken.uploaded_bytes} bytes in {seconds:.1f} s")
    print_result(_result([taken]), output)
    return ExitCode.OK


def _cut_of_stopped(store: Path, group: str | None) -> BackupCut:
    """Everything in the store of a stopped broker. `group` is the brokerName of a store without identity."""
    if not store.is_dir():
        raise UsageError(f"{store}: no such directory")
    _reject_store_in_use(store)
    try:
        cluster, name, _ = (store / IDENTITY_FILE).read_text(encoding="utf-8").strip().split("#")
        mode = GroupMode.CONTROLLER
    except FileNotFoundError:
        if group is None:
            raise UsageError(
                f"{store} has no {IDENTITY_FILE}, as without controllers: give the brokerName, too"
            ) from None
        cluster, name, mode = "", group, GroupMode.MASTER_SLAVE
    except ValueError:
        raise UsageError(f"{store / IDENTITY_FILE}: expected cluster#name#id") from None
    replica = store.absolute().parent.name if store.name == "store" else store.absolute().name
    return BackupCut(BackedUpGroup(name, cluster, mode), replica, store, store, None)


def _reject_store_in_use(store: Path) -> None:
    from epochmq_spark.store_lock import broker_of

    if broker_of(store) is not None:
        raise UsageError(
            f"{store} is in use by a broker: name the group of the run instead, or stop the broker"
        )


def _running_group(state: Path, group: str) -> tuple[Path, Callable[[], BackupCut]]:
    """The store of the group's master, and what makes a cut."""
    from epochmq.verbs import running_group

    names = running_group.group_names(state)
    if group not in names:
        there = f"groups there: {', '.join(names)}" if names else "name the state directory with --state DIR"
        raise UsageError(f"no broker group of {state} has the name {group}; {there}")
    first = running_group.make_cut(state, group)

    def make_cut() -> BackupCut:
        made = running_group.make_cut(state, group)
        whole = [one.name for one in made.cut.replicas if one.end >= made.cut.confirmed]
        slaves = [name for name in whole if name != made.cut.master and name in made.alive]
        replica = next(iter(slaves), made.cut.master)
        store = made.directories[replica]
        mode = GroupMode.CONTROLLER if (store / IDENTITY_FILE).exists() else GroupMode.MASTER_SLAVE
        identity = BackedUpGroup(made.broker_name, made.cluster, mode)
        definitions = made.directories[made.cut.master]
        return BackupCut(identity, replica, store, definitions, made.cut.confirmed)

    return first.directories[first.cut.master], make_cut


def list_backups(url: str, output: ResultFormat) -> int:
    """Prints the backups of a URL."""
    storage = open_storage(url)
    found = catalog.manifests(storage)
    if not found and output is ResultFormat.TABLE:
        print_error(f"{storage.url} has no backup; take one with: epochmq backup GROUP --to URL")
        return ExitCode.NOTHING
    print_result(_result(found), output)
    return ExitCode.OK


def verify(url: str, backup: str | None, *, everything: bool, output: ResultFormat) -> int:
    """Reads every object of a backup, or of all, and compares it with the manifest."""
    storage = open_storage(url)
    found = catalog.existing(storage)
    chosen = found if everything else [catalog.choose(storage, found, backup)]
    done = catalog.verify(storage, chosen, _reporter("verify"))
    for fault in done.faults:
        print_error(fault)
    document = {
        "backups": [one.id for one in chosen],
        "objects": done.objects,
        "bytes": done.read_bytes,
        "faults": list(done.faults),
    }
    columns = [Column(name.upper(), name) for name in ("backups", "objects", "bytes", "faults")]
    row = {**document, "backups": done.backups, "faults": len(done.faults)}
    print_result(VerbResult(document, [OutputTable(columns, [row])], document["backups"]), output)  # type: ignore[arg-type] # a list
    return ExitCode.FAILED if done.faults else ExitCode.OK


def delete(url: str, backups: Sequence[str], *, dry_run: bool, yes: bool, output: ResultFormat) -> int:
    """Deletes backups."""
    storage = open_storage(url)
    found = catalog.existing(storage)
    return _delete(url, [catalog.choose(storage, found, one) for one in backups], dry_run, yes, output)


def prune(url: str, keep: int, *, dry_run: bool, yes: bool, output: ResultFormat) -> int:
    """Deletes all but the newest backups."""
    return _delete(url, backup_plan.expired(catalog.existing(open_storage(url)), keep), dry_run, yes, output)


def _delete(
    url: str, chosen: Sequence[BackupManifest], dry_run: bool, yes: bool, output: ResultFormat
) -> int:
    storage = open_storage(url)
    if chosen and not dry_run:
        confirm(f"Delete {', '.join(one.id for one in chosen)} from {storage.url}?", yes=yes)
    done = catalog.delete(storage, chosen, dry_run=dry_run)
    verb = "would be deleted" if dry_run else "deleted"
    _note(f"{len(done.backups)} backups and {done.objects} objects {verb}")
    print_result(_result(chosen), output)
    return ExitCode.OK


def restore(
    url: str,
    targets: Sequence[Path],
    *,
    backup: str | None,
    group: str | None,
    offset: int | None,
    at: str | None,
    output: ResultFormat,
) -> int:
    """Restores stores from a backup."""
    if offset is not None and at is not None:
        raise UsageError("give one of --offset and --time")
    point = RestorePoint(offset, None if at is None else parse_time("--time", at))
    storage, started = open_storage(url), time.monotonic()
    restored = restoring.restore(
        storage, targets, backup=backup, group=group, point=point, report=_reporter("restore")
    )
    _note(f"restored {len(targets)} stores in {time.monotonic() - started:.1f} s")
    rows = [
        {
            "directory": str(one),
            "backup": restored.backup,
            "start": restored.log_start,
            "end": restored.log_end,
        }
        for one in targets
    ]
    columns = [Column(name.upper(), name) for name in ("directory", "backup", "start", "end")]
    document = {**msgspec.to_builtins(restored), "directories": [str(one) for one in targets]}
    print_result(VerbResult(document, [OutputTable(columns, rows)], [str(one) for one in targets]), output)
    return ExitCode.OK


def _result(found: Sequence[BackupManifest]) -> VerbResult:
    rows = [
        {
            "id": one.id,
            "takenMs": one.taken_ms,
            "group": one.group.broker_name,
            "mode": one.group.mode,
            "replica": one.replica,
            "logStart": one.log_start,
            "logEnd": one.log_end,
            "lastStoredMs": one.last_stored_ms,
            "bytes": one.total_bytes,
            "uploadedBytes": one.uploaded_bytes,
            "uploadedObjects": one.uploaded_objects,
            "parent": one.parent,
            "lineage": one.lineage,
        }
        for one in found
    ]
    return VerbResult(rows, [OutputTable(COLUMNS, rows)], [one.id for one in found])


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _reporter(verb: str) -> Callable[[str], None]:
    """Prints what a long verb does, now and then."""
    last = time.monotonic()

    def report(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= REPORT_EVERY_S:
            last = time.monotonic()
            _note(f"{verb}: {text} …")

    return report
