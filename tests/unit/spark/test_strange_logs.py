"""Files and logs that do not belong to the group are named, and do not make others look damaged."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark.store_layout import AuditedReplica, DataFile, usual_size
from tests.spark.damage_kit import messages, overwrite
from tests.unit.spark import inprocess
from tests.unit.spark.conftest import Group

pytestmark = pytest.mark.filterwarnings("ignore")
SEED = 1001


def copied(stores: list[Path], folder: Path) -> list[Path]:
    return [Path(shutil.copytree(store, folder / store.name)) for store in stores]


def kinds(paths: list[Path]) -> list[tuple[str, str, str]]:
    """(replica, kind, name of the file) of the errors and warnings."""
    replicas = [AuditedReplica("group-a", path.name, str(path)) for path in paths]
    rows = inprocess.without_notes(inprocess.run(replicas))
    return [(row["replica"], row["kind"], Path(row["file"] or "").name) for row in rows]


@pytest.mark.parametrize("number", [0, -1])
def test_a_segment_that_is_too_long_blames_no_other_file(number: int, group: Group, tmp_path: Path) -> None:
    paths = copied(group(SEED), tmp_path)
    segment = sorted((paths[1] / "commitlog").iterdir())[number]
    with segment.open("ab") as file:
        file.write(bytes(64 * 1024))
    found = kinds(paths)
    assert [one for one in found if one[0] != paths[1].name or "file" in one[1]] == [
        (paths[1].name, "file.wrong-size", segment.name)
    ]


def test_a_file_that_begins_where_no_segment_does(group: Group, tmp_path: Path) -> None:
    paths = copied(group(SEED), tmp_path)
    first, second, *_ = sorted((paths[1] / "commitlog").iterdir())
    stray = first.with_name(f"{int(second.name) + 7:020}")
    shutil.copy(first, stray)
    assert kinds(paths) == [(paths[1].name, "file.foreign", stray.name)]


def test_the_first_segment_under_another_name(group: Group, tmp_path: Path) -> None:
    """With few segments only the other replicas tell where one begins."""
    paths = copied(group(SEED), tmp_path)
    first, *_ = sorted((paths[1] / "commitlog").iterdir())
    first.rename(first.with_name(f"{13:020}"))
    replicas = [AuditedReplica("group-a", path.name, str(path)) for path in paths]
    rows = inprocess.run(replicas)
    assert (paths[1].name, "file.foreign", f"{13:020}") in kinds(paths)
    assert {row["kind"] for row in rows if row["replica"] == paths[1].name} >= {"log.missing-segment"}
    assert {row["replica"] for row in rows} == {paths[1].name}, "the others are not behind an empty log"


def test_a_link_that_leads_nowhere(group: Group, tmp_path: Path) -> None:
    paths = copied(group(SEED), tmp_path)
    *_, last = sorted((paths[1] / "commitlog").iterdir())
    last.unlink()
    last.symlink_to(tmp_path / "nowhere")
    found = kinds(paths)
    assert (paths[1].name, "file.foreign", last.name) in found
    assert {one[0] for one in found} == {paths[1].name}


def strangers(paths: list[Path]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for replica, kind, _ in kinds(paths):
        found.setdefault(replica, set()).add(kind)
    return found


def test_a_log_of_another_mode_is_left_out(group: Group, dledger_group: Group, tmp_path: Path) -> None:
    plain = group(SEED)
    stranger = Path(shutil.copytree(dledger_group(1)[0], tmp_path / "stranger"))
    found: Any = strangers([*plain[:2], stranger])
    assert set(found) == {"stranger"}
    assert "directory.other-mode" in found["stranger"]
    of_pair = strangers([plain[0], stranger])
    assert "directory.other-mode" in of_pair[plain[0].name] & of_pair["stranger"]
    assert "group.one-replica" in of_pair[""]


def test_a_replica_of_another_group_is_left_out(group: Group, tmp_path: Path) -> None:
    stranger = Path(shutil.copytree(group(7)[0], tmp_path / "stranger"))
    (stranger / "brokerIdentity").write_text("DefaultCluster#group-b#3")
    found = strangers([*group(SEED)[:2], stranger])
    assert found == {"stranger": {"directory.other-group"}}


@pytest.mark.parametrize("time_ms", [-5, 4_102_444_800_000])
def test_store_times_that_no_broker_writes(time_ms: int, group: Group, tmp_path: Path) -> None:
    """All replicas have them, so no comparison tells."""
    paths = copied(group(SEED), tmp_path)
    for path in paths:
        for record in messages(path)[7:9]:
            overwrite(record.path, record.at + 56, struct.pack(">q", time_ms))
    first, second = messages(paths[0])[7:9]
    found = inprocess.without_notes(inprocess.run(inprocess.replicas_of(paths)))
    place = {(row["kind"], row["start_offset"], row["end_offset"], row["store_timestamp"]) for row in found}
    assert place == {("record.store-time", first.offset, second.offset + second.size, time_ms)}
    assert len(found) == len(paths)


@pytest.mark.parametrize("claim", [0, 30_000])
def test_queues_that_a_killed_broker_takes_for_whole(claim: int, group: Group, tmp_path: Path) -> None:
    """Its next start does not read again what it takes for whole, so it would not repair them."""
    paths = copied(group(SEED), tmp_path)
    (paths[1] / "abort").write_text(f"4711\nflush=ok\ndispatched={claim or -1}\n")
    for queue in paths[1].glob("consumequeue/orders/0/*"):
        queue.write_bytes(bytes(queue.stat().st_size))
    found = inprocess.run(inprocess.replicas_of(paths))
    of_queue = {row["kind"]: row for row in found if row["topic"] == "orders"}
    assert set(of_queue) == {"queue.behind"} | ({"queue.not-repaired"} if claim else set())
    if claim:
        assert f"messages before {claim}," in of_queue["queue.not-repaired"]["detail"]


@pytest.mark.parametrize(
    ("logs", "size"),
    [
        ([[(0, 100), (100, 100), (200, 60)]], 100),
        ([[(0, 164), (100, 100)]], 100),
        ([[(0, 100), (100, 60)]], 100),
        ([[(0, 100)], [(0, 164)], [(0, 100)]], 100),
        ([[(0, 60)], [(0, 100)]], 100),
        ([[]], 0),
    ],
)
def test_the_size_of_segments_is_that_of_most(logs: list[list[tuple[int, int]]], size: int) -> None:
    assert usual_size([[DataFile("", *file) for file in log] for log in logs]) == size
