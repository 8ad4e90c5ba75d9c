"""Volumes in use, shown by readers as they were at a cut: the audit finds nothing in healthy ones wherever
the cut is, and below it what it finds in directories that stand still."""

from __future__ import annotations

import json
import random
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

import numpy as np

from epochmq_spark import cut, drill_down, files, kubernetes_driver, store_layout, verdict, volume_client
from epochmq_spark.cut import VolumeCut, epochs
from epochmq_spark.decode.epoch_file import parse
from epochmq_spark.decode.queue_units import INDEX_ENTRY
from epochmq_spark.sources.index import IndexFileScan
from epochmq_spark.volume_reader import VolumeReader
from tests.spark import expectations, group_copies
from tests.unit.spark import inprocess
from tests.unit.spark.conftest import Group

pytestmark = pytest.mark.filterwarnings("ignore")


@contextmanager
def reader(root: Path) -> Iterator[str]:
    """One that runs; its place."""
    server = VolumeReader(("127.0.0.1", 0), root)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        volume_client.forget()
        server.shutdown()
        thread.join(10)
        server.server_close()


@contextmanager
def held(
    replicas: Sequence[store_layout.AuditedReplica], ends: Sequence[int]
) -> Iterator[list[store_layout.AuditedReplica]]:
    """The replicas, each shown by a reader as it was when its log ended there."""
    with ExitStack() as stack:
        shown = []
        for replica, end in zip(replicas, ends, strict=True):
            place = stack.enter_context(reader(Path(replica.place)))
            copy = Path(replica.place, store_layout.EPOCH_FILE).read_bytes()
            volume_client.hold(place, VolumeCut(end, copy))
            shown.append(store_layout.AuditedReplica(replica.group, replica.name, place))
        yield shown


def record_ends(path: Path) -> list[int]:
    """Where the records of a log end."""
    whole = drill_down.ReplicaExtent(
        store_layout.AuditedReplica("g", path.name, str(path)), 0, 1 << 62, 1 << 62, True
    )
    drill_down.forget()
    return [one.offset + len(one.raw) for one in drill_down.copies(whole, 0, 1 << 62)]


@pytest.mark.parametrize("seed", range(1000, 1003))
def test_a_healthy_group_has_no_findings_wherever_it_is_cut(seed: int, group: Group) -> None:
    paths, rng = group(seed), random.Random(seed)
    places = record_ends(paths[0])
    for end in (0, places[-1], *rng.sample(places, 3)):
        with held(inprocess.replicas_of(paths), [end] * 3) as shown:
            assert inprocess.run(shown) == [], end
            assert inprocess.run(shown, partition_bytes=20_011) == [], end


def test_a_replica_behind_the_others_is_told_of_and_no_more(group: Group) -> None:
    paths = group(1000)
    places = record_ends(paths[0])
    with held(inprocess.replicas_of(paths), [places[-1], places[len(places) // 2], places[-1]]) as shown:
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
    with held(group_copies.replicas(name, paths), [end] * 3) as shown:
        found = inprocess.run(shown, view)
        for row in found:
            for replica, path in zip(shown, paths, strict=True):
                row["file"] = row["file"] and row["file"].replace(replica.place, str(path))
        assert expectations.faults(done, found) == []


def test_a_cut_inside_a_record_is_one_before_it(group: Group) -> None:
    paths = group(1000)
    places = record_ends(paths[0])
    before, after = places[len(places) // 2 - 1 : len(places) // 2 + 1]
    ends = [before, before + 1, after - 1]
    with held(inprocess.replicas_of(paths), ends) as shown:
        assert inprocess.run(shown) == []
        whole = [
            bytes(files.window(files.join(one.place, "commitlog", f"{0:020}"), 0, after)) for one in shown
        ]
    assert len(set(whole)) == 1


def test_what_is_written_after_the_cut_is_not_seen(group: Group, tmp_path: Path) -> None:
    source = group(1002)
    places = record_ends(source[0])
    (path, *_) = group_copies.copied(source, tmp_path, "busy")
    end = places[len(places) // 2]
    with held(group_copies.replicas("busy", [path]), [end]) as shown:
        place = shown[0].place
        before = {
            name: files.read(files.join(place, name)) for name in ("checkpoint", store_layout.EPOCH_FILE)
        }
        listed = files.entries(files.join(place, "commitlog"))
        (path / "commitlog" / f"{1 << 40:020}").write_bytes(b"later")
        (path / "checkpoint").write_bytes(b"\x7f" * 4096)
        first = min(one for one in (path / "commitlog").iterdir())
        size = first.stat().st_size
        kept = bytes(files.window(files.join(place, "commitlog", first.name), 0, size))
        first.unlink()  # too old: the broker removes it
        assert files.entries(files.join(place, "commitlog")) == listed
        assert bytes(files.window(files.join(place, "commitlog", first.name), 0, size)) == kept
        assert {name: files.read(files.join(place, name)) for name in before} == before


def test_a_reader_shows_nothing_before_a_cut_and_keeps_to_the_first(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "secret").symlink_to("/etc/passwd")
    with reader(tmp_path) as place:
        with pytest.raises(OSError, match="no cut yet"):
            files.entries(place)
        volume_client.hold(place, VolumeCut(10))
        volume_client.hold(place, VolumeCut(10))
        with pytest.raises(OSError, match="another cut"):
            volume_client.hold(place, VolumeCut(11))
        assert [one.name for one in files.entries(place)] == ["commitlog"]
        for name in ("secret", "../../etc/passwd", "commitlog/none", "%2e%2e/x"):
            with pytest.raises(FileNotFoundError):
                files.read(files.join(place, name))
    with pytest.raises(OSError, match=r"127\.0\.0\.1"):
        files.read(files.join(place, "checkpoint"))


def test_a_long_file_arrives_whole_also_when_it_is_taken_slowly(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    whole = random.Random(1).randbytes(1 << 20) * 24
    name = f"commitlog/{0:020}"
    (tmp_path / name).write_bytes(whole)
    with reader(tmp_path) as place:
        volume_client.hold(place, VolumeCut(len(whole) - 5))
        with socket.create_connection(("127.0.0.1", int(place.rpartition(":")[2]))) as slow:
            slow.sendall(f"GET /files/{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            assert select.select([slow], [], [], 10)[0], "more is on its way than the sockets hold"
            assert bytes(files.window(files.join(place, name), 0, 1 << 30)) == whole[:-5] + bytes(5)
            taken = bytearray()
            while part := slow.recv(1 << 20):
                taken += part
        assert taken.partition(b"\r\n\r\n")[2] == whole[:-5]


def test_an_epoch_file_is_cut_at_an_epoch_and_left_alone_when_it_is_broken() -> None:
    text = b"3\n0\n1-0\n2-100\n3-250\n"
    assert parse(epochs(text, 249).decode()) == ([(1, 0), (2, 100)], None)
    assert epochs(text, 250) == text
    broken = b"3\n1\n1-0\n2-100\n3-250\n"
    assert epochs(broken, 10) == broken


def test_what_the_driver_says_fits_and_names_the_first_findings() -> None:
    row = {"kind": "record.checksum", "severity": "error", "group": "g", "replica": "r" * 100}
    from epochmq_spark.findings import finding

    rows = [finding("g", "r" * 100, "record.checksum", start_offset=n, topic="t" * 90) for n in range(200)]
    summary = verdict.summary({"record.checksum": 200}, [{"logEnd": 5}], rows, seconds=1.0)
    said = kubernetes_driver.message(summary, rows, stored=True)
    assert (said["verdict"], said["severities"]) == ("damaged", {"error": 200})
    assert "record.checksum" in said["findings"][0]
    assert len(json.dumps(said)) <= kubernetes_driver.MESSAGE_BYTES_MAX
    assert row["kind"] in said["counts"]
    data = kubernetes_driver.report_data(summary, "<html>")
    assert len(json.loads(data["data"]["summary.json"])["findings"]) == kubernetes_driver.SUMMARY_FINDINGS_MAX
    assert "report.html.gz" in data["binaryData"]


def test_an_index_whose_keys_are_all_the_same_is_cut_in_a_moment(tmp_path: Path) -> None:
    slots, count, kept = 5_000_000, 400_000, 100_000
    table = np.zeros(count + 1, INDEX_ENTRY)
    table["hash"], table["physical"] = 7, np.arange(count + 1) * 100
    table["previous"] = np.maximum(np.arange(count + 1) - 1, 0)
    heads = np.zeros(slots, ">i4")
    heads[7], heads[11] = count, count + 2  # what leads to no entry stays as it is
    raw = table.tobytes()
    cut_up = [raw[at : at + 20_000] for at in range(0, len(raw), 20_000)]
    began = time.process_time()
    head, length = cut.index(bytes(40), heads, lambda: cut_up, kept * 100 + 1)
    assert time.process_time() - began < 5
    assert np.frombuffer(head[40:], ">i4")[[7, 11]].tolist() == [kept, count + 2]
    path = tmp_path / "index"
    path.write_bytes(head + raw[: length - len(head)])
    file = IndexFileScan(str(path), length, slots)
    parts = list(file.entries())
    assert sum(len(part.numbers) for part in parts) == kept
    assert (sum(len(part.broken) for part in parts), file.lost(10)) == (0, [])
