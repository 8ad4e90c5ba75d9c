"""Tests audits of stores in HDFS, on a real cluster: names with percent signs, many queues, and how many
operations of the NameNode an audit costs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import audit, drill_down, files, local_audit, results, store_layout
from tests.spark import hdfs_cluster, named_stores
from tests.unit.spark import inprocess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(2700), pytest.mark.filterwarnings("ignore")]
FOLDER = "50% of it"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hdfs_cluster.HdfsCluster]:
    try:
        with hdfs_cluster.running(tmp_path_factory.mktemp("hdfs")) as running:
            yield running
    except hdfs_cluster.HdfsMissingError as missing:
        pytest.skip(str(missing))


def upload(
    cluster: hdfs_cluster.HdfsCluster, paths: list[Path], name: str
) -> list[store_layout.AuditedReplica]:
    """The replicas of a group in the cluster."""
    return [
        store_layout.AuditedReplica(
            "group-a", path.name, cluster.upload(path, f"{name}/{FOLDER}/{path.name}/store")
        )
        for path in paths
    ]


def check_healthy_and_damaged(cluster: hdfs_cluster.HdfsCluster, paths: list[Path], name: str) -> None:
    """Audits a healthy group, and again with a bit flipped in a message of a topic of retries."""
    replicas = upload(cluster, paths, name)
    before = cluster.operations()
    assert inprocess.without_notes(inprocess.run(replicas)) == []
    done = {name: count - before[name] for name, count in cluster.operations().items()}
    print(f"{sum(1 for one in paths[0].parent.rglob('*') if one.is_file())} files: {done}")
    local = inprocess.coverage_of(inprocess.replicas_of(paths))[1]
    there = inprocess.coverage_of(replicas)[1]
    keys = ("units", "records", "comparedBytes", "indexEntries")
    assert {key: there[key] for key in keys} == {key: local[key] for key in keys}
    retried = named_stores.damage_a_retry(paths[1])
    log = paths[1] / "commitlog"
    cluster.upload(log, f"{name}/{FOLDER}/r2/store/{log.name}")
    found = inprocess.without_notes(inprocess.run(replicas))
    assert {(row["replica"], row["kind"], row["start_offset"]) for row in found} == {
        ("r2", "record.checksum", retried)
    }


def test_a_group_with_retry_topics_is_healthy_and_damage_is_found(
    cluster: hdfs_cluster.HdfsCluster, tmp_path: Path
) -> None:
    check_healthy_and_damaged(cluster, named_stores.create(tmp_path, 8), "few")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_of_a_group_with_2000_queues_only_the_injected_fault_is_found(
    cluster: hdfs_cluster.HdfsCluster, spark: SparkSession, tmp_path: Path
) -> None:
    paths = named_stores.create(tmp_path, 670)[:2]
    retried = named_stores.damage_a_retry(paths[1])
    replicas = upload(cluster, paths, "many")
    before = cluster.operations()
    result = audit.run(spark, replicas)
    found = [row.asDict() for row in result.findings.where("severity != 'note'").collect()]
    result.release()
    done = {name: count - before[name] for name, count in cluster.operations().items()}
    print(f"{sum(1 for one in tmp_path.rglob('*') if one.is_file())} files in three copies: {done}")
    assert [(row["replica"], row["kind"], row["start_offset"]) for row in found] == [
        ("r2", "record.checksum", retried)
    ]


def test_an_audit_lists_each_directory_once(
    cluster: hdfs_cluster.HdfsCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """Tasks have the driver's listing."""
    paths = named_stores.create(tmp_path, 5)
    directories = sum(1 + sum(1 for one in path.rglob("*") if one.is_dir()) for path in paths)
    replicas = upload(cluster, paths, "once")
    before = cluster.operations()["listings"]
    result = audit.run(spark, replicas)
    summary, _ = results.summarise(result, time.time())
    result.release()
    assert summary["verdict"] == "healthy"
    assert directories / 2 < cluster.operations()["listings"] - before <= directories


def test_a_store_costs_one_listing_for_each_directory_and_a_range_of_a_file_one_lookup_there_and_one_back(
    cluster: hdfs_cluster.HdfsCluster, tmp_path: Path
) -> None:
    (path, *_) = named_stores.create(tmp_path, 5)
    location = cluster.upload(path, f"counted/{FOLDER}/store")
    before = cluster.operations()
    contents = store_layout.scan_store(location)
    listed = cluster.operations()
    directories = 1 + sum(1 for one in path.rglob("*") if one.is_dir())
    assert contents.faults == []
    assert len(contents.queues) == 15
    assert 0 < listed["listings"] - before["listings"] <= directories
    segment = contents.log[0]
    for at in (0, 5000, 40_000):
        expected = Path(path, "commitlog", files.name_of(segment.location)).read_bytes()[at : at + 64]
        assert bytes(files.read_range(segment.location, at, at + 64)) == expected
    # The NameNode looks up the blocks once to choose a DataNode, and once for the DataNode itself.
    assert 0 < cluster.operations()["block lookups"] - listed["block lookups"] <= 2 * 3
    assert len(files.read_range(segment.location, segment.size - 5, segment.size + 100)) == 5
    assert len(files.read_range(segment.location, segment.size, segment.size + 100)) == 0


def test_what_is_missing_in_hdfs_is_a_finding_that_names_it(cluster: hdfs_cluster.HdfsCluster) -> None:
    drill_down.clear_caches()
    missing = cluster.location("no/such/50% store")
    found = inprocess.run([store_layout.AuditedReplica("g", "r1", missing)])
    assert {row["kind"] for row in found} == {"directory.missing", "group.one-replica"}
    closed = "webhdfs://127.0.0.1:1/store"
    (fault,) = store_layout.scan_store(closed).faults
    assert (fault.kind, fault.location) == ("directory.unreadable", closed)
    assert "ConnectionRefusedError" in fault.detail
    assert len(fault.detail.splitlines()) == 1


def test_a_pattern_matches_directories_of_hdfs(cluster: hdfs_cluster.HdfsCluster, tmp_path: Path) -> None:
    upload(cluster, named_stores.create(tmp_path, 1), "pattern")
    pattern = cluster.location("pattern") + "/*/r[12]"
    found = [store_layout.store_directory(one) for one in files.expand(pattern)]
    assert found == [cluster.location(f"pattern/{FOLDER}/{name}/store") for name in ("r1", "r2")]
    assert local_audit.replicas_of([found[0], found[1]])[0].name == "r1"
