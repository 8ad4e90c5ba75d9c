"""A backup has everything below the cut, writes only what earlier backups lack, and comes back as it was."""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from epochmq_protocol.epoch_entries import EpochEntry, format_epoch_file
from epochmq_store.backups import catalog, restoring, taking
from epochmq_store.backups.backup_errors import BackupError, BrokenBackupError
from epochmq_store.backups.backup_plan import RestorePoint
from epochmq_store.backups.manifest import BackedUpGroup, BackupManifest
from epochmq_store.backups.object_storage import DirectoryObjects
from epochmq_store.backups.record_walk import BrokenRecordError
from epochmq_store.backups.taking import BackupCut
from tests.unit.store.backups.log_bytes import SEGMENT, log, write_store

GROUP = BackedUpGroup("orders-a", "DefaultCluster", "Controller")
MESSAGES = [(1000 + number, b"message %d" % number + b"." * 150) for number in range(60)]
OFFSETS = b'{"offsetTable":{"t@readers":{0:5},"rmq_sys_REVIVE_LOG_c@CID_RMQ_SYS_REVIVE_GROUP":{0:3}}}'


class Clock:
    """Seconds since 1970, a second more at each call."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class Site:
    """A store of a replica, and the storage of its backups."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        self.folder = folder
        self.storage = DirectoryObjects(folder / "backups", str(folder / "backups"))
        self.clock = Clock()
        self.data = b""
        self.write(len(MESSAGES) // 2)

    def write(self, count: int) -> None:
        """The store has the first `count` messages."""
        self.data = log(MESSAGES[:count])
        config = {
            "topics.json": b'{"t":%d}' % count,
            "consumerOffset.json": OFFSETS,
            "delayOffset.json": b"{}",
        }
        write_store(self.store, self.data, config=config)
        (self.store / "epochFileCheckpoint").write_text(format_epoch_file([EpochEntry(1, 0)]))

    def take(
        self, end: int | None = None, group: BackedUpGroup = GROUP, *, full: bool = False
    ) -> BackupManifest:
        cut = BackupCut(group, "orders-broker-0", self.store, self.store, end)
        return taking.take(self.storage, self.store, lambda: cut, product="1", full=full, clock=self.clock)

    def restore(self, name: str, **options: object) -> Path:
        target = self.folder / name
        restoring.restore(self.storage, [target], **options)  # type: ignore[arg-type] # as the test says
        return target


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def log_of(store: Path) -> bytes:
    """The log of a store, without the zeros at its end."""
    files = sorted((store / "commitlog").iterdir())
    assert all(path.stat().st_size == SEGMENT for path in files)
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


def test_a_restored_store_has_the_log_and_the_tables_and_no_identity(site: Site) -> None:
    (site.store / "brokerIdentity").write_text("c#orders-a#1")
    taken = site.take(len(site.data))
    restored = site.restore("restored")
    assert log_of(restored) == site.data.rstrip(b"\0")
    assert taken.log_end == len(site.data)
    assert len(taken.pieces) > 1, "files of the log are pieces of their own"
    assert {path.name for path in (restored / "config").iterdir()} == {
        "topics.json",
        "consumerOffset.json",
        "delayOffset.json",
    }
    assert {path.name for path in restored.iterdir()} == {
        "commitlog",
        "config",
        "checkpoint",
        "restoredFrom.json",
    }
    fields = struct.unpack_from(">5q", (restored / "checkpoint").read_bytes())
    assert fields == (MESSAGES[29][0], 0, 0, 0, len(site.data))
    assert json.loads((restored / "restoredFrom.json").read_bytes())["mode"] == "Controller"


def test_a_cut_inside_a_record_leaves_it_out(site: Site) -> None:
    whole = len(log(MESSAGES[:10]))
    taken = site.take(whole + 17)
    assert taken.log_end == whole
    assert log_of(site.restore("restored")) == site.data[:whole].rstrip(b"\0")


def test_a_stopped_store_ends_with_its_last_whole_record(site: Site) -> None:
    last = sorted((site.store / "commitlog").iterdir())[-1]
    at = len(site.data) % SEGMENT
    content = bytearray(last.read_bytes())
    content[at : at + 20] = b"the end of a torn one"[:20]
    last.write_bytes(content)
    assert site.take(None).log_end == len(site.data)


def test_a_stopped_store_may_have_a_file_that_was_created_in_advance(site: Site) -> None:
    last = sorted((site.store / "commitlog").iterdir())[-1]
    later = last.with_name(f"{int(last.name) + SEGMENT:020}")
    later.write_bytes(bytes(SEGMENT))
    assert site.take(None).log_end == len(site.data)
    later.write_bytes(bytes([1]) * SEGMENT)
    with pytest.raises(BrokenRecordError, match="but the log has later files"):
        site.take(None, full=True)


def test_a_broken_record_below_the_cut_ends_the_backup(site: Site) -> None:
    first = sorted((site.store / "commitlog").iterdir())[0]
    content = bytearray(first.read_bytes())
    content[120] ^= 1
    first.write_bytes(content)
    with pytest.raises(BrokenRecordError, match="offset 0: the checksum of a body is wrong"):
        site.take(len(site.data))
    assert catalog.manifests(site.storage) == []


def test_a_broken_size_at_the_cut_is_not_taken_for_a_cut_inside_a_record(site: Site) -> None:
    at = len(log(MESSAGES[:29]))
    last = sorted((site.store / "commitlog").iterdir())[-1]
    content = bytearray(last.read_bytes())
    content[at % SEGMENT + 2] ^= 1  # the record seems to reach beyond the cut
    last.write_bytes(content)
    with pytest.raises(BrokenRecordError):
        site.take(len(site.data))


def test_a_second_backup_writes_only_what_is_new(site: Site) -> None:
    first = site.take(len(site.data))
    again = site.take(len(site.data))
    assert (again.uploaded_bytes, again.uploaded_objects, again.parent) == (0, 0, first.id)
    before = len(site.data)
    site.write(45)
    third = site.take(len(site.data))
    tables = len(b'{"t":45}')
    assert third.uploaded_bytes == len(site.data) - before + tables
    assert third.lineage == first.id
    assert log_of(site.restore("restored")) == site.data
    assert site.take(len(site.data), full=True).uploaded_bytes >= len(site.data)


def test_a_log_with_another_history_is_written_as_a_whole(site: Site) -> None:
    first = site.take(len(site.data))
    (site.store / "epochFileCheckpoint").write_text(
        format_epoch_file([EpochEntry(1, 0), EpochEntry(2, len(site.data) - 5)])
    )
    second = site.take(len(site.data))
    assert (second.parent, second.lineage != first.lineage) == (None, True)


def test_a_new_group_of_the_same_name_and_epochs_takes_nothing_over(site: Site) -> None:
    site.take(len(site.data))
    other = log([(stored + 1, body) for stored, body in MESSAGES[:30]])
    write_store(site.store, other)
    assert site.take(len(other)).parent is None


def test_expired_files_are_left_out(site: Site) -> None:
    site.take(len(site.data))
    sorted((site.store / "commitlog").iterdir())[0].unlink()
    taken = site.take(len(site.data))
    assert (taken.log_start, taken.uploaded_bytes) == (SEGMENT, 0)
    assert (
        sorted(path.name for path in (site.restore("restored") / "commitlog").iterdir())[0]
        == f"{SEGMENT:020}"
    )


def test_a_url_is_of_one_group(site: Site) -> None:
    site.take(len(site.data))
    with pytest.raises(BackupError, match="has backups of group orders-a, expected bills-a"):
        site.take(len(site.data), BackedUpGroup("bills-a", "DefaultCluster", "Controller"))
    with pytest.raises(BackupError, match="is of group orders-a, expected bills-a"):
        site.restore("restored", group="bills-a")


def test_a_dledger_store_is_refused(site: Site) -> None:
    (site.store / "dledger-n0").mkdir()
    with pytest.raises(BackupError, match="has a DLedger log"):
        site.take(len(site.data))


def test_progress_is_read_before_the_cut_and_topics_after_it(site: Site) -> None:
    """Otherwise a message could count as processed whose result the restored log lacks."""
    end = len(site.data)

    def make_cut() -> BackupCut:
        (site.store / "config" / "delayOffset.json").write_bytes(b"later")
        (site.store / "config" / "topics.json").write_bytes(b"later")
        return BackupCut(GROUP, "orders-broker-0", site.store, site.store, end)

    taking.take(site.storage, site.store, make_cut, product="1", clock=site.clock)
    config = site.restore("restored") / "config"
    assert (config / "delayOffset.json").read_bytes() == b"{}"
    assert (config / "topics.json").read_bytes() == b"later"


def test_sparse_files_keep_their_size(site: Site) -> None:
    (site.store / "timerlog").mkdir()
    (site.store / "timerlog" / f"{0:020}").write_bytes(b"unit".ljust(100_000, b"\0"))
    taken = site.take(len(site.data))
    assert {one.path: (one.stored, one.size) for one in taken.files}[f"timerlog/{0:020}"] == (4, 100_000)
    restored = site.restore("restored")
    assert (restored / "timerlog" / f"{0:020}").read_bytes() == b"unit".ljust(100_000, b"\0")


@pytest.mark.parametrize("damage", ["missing", "changed", "short", "long"])
def test_a_damaged_object_is_found_and_nothing_is_restored(site: Site, damage: str) -> None:
    taken = site.take(len(site.data))
    path = site.folder / "backups" / taken.pieces[1].key
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {"changed": b"x" + content[1:], "short": content[:-1], "long": content + b"x"}[damage]
        )
    done = catalog.verify(site.storage, [taken], lambda text: None)
    assert len(done.faults) == 1
    assert taken.pieces[1].key in done.faults[0]
    with pytest.raises(BrokenBackupError, match=taken.pieces[1].key):
        site.restore("restored")
    assert {path.name for path in site.folder.iterdir()} == {"store", "backups"}


def test_a_whole_backup_verifies(site: Site) -> None:
    taken = site.take(len(site.data))
    done = catalog.verify(site.storage, [taken], lambda text: None)
    assert (done.faults, done.read_bytes) == ((), taken.total_bytes)


def test_a_target_with_files_is_refused(site: Site) -> None:
    site.take(len(site.data))
    (site.folder / "restored").mkdir()
    (site.folder / "restored" / "file").touch()
    with pytest.raises(BackupError, match="is not empty"):
        site.restore("restored")
    (site.folder / "empty").mkdir()
    assert log_of(site.restore("empty")) == site.data


def test_a_full_disk_restores_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.take(len(site.data))

    def full(descriptor: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(restoring, "write_fully", full)
    with pytest.raises(OSError, match="No space left"):
        site.restore("restored")
    assert {path.name for path in site.folder.iterdir()} == {"store", "backups"}


def test_a_url_without_backups_says_so(site: Site) -> None:
    with pytest.raises(BackupError, match="has no backup"):
        site.restore("restored")


def test_an_upload_that_fails_leaves_no_backup(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    written = site.storage.write

    def fail(key: str, parts: Iterable[bytes]) -> None:
        if "/files/" in key:
            raise OSError(errno.ENOSPC, "No space left on device")
        written(key, parts)

    monkeypatch.setattr(site.storage, "write", fail)
    with pytest.raises(OSError, match="No space left"):
        site.take(len(site.data))
    assert catalog.manifests(site.storage) == []


def test_a_backup_whose_parent_is_deleted_meanwhile_does_not_exist(site: Site) -> None:
    first = site.take(len(site.data))
    written = site.storage.write

    class Deleting(DirectoryObjects):
        def write(self, key: str, parts: Iterable[bytes]) -> None:
            catalog.delete(site.storage, [first], clock=site.clock)
            written(key, parts)

    site.storage = Deleting(site.folder / "backups", "backups")
    with pytest.raises(BackupError, match="was deleted meanwhile"):
        site.take(len(site.data))
    assert catalog.manifests(site.storage) == []


def test_a_deletion_keeps_what_other_backups_need(site: Site) -> None:
    first = site.take(len(site.data))
    site.write(45)
    second = site.take(len(site.data))
    site.write(60)
    third = site.take(len(site.data))
    assert catalog.delete(site.storage, [first], dry_run=True).objects == 1, "the first topics.json"
    catalog.delete(site.storage, [first])
    catalog.delete(site.storage, [second])
    assert catalog.ids(site.storage) == [third.id]
    assert log_of(site.restore("restored")) == site.data
    catalog.delete(site.storage, [third])
    assert list(site.storage.keys("")) == []


def test_what_a_failed_backup_left_is_deleted_after_a_day(site: Site) -> None:
    key = "objects/20300131T140000Z-0a1b2c/log/0-1"
    site.storage.write(key, [b"x"])
    _, at = next(iter(site.storage.keys("objects")))
    assert catalog.delete(site.storage, [], clock=lambda: at + 23 * 3600).objects == 0
    assert catalog.delete(site.storage, [], clock=lambda: at + 25 * 3600).objects == 1


def test_an_offset_restores_the_records_before_it(site: Site) -> None:
    site.take(len(site.data))
    site.write(60)
    site.take(len(site.data))
    for count in (7, 30, 45, 60):
        end = len(log(MESSAGES[:count]))
        restored = site.restore(f"whole-{count}", point=RestorePoint(offset=end))
        assert log_of(restored) == log(MESSAGES[:count])
        if count < 60:
            cut = site.restore(f"inside-{count}", point=RestorePoint(offset=end + 8))
            assert log_of(cut) == log(MESSAGES[:count])
    with pytest.raises(BackupError, match="no backup of this history reaches offset"):
        site.restore("beyond", point=RestorePoint(offset=len(site.data) + 1))


def test_a_time_restores_the_messages_stored_until_then(site: Site) -> None:
    site.take(len(site.data))
    restored = site.restore("restored", point=RestorePoint(time_ms=MESSAGES[11][0]))
    assert log_of(restored) == log(MESSAGES[:12])
    with pytest.raises(BackupError, match="no backup of this history reaches time"):
        site.restore("beyond", point=RestorePoint(time_ms=int(site.clock.now * 1000) + 1000))


def test_a_point_in_time_takes_the_progress_of_the_backup_before_it(site: Site) -> None:
    site.take(len(site.data))
    early = len(site.data)
    site.write(60)
    (site.store / "config" / "delayOffset.json").write_bytes(b"later")
    site.take(len(site.data))
    config = site.restore("between", point=RestorePoint(offset=early + 500)) / "config"
    assert (config / "delayOffset.json").read_bytes() == b"{}"
    assert (config / "topics.json").read_bytes() == b'{"t":60}'
    config = site.restore("before", point=RestorePoint(offset=early - 500)) / "config"
    assert not (config / "delayOffset.json").exists(), "delayed messages are delivered again"
    kept = (config / "consumerOffset.json").read_bytes()
    assert b"t@readers" in kept
    assert b"CID_RMQ_SYS" not in kept


def test_an_empty_log_is_backed_up(site: Site) -> None:
    for path in (site.store / "commitlog").iterdir():
        path.unlink()
    taken = site.take(0)
    assert (taken.log_start, taken.log_end, taken.pieces) == (0, 0, ())
    assert log_of(site.restore("restored")) == b""
