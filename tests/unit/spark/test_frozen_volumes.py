"""Tests frozen volumes behind volume readers: the audit finds nothing in healthy ones wherever the cut is,
and below the cut it finds the same as in the directories of stopped brokers."""

from __future__ import annotations

import json
import random
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

import numpy as np

from epochmq_protocol.errors import EpochMQError
from epochmq_spark import (
    drill_down,
    files,
    files_at_cut,
    frozen_volume,
    kubernetes_driver,
    store_layout,
    verdict,
    volume_client,
)
from epochmq_spark.checks.log_extent import LogExtent
from epochmq_spark.decode import state_tables
from epochmq_spark.decode.epoch_file import parse_epoch_text
from epochmq_spark.decode.index_entries import INDEX_ENTRY
from epochmq_spark.drill_down import AuditedLog
from epochmq_spark.files_at_cut import VolumeCut, epoch_file_at
from epochmq_spark.sources.index import IndexFileScan
from epochmq_spark.volume_reader import VolumeReader
from tests.spark import expectations, group_copies
from tests.support.descriptors import open_files_in
from tests.unit.spark import inprocess
from tests.unit.spark.conftest import Group

pytestmark = pytest.mark.filterwarnings("ignore")


@contextmanager
def reader(root: Path) -> Iterator[str]:
    """A running volume reader; its location."""
    server = VolumeReader(("127.0.0.1", 0), root)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        volume_client.close_connections()
        server.shutdown()
        thread.join(60)
        server.server_close()


@contextmanager
def frozen(
    replicas: Sequence[store_layout.AuditedReplica], ends: Sequence[int]
) -> Iterator[list[store_layout.AuditedReplica]]:
    """The replicas behind volume readers, each frozen at one of the ends."""
    with ExitStack() as stack:
        shown = []
        for replica, end in zip(replicas, ends, strict=True):
            place = stack.enter_context(reader(Path(replica.location)))
            epochs = Path(replica.location, store_layout.EPOCH_FILE)
            volume_client.freeze(place, VolumeCut(end, epochs.read_bytes() if epochs.exists() else None))
            shown.append(store_layout.AuditedReplica(replica.group, replica.name, place))
        yield shown


def record_ends(path: Path) -> list[int]:
    """The ends of the records of a log."""
    end = 1 << 62
    replica = store_layout.AuditedReplica("g", path.name, str(path))
    log = AuditedLog(replica, LogExtent(0, end, end, leading=True), end, ())
    drill_down.clear_caches()
    return [copy.offset + len(copy.raw) for copy in drill_down.read_copies(log, 0, end)]


@pytest.mark.parametrize("seed", range(1000, 1003))
def test_a_healthy_group_has_no_findings_wherever_it_is_cut(seed: int, group: Group) -> None:
    paths, rng = group(seed), random.Random(seed)
    places = record_ends(paths[0])
    for end in (0, places[-1], *rng.sample(places, 3)):
        with frozen(inprocess.replicas_of(paths), [end] * 3) as shown:
            assert inprocess.run(shown) == [], end
            assert inprocess.run(shown, partition_bytes=20_011) == [], end


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_dledger_group_has_no_findings_wherever_it_is_cut(seed: int, dledger_group: Group) -> None:
    paths, rng = dledger_group(seed), random.Random(seed)
    places = record_ends(paths[0])
    for end in (0, places[-1], *rng.sample(places, 3)):
        with frozen(inprocess.replicas_of(paths), [end] * 3) as shown:
            assert inprocess.run(shown) == [], end
    middle = places[len(places) // 2]
    with frozen(inprocess.replicas_of(paths), [places[-1], middle, places[-1]]) as shown:
        assert {row["kind"] for row in inprocess.run(shown)} == {"log.behind"}


DLEDGER_KINDS = ("bit_in_entry_term", "bit_in_size", "unit_of_entry_missing", "index_entry_of_another_key")


@pytest.mark.parametrize("kind", DLEDGER_KINDS)
def test_damage_to_a_dledger_log_below_the_cut_is_found(
    kind: str, dledger_group: Group, tmp_path: Path
) -> None:
    end = record_ends(dledger_group(1)[0])[-1]
    name, paths, done = group_copies.damaged(dledger_group(1), tmp_path, kind, 7)
    with frozen(group_copies.replicas(name, paths), [end] * 3) as shown:
        assert expectations.mismatches(done, inprocess.run(shown)) == []


def test_a_replica_behind_the_others_is_a_note_and_nothing_else(group: Group) -> None:
    paths = group(1000)
    places = record_ends(paths[0])
    with frozen(inprocess.replicas_of(paths), [places[-1], places[len(places) // 2], places[-1]]) as shown:
        assert {row["kind"] for row in inprocess.run(shown)} == {"log.behind"}


KINDS = (
    *("bit_in_body", "bit_in_size", "hole", "missing_segment", "tail_of_a_lost_master", "epoch_missing"),
    *("epoch_file_checksum", "two_masters_in_an_epoch", "unit_missing", "units_swapped", "consumer_ahead"),
    *("index_chain_broken", "index_entry_of_another_key", "not_in_sync", "foreign_file"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_below_the_cut_is_found_where_it_was_done(kind: str, group: Group, tmp_path: Path) -> None:
    end = record_ends(group(1001)[0])[-1]
    name, paths, done = group_copies.damaged(group(1001), tmp_path, kind, 7)
    view = [done.metadata | {"brokerName": name}] if done.metadata else None
    with frozen(group_copies.replicas(name, paths), [end] * 3) as shown:
        found = inprocess.run(shown, view)
        for row in found:
            for replica, path in zip(shown, paths, strict=True):
                row["file"] = row["file"] and row["file"].replace(replica.location, str(path))
        assert expectations.mismatches(done, found) == []


def test_a_tail_below_the_cut_of_a_running_broker_is_an_error(group: Group, tmp_path: Path) -> None:
    """The cut leaves out what the broker will truncate. So the rest must be common."""
    end = record_ends(group(1001)[0])[-1]
    name, paths, done = group_copies.damaged(group(1001), tmp_path, "tail_of_a_lost_master", 7)
    for path in paths:
        (path / "abort").write_text("")
    with frozen(group_copies.replicas(name, paths), [end] * 3) as shown:
        assert expectations.mismatches(done, inprocess.run(shown)) == []


def test_a_cut_inside_a_record_counts_as_a_cut_before_it(group: Group) -> None:
    paths = group(1000)
    places = record_ends(paths[0])
    before, after = places[len(places) // 2 - 1 : len(places) // 2 + 1]
    ends = [before, before + 1, after - 1]
    with frozen(inprocess.replicas_of(paths), ends) as shown:
        assert inprocess.run(shown) == []
        whole = [
            bytes(files.read_range(files.join(one.location, "commitlog", f"{0:020}"), 0, after))
            for one in shown
        ]
    assert len(set(whole)) == 1


def test_a_frozen_volume_does_not_show_later_writes(group: Group, tmp_path: Path) -> None:
    source = group(1002)
    places = record_ends(source[0])
    (path, *_) = group_copies.copied(source, tmp_path, "busy")
    end = places[len(places) // 2]
    with frozen(group_copies.replicas("busy", [path]), [end]) as shown:
        place = shown[0].location
        before = {
            name: files.read(files.join(place, name)) for name in ("checkpoint", store_layout.EPOCH_FILE)
        }
        listed = files.entries(files.join(place, "commitlog"))
        (path / "commitlog" / f"{1 << 40:020}").write_bytes(b"later")
        (path / "checkpoint").write_bytes(b"\x7f" * 4096)
        first = min(one for one in (path / "commitlog").iterdir())
        size = first.stat().st_size
        kept = bytes(files.read_range(files.join(place, "commitlog", first.name), 0, size))
        first.unlink()  # the broker expires it
        assert files.entries(files.join(place, "commitlog")) == listed
        assert bytes(files.read_range(files.join(place, "commitlog", first.name), 0, size)) == kept
        assert {name: files.read(files.join(place, name)) for name in before} == before


def test_a_volume_reader_serves_nothing_before_the_cut_and_rejects_a_second_cut(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "secret").symlink_to("/etc/passwd")
    with reader(tmp_path) as place:
        with pytest.raises(OSError, match="no cut yet"):
            files.entries(place)
        volume_client.freeze(place, VolumeCut(10))
        volume_client.freeze(place, VolumeCut(10))
        with pytest.raises(OSError, match="another cut"):
            volume_client.freeze(place, VolumeCut(11))
        assert [one.name for one in files.entries(place)] == ["commitlog"]
        for name in ("secret", "../../etc/passwd", "commitlog/none", "%2e%2e/x"):
            with pytest.raises(FileNotFoundError):
                files.read(files.join(place, name))
    with pytest.raises(OSError, match=r"127\.0\.0\.1"):
        files.read(files.join(place, "checkpoint"))


def test_a_reader_of_more_files_than_descriptors_serves_all_of_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    units = [bytes(8) + size.to_bytes(4, "big") + bytes(8) for size in range(1, 201)]
    for topic, unit in enumerate(units):
        (tmp_path / "consumequeue" / f"t{topic}" / "0").mkdir(parents=True)
        (tmp_path / "consumequeue" / f"t{topic}" / "0" / f"{0:020}").write_bytes(unit)
    (tmp_path / "dledger-n0" / "data").mkdir(parents=True)
    segment = tmp_path / "dledger-n0" / "data" / f"{0:020}"
    segment.write_bytes(b"log")
    monkeypatch.setattr(frozen_volume, "DESCRIPTORS_FREE", 40)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with reader(tmp_path) as place, segment.open("rb") as newest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (newest.fileno() + 60, hard))
        try:
            volume_client.freeze(place, VolumeCut(1 << 30))
            segment.unlink()  # the broker expires it
            for topic, unit in enumerate(units):
                name = files.join(place, f"consumequeue/t{topic}/0/{0:020}")
                assert bytes(files.read_range(name, 0, 20)) == unit
            assert bytes(files.read_range(files.join(place, f"dledger-n0/data/{0:020}"), 0, 3)) == b"log"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_volume_reader_does_without_the_compiler() -> None:
    """Its pod has little memory."""
    code = "import sys, epochmq_spark.volume_reader; print(sorted({'numba', 'pyspark'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_long_file_arrives_whole_at_a_slow_client(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    whole = random.Random(1).randbytes(1 << 20) * 24
    name = f"commitlog/{0:020}"
    (tmp_path / name).write_bytes(whole)
    with reader(tmp_path) as place:
        volume_client.freeze(place, VolumeCut(len(whole) - 5))
        with socket.create_connection(("127.0.0.1", int(place.rpartition(":")[2]))) as slow:
            slow.sendall(f"GET /files/{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            slow.settimeout(10)
            assert slow.recv(1, socket.MSG_PEEK), "the response fills the buffers of the sockets"
            assert bytes(files.read_range(files.join(place, name), 0, 1 << 30)) == whole[:-5] + bytes(5)
            taken = bytearray()
            while part := slow.recv(1 << 20):
                taken += part
        assert taken.partition(b"\r\n\r\n")[2] == whole[:-5]


def test_an_epoch_file_loses_the_epochs_beyond_the_cut_and_a_broken_one_stays_as_it_is() -> None:
    text = b"3\n0\n1-0\n2-100\n3-250\n"
    assert parse_epoch_text(epoch_file_at(text, 249).decode()) == ([(1, 0), (2, 100)], None)
    assert epoch_file_at(text, 250) == text
    broken = b"3\n1\n1-0\n2-100\n3-250\n"
    assert epoch_file_at(broken, 10) == broken


def test_the_driver_s_termination_message_fits_and_names_the_first_findings() -> None:
    row = {"kind": "record.checksum", "severity": "error", "group": "g", "replica": "r" * 100}
    from epochmq_spark.findings import finding

    rows = [finding("g", "r" * 100, "record.checksum", start_offset=n, topic="t" * 90) for n in range(200)]
    summary = verdict.summary({"record.checksum": 200}, [{"logEnd": 5}], rows, seconds=1.0)
    message = kubernetes_driver.termination_message(summary, rows, stored=True)
    assert (message["verdict"], message["severities"]) == ("damaged", {"error": 200})
    assert "record.checksum" in message["findings"][0]
    assert len(json.dumps(message)) <= kubernetes_driver.MESSAGE_BYTES_MAX
    assert row["kind"] in message["counts"]
    data = kubernetes_driver.report_data(summary, "<html>")
    assert len(json.loads(data["data"]["summary.json"])["findings"]) == kubernetes_driver.SUMMARY_FINDINGS_MAX
    assert "report.html.gz" in data["binaryData"]


@pytest.mark.parametrize("how", ["runs", "was killed", "has stopped"])
def test_an_index_file_that_a_broker_is_just_creating_is_no_finding(
    how: str, group: Group, tmp_path: Path
) -> None:
    """A broker creates a file with 0 bytes and then sets its size. A broker that has stopped leaves none."""
    source = group(1001)
    end = record_ends(source[0])[-1]
    paths = group_copies.copied(source, tmp_path, "creating")
    replicas = group_copies.replicas("creating", paths)
    (paths[1] / "index" / "99991231235959999").touch()
    if how != "has stopped":
        (paths[1] / "abort").touch()
    with frozen(replicas, [end] * 3) if how == "runs" else nullcontext(replicas) as shown:
        found = inprocess.without_notes(inprocess.run(shown))
    expected = {(paths[1].name, "file.unreadable")} if how == "has stopped" else set()
    assert {(row["replica"], row["kind"]) for row in found} == expected


def test_an_index_with_one_key_only_is_reconstructed_within_5_s(tmp_path: Path) -> None:
    slots, count, kept = 5_000_000, 400_000, 100_000
    table = np.zeros(count + 1, INDEX_ENTRY)
    table["hash"], table["physical"] = 7, np.arange(count + 1) * 100
    table["previous"] = np.maximum(np.arange(count + 1) - 1, 0)
    heads = np.zeros(slots, ">i4")
    heads[7], heads[11] = count, count + 2  # a slot that points to no entry stays as it is
    raw = table.tobytes()
    parts_of_entries = [raw[at : at + 20_000] for at in range(0, len(raw), 20_000)]
    began = time.process_time()
    head, length = files_at_cut.index_at(bytes(40), heads, lambda: parts_of_entries, kept * 100 + 1)
    assert time.process_time() - began < 5
    assert np.frombuffer(head[40:], ">i4")[[7, 11]].tolist() == [kept, count + 2]
    path = tmp_path / "index"
    path.write_bytes(head + raw[: length - len(head)])
    file = IndexFileScan(str(path), length, slots)
    parts = list(file.parts())
    assert sum(len(part.numbers) for part in parts) == kept
    assert (sum(len(part.broken) for part in parts), file.orphaned_heads(10)) == (0, [])


def test_a_reader_that_ends_closes_the_files_of_its_volume(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / f"commitlog/{0:020}").write_bytes(bytes(64))

    with reader(tmp_path) as place:
        volume_client.freeze(place, VolumeCut(64))
        assert open_files_in(tmp_path)
    assert not open_files_in(tmp_path)


def test_a_volume_reader_shows_no_passwords(tmp_path: Path) -> None:
    """Neither those of auth.json nor those of its copies."""
    (tmp_path / "commitlog").mkdir()
    config = tmp_path / "config"
    config.mkdir()
    user = {"username": "u", "password": "secret-1", "userType": "Super", "userStatus": "enable"}
    content = json.dumps({"users": [user], "acls": [{"subject": "User:u", "policies": []}]}).encode()
    for name in ("auth.json", "auth.json.bak", "auth.json.pending", "auth.json.tmp"):
        (config / name).write_bytes(content)
    frozen = frozen_volume.FrozenVolume(tmp_path, VolumeCut(0))
    try:
        assert [entry.name for entry in frozen.entries("config")] == ["auth.json"]
        shown = frozen.content("config/auth.json")
        assert b"secret" not in shown.head
        assert shown.length == len(shown.head)
        entries = state_tables.parse_auth(shown.head)
        assert [entry.content for entry in entries] == ["User:u Super enable", "User:u 0 entries"]
        for name in ("auth.json.bak", "auth.json.pending", "auth.json.tmp"):
            with pytest.raises(FileNotFoundError):
                frozen.content(f"config/{name}")
    finally:
        frozen.close()
    damaged = state_tables.without_passwords(b'{"users": [{"password": "secret')
    assert b"secret" not in damaged
    with pytest.raises(EpochMQError):
        state_tables.parse_auth(damaged)
