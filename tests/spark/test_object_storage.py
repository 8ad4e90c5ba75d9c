"""Tests audits of stores in object storage, on a real S3 server: names with percent signs, many queues, and
how many requests an audit makes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import drill_down, files, local_audit, store_layout
from tests.spark import damage, named_stores, s3_server, seeded_groups
from tests.spark.damage_kit import overwrite
from tests.unit.spark import inprocess

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
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
def test_a_group_with_2000_queues_is_healthy_and_damage_is_found(
    server: s3_server.S3Server, tmp_path: Path
) -> None:
    """The requests: for each replica one listing for each 1,000 files and one more, by the driver, by the
    source and by the drill-down; and of each file its size and its bytes."""
    paths = named_stores.create(tmp_path, 670)
    replicas = [
        store_layout.AuditedReplica("group-a", path.name, server.upload(path, f"many/{path.name}/store"))
        for path in paths
    ]
    numbers = [sum(1 for one in path.rglob("*") if one.is_file()) for path in paths]
    assert min(numbers) > 2000
    before = len(server.requests())
    assert inprocess.without_notes(inprocess.run(replicas)) == []
    made = s3_server.kinds(server.requests()[before:])
    print(f"{numbers} files: {dict(made)} requests")
    assert made["listing"] <= 8 * sum(number // 1000 + 1 for number in numbers)
    retried = [one for one in damage.records(paths[1]) if one.message.topic == "%RETRY%readers"][7]
    overwrite(retried.path, retried.at + 88, b"\xff")
    server.replace(f"many/r2/store/commitlog/{retried.path.name}", retried.path.read_bytes())
    found = inprocess.without_notes(inprocess.run(replicas))
    assert {(row["replica"], row["kind"], row["start_offset"]) for row in found} == {
        ("r2", "record.checksum", retried.offset)
    }


def test_a_server_that_cannot_be_reached_is_a_finding(server: s3_server.S3Server) -> None:
    missing = server.location("no/such/store")
    found = inprocess.run([store_layout.AuditedReplica("g", "r1", missing)])
    assert {row["kind"] for row in found} == {"directory.missing", "group.one-replica"}
    assert local_audit.replicas_of([missing, server.location("other/store")])[0].name == "such"
