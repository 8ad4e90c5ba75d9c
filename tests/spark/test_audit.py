"""Tests the audit with Spark, on groups of ours with real histories: it finds nothing in healthy ones, and
each kind of damage at its replica and offset, and nothing else."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import local_audit, results, store_layout, volume_client
from tests.spark import damage, dledger_groups, expectations, group_copies, seeded_groups, unusual_groups
from tests.spark.damage import InjectedDamage
from tests.spark.damage_kit import segments
from tests.spark.damaged_audit import audit_damaged, findings
from tests.spark.running_groups import running_group
from tests.unit.spark import inprocess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(2700), pytest.mark.filterwarnings("ignore")]
BATCH = 50
HISTORIES = 250
GROUPS_IN_USE, CUTS = 5, 8


def test_each_kind_of_damage_is_found_and_healthy_groups_have_no_findings(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Most damage to a DLedger log is the same as to a plain one, and tested without Spark."""
    plain = seeded_groups.create_healthy_group(tmp_path / "plain", 900)
    dledger = dledger_groups.create_healthy_group(tmp_path / "dledger", 900)
    of_dledger = [kind for kind in damage.DLEDGER_KINDS if kind not in damage.KINDS]
    of_dledger += ["bit_in_size", "hole", "unit_missing", "index_entry_of_another_key"]
    sources = {"plain": plain, "dledger": dledger}
    kinds = {"plain": list(damage.KINDS), "dledger": of_dledger}
    assert audit_damaged(spark, tmp_path / "groups", sources, kinds) == {}


def test_ranges_that_start_inside_records_give_the_same_findings(spark: SparkSession, tmp_path: Path) -> None:
    source = seeded_groups.create_healthy_group(tmp_path / "healthy", 17)
    injected = {}
    everything = group_copies.replicas("healthy", group_copies.copied(source, tmp_path / "groups", "healthy"))
    for kind in ("bit_in_body", "bit_in_size", "hole", "record_of_another_body", "unit_missing"):
        name, paths, injected[kind] = group_copies.damaged(source, tmp_path / "groups", kind, 17)
        everything += group_copies.replicas(name, paths)
    found = findings(spark, everything, None, partition_bytes=30_001)
    assert found["healthy"] == []
    assert {
        kind: expectations.mismatches(damage_done, found[f"{kind}-17"])
        for kind, damage_done in injected.items()
    } == {kind: [] for kind in injected}


def test_an_audit_writes_a_summary_a_table_and_a_report(spark: SparkSession, tmp_path: Path) -> None:
    source = seeded_groups.create_healthy_group(tmp_path / "healthy", 3)
    name, paths, damage_done = group_copies.damaged(source, tmp_path / "groups", "bit_in_body", 3)
    outcome = local_audit.run(local_audit.replicas_of([str(path) for path in paths]), tmp_path / "out")
    assert outcome.exit_code == 4
    summary = json.loads((tmp_path / "out" / results.SUMMARY_FILE).read_text())
    assert summary["verdict"] == "damaged"
    assert summary["findingCounts"] == {"record.checksum": 1}
    assert [one["group"] for one in summary["replicas"]] == [name] * 3
    (listed,) = summary["findings"]
    assert listed["replica"] == damage_done.replica
    starts = [one for one in damage.epochs(source[0]) if one.start_offset <= listed["start_offset"]]
    assert listed["epoch"] == starts[-1].epoch
    assert spark.read.parquet(str(tmp_path / "out" / results.FINDINGS_FILE)).count() == 1
    page = (tmp_path / "out" / results.REPORT_FILE).read_text()
    assert "<svg" in page
    assert "record.checksum" in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    healthy = local_audit.run(
        local_audit.replicas_of([str(path) for path in source]), tmp_path / "healthy-out"
    )
    assert (healthy.exit_code, healthy.summary["findingCounts"]) == (0, {})
    page = (tmp_path / "healthy-out" / results.REPORT_FILE).read_text()
    compared = healthy.summary["coverage"]["comparedBytes"]
    assert compared == sum(one["logEnd"] for one in healthy.summary["replicas"])
    assert f"bytes of logs compared with another replica</td><td class='n'>{compared}</td>" in page


def test_the_sources_work_in_any_session(spark: SparkSession, tmp_path: Path) -> None:
    from epochmq_spark.sources import register

    register(spark)
    source = seeded_groups.create_healthy_group(tmp_path / "healthy", 5)
    log = spark.read.format("epochmq.commitlog").load(str(source[0]))
    own = damage.records(source[0])
    messages = log.where("kind = 'message'")
    assert messages.count() == len(own)
    middle = own[len(own) // 2]
    row = messages.where(f"physical_offset = {middle.offset}").collect()[0]
    assert (row["topic"], row["queue_offset"], row["size"]) == (
        middle.message.topic,
        middle.message.queue_offset,
        middle.size,
    )
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    reader = spark.read.format("epochmq.commitlog").option("pushFilters", "true")
    pushed = reader.options(partitionBytes="500", taskBytes="1").load(str(source[0]))
    low, high = own[3].offset, own[9].offset
    chosen = pushed.where(f"physical_offset >= {low} and physical_offset < {high} and kind = 'message'")
    assert pushed.rdd.getNumPartitions() >= sum(one.stat().st_size for one in segments(source[0])) // 500
    assert chosen.rdd.getNumPartitions() <= (high - low) // 500 + 3
    assert [row["physical_offset"] for row in chosen.orderBy("physical_offset").collect()] == [
        one.offset for one in own[3:9]
    ]
    sent = log.selectExpr(
        "properties['UNIQ_KEY'] as id", "date_trunc('HOUR', store_time) as hour", "born_host"
    )
    counted = sent.where("id is not null").groupBy("hour", "born_host").count().collect()
    assert sum(one["count"] for one in counted) == len(own)
    bodies = spark.read.format("epochmq.commitlog").option("body", "true").load(str(source[0]))
    assert bodies.where("length(body) = body_size").count() == len(own)
    both = spark.read.format("epochmq.commitlog").load([str(source[0]), str(source[1])])
    assert both.select("replica").distinct().count() == 2
    matched = spark.read.format("epochmq.commitlog").load(f"{source[0].parent}/r*")
    assert matched.where("kind = 'message'").count() == len(own) * len(source)
    with pytest.raises(Exception, match="PATH_NOT_FOUND"):
        spark.read.format("epochmq.commitlog").load("/typo")
    units = spark.read.format("epochmq.consumequeue").load(str(source[0]))
    assert units.count() == len(own)
    joined = units.join(messages, ["topic", "queue_id", "queue_offset", "physical_offset"])
    assert joined.count() == len(own)
    entries = spark.read.format("epochmq.epochs").load(str(source[0])).where("file = 'epochFileCheckpoint'")
    assert [(one["epoch"], one["start_offset"]) for one in entries.orderBy("line").collect()] == [
        (one.epoch, one.start_offset) for one in damage.epochs(source[0])
    ]
    assert spark.read.format("epochmq.index").load(str(source[0])).count() >= len(own)


def test_the_exit_code_of_the_command_is_that_of_the_verdict(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from epochmq.app import run

    source = [str(path) for path in seeded_groups.create_healthy_group(tmp_path / "healthy", 8)]
    state = ["--state", str(tmp_path / "state")]
    assert run(["report", *state]) == 3
    assert run(["audit", *source, *state]) == 0
    assert "healthy: 0 findings" in capsys.readouterr().out
    assert run(["report", *state]) == 0
    assert Path(capsys.readouterr().out.strip()).name == "report.html"
    assert run(["audit", source[0], str(tmp_path / "nowhere"), *state]) == 2
    assert "nowhere: no such directory" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run(["audit", source[0], str(tmp_path / "empty"), *state, "-o", "json"]) == 5
    summary = json.loads(capsys.readouterr().out)
    assert summary["verdict"] == "undecided"
    found = {row["kind"]: row.get("file") for row in summary["findings"]}
    assert found == {"directory.empty": str(tmp_path / "empty"), "group.one-replica": None}
    assert run(["audit", source[0], *state]) == 5
    output = capsys.readouterr().out
    assert "undecided: 1 findings" in output
    assert "compared 0 of 1 replicas: 0 bytes" in output
    assert "no other replica could be read: checked in itself only" in output
    (tmp_path / "broken.json").write_text('{"controllerGroups": 7}')
    assert run(["audit", *source, *state, "--metadata", str(tmp_path / "broken.json")]) == 2
    output = capsys.readouterr().err
    assert "broken.json" in output
    assert "Traceback" not in output
    taken = str(tmp_path / "broken.json" / "out")
    assert run(["audit", *source, *state, "--out", taken]) == 2
    assert f"--out {taken}: Not a directory" in capsys.readouterr().err


PLACE = ("replica", "kind", "start_offset", "end_offset", "file", "topic", "queue_id", "queue_offset")
"""Columns by which findings are compared."""


def places(found: Sequence[dict[str, Any]]) -> set[tuple[Any, ...]]:
    """What findings are about."""
    return {tuple(row.get(name) for name in PLACE) for row in found}


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_250_healthy_groups_and_250_injected_damages_with_spark_and_in_one_process(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Takes the kinds in turn: more than four of each. Each healthy history is also changed to a group that
    only looks damaged. Both ways find the same in all of them."""
    kinds, changes = itertools.cycle(sorted(damage.KINDS)), itertools.cycle(unusual_groups.CHANGES.items())
    for first in range(0, HISTORIES, BATCH):
        root = tmp_path / str(first)
        groups: dict[str, list[store_layout.AuditedReplica]] = {}
        injected: dict[str, InjectedDamage] = {}
        unusual: dict[str, set[tuple[str, str]]] = {}
        for seed in range(first, min(first + BATCH, HISTORIES)):
            source = seeded_groups.create_healthy_group(root / "healthy" / str(seed), seed)
            groups[f"healthy-{seed}"] = group_copies.replicas(
                f"healthy-{seed}", group_copies.copied(source, root, f"healthy-{seed}")
            )
            name, paths, injected_here = group_copies.damaged(source, root, next(kinds), seed)
            groups[name], injected[name] = group_copies.replicas(name, paths), injected_here
            what, change = next(changes)
            paths = group_copies.copied(source, root, name := f"{what}-{seed}".replace("_", "-"))
            unusual[name] = change(paths)
            groups[name] = group_copies.replicas(name, paths)
        everything = [one for replicas in groups.values() for one in replicas]
        found = findings(spark, everything, group_copies.metadata(injected))
        for name, replicas in groups.items():
            if name in injected:
                assert expectations.mismatches(injected[name], found[name]) == [], name
            elif name in unusual:
                assert unusual_groups.found(found[name]) == unusual[name], name
            else:
                assert found[name] == []
            views = group_copies.metadata({name: injected[name]}) if name in injected else None
            assert places(inprocess.run(replicas, views)) == places(found[name]), name
        shutil.rmtree(root)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_200_cuts_of_groups_in_use_have_no_findings(spark: SparkSession, tmp_path: Path) -> None:
    """The groups keep serving through failovers and truncations while Spark reads."""
    cuts, turns = 0, [0, 0]
    for first in range(0, 200, GROUPS_IN_USE * CUTS):
        with ExitStack() as stack:
            backgrounds = [
                stack.enter_context(running_group(tmp_path / str(first + number), first + number, pace_s=1))
                for number in range(GROUPS_IN_USE)
            ]
            everything: list[store_layout.AuditedReplica] = []
            for number in range(CUTS):
                for group, background in enumerate(backgrounds):
                    everything += background.replicas(f"{first}-{group}-{number}")
                    cuts += 1
            found = findings(spark, everything, None)
            wrong = [row for rows in found.values() for row in rows if row["severity"] != "note"]
            assert wrong == []
            for background in backgrounds:
                background.wait(lambda group=background.group: group.switches and group.truncations)  # type: ignore[misc]
                turns[0] += background.group.switches
                turns[1] += background.group.truncations
        volume_client.close_connections()
    print(f"{cuts} cuts, during {turns[0]} elections and {turns[1]} truncations")
    assert cuts == 200
