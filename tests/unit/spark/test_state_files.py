"""Each state file of a store is read: what no broker writes into it is a finding that names the file, and a
directory or a file that is missing is one, too. The table in the docs says the same."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_formats.index_file import HEADER_BYTES
from epochmq_protocol import fastjson
from epochmq_spark.audit import offset_finding
from epochmq_spark.decode import state_values
from epochmq_spark.findings import KINDS, finding
from epochmq_spark.sources.offsets import parse_queue_ends
from epochmq_spark.state_catalogue import STATE_FILES_READ
from epochmq_spark.store_layout import AuditedReplica
from tests.spark.damage_kit import overwrite
from tests.unit.spark import feature_store, inprocess

pytestmark = pytest.mark.filterwarnings("ignore")
ROOT = Path(__file__).parents[3]
NOW_MS = int(time.time() * 1000)
FAR_MS = NOW_MS + 30 * 86_400_000
KINDS_OF = {one.name: one.kinds for one in STATE_FILES_READ}


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A group of two equal stores with the files of all features, but for the wheel."""
    root = tmp_path_factory.mktemp("features")
    asyncio.run(feature_store.create(root / "a"))
    (root / "a" / "brokerIdentity").write_text("c#group-a#1")
    (root / "a" / "config" / "transactionMetrics").touch()
    copy(root / "a", root / "b")
    (root / "b" / "brokerIdentity").write_text("c#group-a#2")
    return root


def copy(source: Path, target: Path) -> Path:
    # shutil would write all 38 MB of the wheel, which is nearly empty.
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)
    return target


@pytest.fixture
def pair(features: Path, tmp_path: Path) -> list[Path]:
    return [copy(features / name, tmp_path / name) for name in ("a", "b")]


def audited(paths: list[Path]) -> list[dict[str, Any]]:
    replicas = [AuditedReplica("group-a", path.name, str(path)) for path in paths]
    return inprocess.without_notes(inprocess.run(replicas))


def kinds(paths: list[Path]) -> set[tuple[str, str]]:
    return {(row["replica"], row["kind"]) for row in audited(paths)}


def test_the_table_of_the_docs_has_the_rows_of_the_readers() -> None:
    text = (ROOT / "docs" / "audit.md").read_text().split("## State files")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \| (.+) \|$", text, re.MULTILINE)
    expected = [
        (one.name, one.checked, ", ".join(f"`{kind}`" for kind in one.kinds)) for one in STATE_FILES_READ
    ]
    assert rows == expected
    assert {kind for one in STATE_FILES_READ for kind in one.kinds} <= KINDS.keys()
    assert state_values.STATE_VALUES.keys() <= KINDS_OF.keys()


def test_two_equal_stores_have_no_finding(features: Path) -> None:
    assert audited([features / "a", features / "b"]) == []


GARBAGE = [
    one.name
    for one in STATE_FILES_READ
    if not one.name.startswith(("dledger", "index", "epoch", "timerwheel", "queueEnds"))
]


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_in_a_state_file_is_a_finding_that_names_it(name: str, pair: list[Path]) -> None:
    file = pair[1] / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"\x80\xffgarbage")
    found = [row for row in audited(pair) if row["replica"] == "b" and row["kind"] in KINDS_OF[name]]
    assert any(str(file) in f"{row['file']} {row['detail']}" for row in found)


def change(store: Path, name: str, edit: Callable[[dict[str, Any]], None]) -> None:
    file = store / name
    document: Any = fastjson.loads(file.read_bytes())
    edit(document)
    file.write_text(json.dumps(document))


def with_delay(store: Path, level: object, offset: object) -> None:
    change(store, "config/delayOffset.json", lambda one: one["offsetTable"].update({level: offset}))


def pack_timercheck(store: Path, at: int, value: int) -> None:
    overwrite(store / "config" / "timercheck", at * 8, struct.pack(">q", value))


def index_of(store: Path) -> Path:
    return next((store / "index").iterdir())


def topic(name: str, **fields: object) -> Callable[[Path], None]:
    def edit(store: Path) -> None:
        change(store, "config/topics.json", lambda one: one["topicConfigTable"][name].update(fields))

    return edit


def group_of(**fields: object) -> Callable[[Path], None]:
    def edit(store: Path) -> None:
        table = "subscriptionGroupTable"
        change(
            store,
            "config/subscriptionGroup.json",
            lambda one: one[table].update({"g": {"groupName": "g"} | fields}),
        )

    return edit


def without_topic(store: Path) -> None:
    change(store, "config/topics.json", lambda one: one["topicConfigTable"].pop("T"))


def future_version(store: Path) -> None:
    change(store, "config/topics.json", lambda one: one["dataVersion"].update(timestamp=FAR_MS))


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a topic with -1 queues": (topic("T", readQueueNums=-1), "state.unreadable"),
    "a topic with another name": (topic("T", topicName="U"), "state.unreadable"),
    "a topic with another permission": (topic("T", perm=99), "state.unreadable"),
    "fewer queues under the same version": (topic("T", readQueueNums=1), "state.differs"),
    "a topic is missing under the same version": (without_topic, "state.differs"),
    "a version of next month": (future_version, "state.unreadable"),
    "a group with too many queues": (group_of(retryQueueNums=2**40), "state.unreadable"),
    "a delay level 0": (lambda store: with_delay(store, 0, 1), "state.unreadable"),
    "a delay offset without a queue": (lambda store: with_delay(store, 1, 7), "delay-offset.ahead"),
    "a delay offset of -5": (lambda store: with_delay(store, 1, -5), "state.unreadable"),
    "a delay offset of 2^70": (lambda store: with_delay(store, 1, 2**70), "state.unreadable"),
    "a timer 30 days ahead": (lambda store: pack_timercheck(store, 0, FAR_MS), "state.unreadable"),
    "a timer's log at -1": (lambda store: pack_timercheck(store, 1, -1), "state.unreadable"),
    "a count that is a text": (
        lambda store: change(
            store, "config/timermetrics", lambda one: one["timingCount"]["later"].update(count="many")
        ),
        "state.unreadable",
    ),
    "an extent of -1": (
        lambda store: change(store, "logExtent.json", lambda one: one.update(first=-1)),
        "state.unreadable",
    ),
    "an id over 2^63": (
        lambda store: (store / "brokerIdentity").write_text("c#group-a#" + "9" * 23),
        "state.unreadable",
    ),
    "an index header at random": (
        lambda store: overwrite(index_of(store), 0, bytes(range(7, 7 + HEADER_BYTES))),
        "index.broken-header",
    ),
    "an order of queue 2^40": (
        lambda store: change(
            store,
            "config/consumerOrderInfo.json",
            lambda one: one["table"].update({"T@g": {str(2**40): {"o": [3, 2, 1]}}}),
        ),
        "pop.broken-order",
    ),
    "a queue file of 20,007 bytes": (
        lambda store: next((store / "consumequeue" / "T" / "0").iterdir()).write_bytes(bytes(20_007)),
        "file.wrong-size",
    ),
    "no directory config": (lambda store: shutil.rmtree(store / "config"), "directory.incomplete"),
    "no directory timerlog": (lambda store: shutil.rmtree(store / "timerlog"), "directory.incomplete"),
    "no wheel": (lambda store: (store / "timerwheel").unlink(), "directory.incomplete"),
    "no checkpoint": (lambda store: (store / "checkpoint").unlink(), "state.missing"),
    "no topics": (lambda store: (store / "config" / "topics.json").unlink(), "state.missing"),
    "no groups": (lambda store: (store / "config" / "subscriptionGroup.json").unlink(), "state.missing"),
    "no index": (lambda store: shutil.rmtree(store / "index"), "directory.incomplete"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_value_that_no_broker_writes_is_a_finding(name: str, pair: list[Path]) -> None:
    edit, kind = CHANGES[name]
    edit(pair[1])
    assert ("b", kind) in kinds(pair)


def test_all_indexes_are_missing(pair: list[Path]) -> None:
    """A checkpoint has the time of the last full index file."""
    for path in pair:
        shutil.rmtree(path / "index")
    assert audited(pair) == [], "perhaps no message had a key"
    for path in pair:
        overwrite(path / "checkpoint", 16, struct.pack(">q", NOW_MS))
    found = {(row["replica"], row["detail"]) for row in audited(pair)}
    detail = "no index file is there, and the checkpoint says that messages were indexed"
    assert found == {("a", detail), ("b", detail)}


def test_of_three_tables_of_one_version_the_majority_is_right(pair: list[Path], tmp_path: Path) -> None:
    third = copy(pair[0], tmp_path / "c")
    (third / "brokerIdentity").write_text("c#group-a#3")
    topic("T", writeQueueNums=1)(pair[1])
    found = [row for row in audited([*pair, third]) if row["kind"] == "state.differs"]
    assert [row["replica"] for row in found] == ["b"]
    assert "writeQueueNums of 'T' is '1', not '4'" in found[0]["detail"]
    (row_of_a, row_of_b) = (row for row in audited(pair) if row["kind"] == "state.differs")
    assert "nothing tells which is right" in row_of_a["detail"]
    assert "nothing tells which is right" in row_of_b["detail"]


def test_tables_of_other_versions_may_differ(pair: list[Path]) -> None:
    """A slave copies the table some seconds later."""

    def edit(one: dict[str, Any]) -> None:
        one["topicConfigTable"]["T"]["readQueueNums"] = 1
        one["dataVersion"]["counter"] -= 1

    change(pair[1], "config/topics.json", edit)
    assert audited(pair) == []


def test_an_offset_in_a_queue_that_no_replica_has_is_a_note(pair: list[Path]) -> None:
    """The queue may have expired, or its topic was deleted."""

    def edit(one: dict[str, Any]) -> None:
        one["offsetTable"]["T@late"] = {"77": 5, "78": 0}

    change(pair[1], "config/consumerOffset.json", edit)
    replicas = [AuditedReplica("group-a", path.name, str(path)) for path in pair]
    found = [row for row in inprocess.run(replicas) if row["kind"] == "consumer-offset.no-queue"]
    assert [(row["replica"], row["queue_id"], row["queue_offset"]) for row in found] == [("b", 77, 5)]
    assert audited(pair) == []


def test_offsets_that_are_back_at_0_are_a_note(pair: list[Path]) -> None:
    """A slave copies offsets some seconds later, and people reset them."""

    def set_offset(offset: int) -> Callable[[dict[str, Any]], None]:
        return lambda one: one["offsetTable"].update({"T@late": {"0": offset}})

    change(pair[0], "config/consumerOffset.json", set_offset(3))
    change(pair[1], "config/consumerOffset.json", set_offset(0))
    replicas = [AuditedReplica("group-a", path.name, str(path)) for path in pair]
    found = [row for row in inprocess.run(replicas) if row["kind"] == "consumer-offset.at-zero"]
    assert [(row["replica"], row["detail"]) for row in found] == [("b", "T@late queue 0 is at 0, not 3")]


def test_a_delay_offset_beyond_its_queue() -> None:
    row = {"group": "g", "replica": "a", "consumer_group": "delayOffset.json", "topic": "SCHEDULE_TOPIC_XXXX"}
    (found,) = offset_finding(row | {"queue_id": 2, "offset": 9, "queue_end": 4, "fault": None})
    assert found["kind"] == "delay-offset.ahead"
    assert found["detail"] == "level 3 is at 9, the queue ends at 4"


def test_the_ends_of_a_frozen_view_are_checked() -> None:
    assert parse_queue_ends(b'{"T":{"0":5}}') == [{"topic": "T", "queue_id": 0, "offset": 5}]
    with pytest.raises(ValueError, match="the end -5 for queue 0 of T"):
        parse_queue_ends(b'{"T":{"0":-5}}')


def test_a_finding_holds_any_number_and_any_name() -> None:
    row = finding("g", "a", "pop.broken-order", queue_id=2**40, topic="\udcff", detail="wrong")
    assert (row["queue_id"], row["topic"], row["detail"]) == (None, "\\xff", f"wrong (queue_id {2**40})")
