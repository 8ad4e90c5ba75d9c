"""Tests audits of stores in object storage, on a real S3 server: names with percent signs, many queues, and
how many requests an audit makes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import audit, drill_down, files, local_audit, store_layout
from tests.spark import damage, named_stores, s3_server, seeded_groups
from tests.unit.spark import inprocess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(2700), pytest.mark.filterwarnings("ignore")]
TOPICS = ("orders", "%RETRY%readers", "%DLQ%readers")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_server.S3Server]:
    try:
        with s3_server.running(tmp_path_factory.mktemp("s3")) as running:
            yield running
    except s3_server.S3MissingError as missing:
        pytest.skip(str(missing))


def create_group(root: Path, seed: int, queues: int) -> list[Path]:
    """A healthy group whose messages are in topics of retries and dead letters, too."""
    group = seeded_groups.SeededGroup(root, seed, topics=TOPICS, queues=queues)
    asyncio.run(group.run_history())
    seeded_groups.write_consumer_offsets(root, group)
    return [root / f"r{node.id}" for node in group.nodes]


def upload(server: s3_server.S3Server, paths: list[Path], name: str) -> list[store_layout.AuditedReplica]:
    """The replicas of a group in the bucket."""
    for path in paths:
        (path / "timerwheel").unlink(missing_ok=True)
    return [
        store_layout.AuditedReplica(
            seeded_groups.NAME, path.name, server.upload(path, f"{name}/50% of it/{path.name}/store")
        )
        for path in paths
    ]


def test_a_group_with_retry_topics_is_healthy_and_damage_is_found(
    server: s3_server.S3Server, tmp_path: Path
) -> None:
    paths = create_group(tmp_path, 41, 2)
    replicas = upload(server, paths, "healthy")
    replicas = [
        store_layout.AuditedReplica(one.group, one.name, one.location.replace("50% of it", "50%25%20of%20it"))
        for one in replicas
    ]
    assert inprocess.without_notes(inprocess.run(replicas)) == []
    _, coverage = inprocess.coverage_of(replicas)
    local = inprocess.coverage_of(inprocess.replicas_of(paths))[1]
    assert {key: coverage[key] for key in ("units", "records", "comparedBytes")} == {
        key: local[key] for key in ("units", "records", "comparedBytes")
    }
    retried = next(one for one in damage.records(paths[1]) if one.message.topic == "%RETRY%readers")
    data = bytearray(retried.path.read_bytes())
    data[retried.at + retried.size // 2] ^= 1
    server.replace(f"healthy/50% of it/r2/store/commitlog/{retried.path.name}", bytes(data))
    found = inprocess.without_notes(inprocess.run(replicas))
    assert {(row["replica"], row["start_offset"]) for row in found} == {("r2", retried.offset)}


def test_the_requests_of_an_audit_are_one_listing_and_one_read_of_each_file(
    server: s3_server.S3Server, tmp_path: Path
) -> None:
    replicas = upload(server, create_group(tmp_path, 42, 36), "counted")
    location = replicas[0].location.replace("50% of it", "50%25%20of%20it")
    drill_down.clear_caches()
    before = len(server.requests())
    contents = store_layout.scan_store(location)
    listed = s3_server.kinds(server.requests()[before:])
    assert contents.faults == []
    assert len(contents.queues) > 80
    assert listed["listing"] <= 2
    assert listed.total() <= 3
    segment = contents.log[0]
    before = len(server.requests())
    for at in (0, 5000, 40_000):
        files.read_range(segment.location, at, at + 64)
    assert s3_server.kinds(server.requests()[before:]) == {"head": 1, "read": 3}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_of_a_group_with_2000_queues_only_the_injected_fault_is_found(
    server: s3_server.S3Server, spark: SparkSession, tmp_path: Path
) -> None:
    """A file is read by one request, after one for its size in each process that reads it."""
    paths = named_stores.create(tmp_path, 670)[:2]
    retried = named_stores.damage_a_retry(paths[1])
    replicas = [
        store_layout.AuditedReplica("group-a", path.name, server.upload(path, f"many/{path.name}/store"))
        for path in paths
    ]
    files_of_both = sum(1 for path in paths for one in path.rglob("*") if one.is_file())
    before = len(server.requests())
    result = audit.run(spark, replicas)
    found = [row.asDict() for row in result.findings.where("severity != 'note'").collect()]
    result.release()
    made = s3_server.kinds(server.requests()[before:])
    print(f"{files_of_both} files: {dict(made)} requests")
    assert [(row["replica"], row["kind"], row["start_offset"]) for row in found] == [
        ("r2", "record.checksum", retried)
    ]
    assert files_of_both > 4000
    assert made["listing"] <= 2 + files_of_both // 1000
    assert made["read"] < 1.5 * files_of_both
    assert made["head"] < 1.5 * files_of_both


def test_a_server_that_cannot_be_reached_is_a_finding(server: s3_server.S3Server) -> None:
    missing = server.location("no/such/store")
    found = inprocess.run([store_layout.AuditedReplica("g", "r1", missing)])
    assert {row["kind"] for row in found} == {"directory.missing", "group.one-replica"}
    assert local_audit.replicas_of([missing, server.location("other/store")])[0].name == "such"
