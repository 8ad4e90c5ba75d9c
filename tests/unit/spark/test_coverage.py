"""Tests that an audit says what it compared and what it left out, that it cannot be healthy without a second
replica, and that groups as brokers leave them are no damage."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import coverage, store_layout, verdict
from epochmq_spark.findings import KINDS
from tests.spark import damage, group_copies, unusual_groups
from tests.unit.spark import inprocess
from tests.unit.spark.conftest import Group

pytestmark = pytest.mark.filterwarnings("ignore")


def verdict_of(rows: list[dict[str, Any]], read: int = 3) -> str:
    counts = {kind: sum(row["kind"] == kind for row in rows) for kind in KINDS}
    return verdict.verdict_of(counts, read).value


@pytest.mark.parametrize("name", sorted(unusual_groups.CHANGES))
def test_groups_as_brokers_leave_them_have_the_expected_findings(
    name: str, group: Group, tmp_path: Path
) -> None:
    paths = group_copies.copied(group(1002), tmp_path, name)
    expected = unusual_groups.CHANGES[name](paths)
    assert unusual_groups.found(inprocess.run(group_copies.replicas(name, paths))) == expected


def test_one_directory_is_undecided_and_everything_of_it_is_left_out_of_the_comparison(group: Group) -> None:
    replicas = inprocess.replicas_of(group(1000)[:1])
    rows = inprocess.run(replicas)
    assert [(row["kind"], row["detail"]) for row in rows] == [
        ("group.one-replica", "1 of 1; no bytes could be compared with another replica's")
    ]
    assert verdict_of(rows, 1) == "undecided"
    covered, document = inprocess.coverage_of(replicas)
    end = damage.records(group(1000)[0])[-1]
    whole = f"log offsets 0 to {end.offset + end.size}"
    assert covered[replicas[0].group, replicas[0].name]["compared"] is None
    assert (document["replicasSupplied"], document["replicasRead"], document["replicasCompared"]) == (1, 1, 0)
    assert (document["comparedBytes"], document["bytes"] > 0) == (0, True)
    assert {(one["what"], one["why"]) for one in document["leftOut"]} == {
        (whole, "no other replica could be read: checked in itself only"),
        ("the controllers' view", "no metadata were supplied"),
    }


def test_a_replica_that_the_controllers_list_must_be_supplied(group: Group) -> None:
    view = {"brokerName": "group-a", "masterEpoch": 1 << 20, "syncStateSet": [1, 2]}
    view["replicas"] = [{"brokerId": number} for number in (1, 2, 3)]
    all_three = inprocess.replicas_of(group(1000))
    assert inprocess.run(all_three, view) == []
    rows = inprocess.run(all_three[:2], view)
    assert [(row["kind"], row["detail"]) for row in rows] == [("controller.not-supplied", "brokerId 3")]
    assert verdict_of(rows) == "undecided"


def test_a_directory_that_cannot_be_identified_may_be_the_replica_that_is_absent(
    group: Group, tmp_path: Path
) -> None:
    paths = group_copies.copied(group(1000), tmp_path, "group-a")
    (paths[2] / "brokerIdentity").unlink()
    view = {"brokerName": "group-a", "masterEpoch": 1 << 20, "syncStateSet": [1, 2, 3]}
    found = inprocess.run(inprocess.replicas_of(paths), view)
    assert [(row["replica"], row["kind"]) for row in found] == [(paths[2].name, "state.missing")]


@pytest.mark.parametrize("text", ["", "\n", "cluster#group-a", "#group-a#1", "cluster#group-a#one"])
def test_a_broken_identity_file_is_named(text: str, group: Group, tmp_path: Path) -> None:
    paths = group_copies.copied(group(1000), tmp_path, "group-a")
    (paths[1] / "brokerIdentity").write_text(text)
    rows = inprocess.run(inprocess.replicas_of(paths))
    assert [(row["replica"], row["kind"]) for row in rows] == [(paths[1].name, "state.unreadable")]
    assert rows[0]["file"] == str(paths[1] / "brokerIdentity")
    assert verdict_of(rows) == "undecided"


def test_the_coverage_of_a_healthy_group_is_all_of_its_files(group: Group) -> None:
    paths = group(1000)
    replicas = inprocess.replicas_of(paths)
    view = {"brokerName": "group-a", "masterEpoch": 9, "syncStateSet": []}
    covered, document = inprocess.coverage_of(replicas, view)
    every = damage.records(paths[0])
    end = every[-1].offset + every[-1].size
    for replica in replicas:
        of_replica = covered[replica.group, replica.name]
        assert of_replica["compared"] == [0, end]
        assert of_replica["bytes"] == end
        assert of_replica["records"] >= len(every)
        assert of_replica["units"] == len(every)
        assert of_replica["indexEntries"] >= len(every)
    assert document["comparedBytes"] == 3 * end
    assert document["replicasCompared"] == 3
    assert (document["leftOut"], document["leftOutCount"]) == ([], 0)
    text = coverage.sentence(document)
    assert text.startswith(f"compared 3 of 3 replicas: {3 * end:,} bytes")


def test_what_cannot_be_read_is_left_out_with_the_reason(group: Group, tmp_path: Path) -> None:
    paths = group_copies.copied(group(1000), tmp_path, "group-a")
    shutil.rmtree(paths[0])
    shutil.rmtree(paths[1] / "consumequeue")
    _, document = inprocess.coverage_of(inprocess.replicas_of(paths))
    assert (document["replicasSupplied"], document["replicasRead"]) == (3, 2)
    listed = {(one["replica"], one["what"]): one["why"] for one in document["leftOut"]}
    assert listed[paths[0].name, "the replica"].startswith("directory.missing: ")
    assert listed[paths[1].name, "consume queues"] == "the directory consumequeue is missing"


def test_the_list_of_what_was_left_out_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "LEFT_OUT_MAX", 2)
    replicas = [store_layout.AuditedReplica("g", f"r{number}", f"/nowhere/{number}") for number in range(5)]
    _, document = inprocess.coverage_of(replicas)
    assert (len(document["leftOut"]), document["leftOutCount"]) == (2, 5)
