"""Tests that an audit with Spark finds the same in damaged state files as one in this process."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import audit
from epochmq_spark.store_layout import AuditedReplica
from tests.spark import seeded_groups
from tests.spark.damage_kit import overwrite
from tests.unit.spark import inprocess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(2700), pytest.mark.filterwarnings("ignore")]


def topics(store: Path, queues: int) -> None:
    table = {"orders": {"topicName": "orders", "readQueueNums": queues, "writeQueueNums": 2, "perm": 6}}
    version = {"counter": 3, "stateVersion": 0, "timestamp": 1_700_000_000_000}
    text = json.dumps({"dataVersion": version, "topicConfigTable": table})
    (store / "config" / "topics.json").write_text(text)


def other_topics(stores: list[Path]) -> None:
    for store in stores:
        topics(store, 1 if store == stores[1] else 2)


def queues_below_zero(stores: list[Path]) -> None:
    topics(stores[1], -1)


def no_config(stores: list[Path]) -> None:
    shutil.rmtree(stores[1] / "config")


def index_header(stores: list[Path]) -> None:
    overwrite(min((stores[1] / "index").iterdir()), 0, struct.pack(">q", -1))


def size_of_a_queue(stores: list[Path]) -> None:
    with min((stores[1] / "consumequeue" / "orders" / "0").iterdir()).open("ab") as file:
        file.write(bytes(7))


def delay_offset(stores: list[Path]) -> None:
    (stores[1] / "config" / "delayOffset.json").write_text('{"offsetTable":{3:-7}}')


CHANGES: dict[Callable[[list[Path]], None], str] = {
    other_topics: "state.differs",
    queues_below_zero: "state.unreadable",
    no_config: "directory.incomplete",
    index_header: "index.broken-header",
    size_of_a_queue: "file.wrong-size",
    delay_offset: "state.unreadable",
}


def test_spark_and_one_process_find_the_same(spark: SparkSession, tmp_path: Path) -> None:
    source = seeded_groups.create_healthy_group(tmp_path / "healthy", 31)
    replicas = []
    for edit in CHANGES:
        root = tmp_path / edit.__name__
        shutil.copytree(source[0].parent, root)
        stores = sorted(root.iterdir())
        edit(stores)
        replicas += [AuditedReplica(edit.__name__, store.name, str(store)) for store in stores]
    result = audit.run(spark, replicas)
    keys = ("group", "replica", "kind", "file", "detail")

    def kept(rows: list[dict[str, object]]) -> set[tuple[object, ...]]:
        other = "directory.other-group"  # the groups of this test have other names
        return {tuple(row[key] for key in keys) for row in rows if row["kind"] != other}

    found = kept([row.asDict() for row in result.findings.collect()])
    assert found == kept(inprocess.run(replicas))
    of_second = {(row[0], row[2]) for row in found if row[1] == source[1].name}
    assert of_second == {(edit.__name__, kind) for edit, kind in CHANGES.items()}
