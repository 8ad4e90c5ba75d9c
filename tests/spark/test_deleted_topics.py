"""Tests the audit on stores of real brokers in which topics were deleted, and deleted and made again: what
they leave in the log is a note, with Spark as in one process, and what is lost besides is found."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import audit
from epochmq_spark.store_layout import AuditedReplica
from tests.interop.java_cluster import java_broker
from tests.support.group_processes import Factory, our_broker
from tests.support.pair import Pair
from tests.support.process import wait_until
from tests.support.remoting import call
from tests.unit.spark import inprocess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(2700), pytest.mark.filterwarnings("ignore")]

UPDATE_AND_CREATE_TOPIC, GET_ALL_TOPIC_CONFIG, DELETE_TOPIC = 17, 21, 215
TOPICS = ("kept", "deleted", "again", "silent")
NOTES = {
    ("broker-0", "topic.deleted", "deleted"),
    ("broker-0", "topic.made-again", "again"),
    ("broker-0", "topic.without-queues", "silent"),
    ("broker-1", "topic.made-again", "again"),
}
"""The slave keeps the queues of a topic of which it hears that it was deleted, until the topic gets messages
again."""
LOST = {("broker-0", "queue.missing-unit", "kept")}

Found = set[tuple[str, str, str | None]]


def ask(pair: Pair, code: int, **fields: str) -> None:
    response = call(pair.master.address, code, fields, timeout_s=60)
    assert response.code == 0, (code, response.remark)


def create_topic(pair: Pair, topic: str) -> None:
    ask(
        pair,
        UPDATE_AND_CREATE_TOPIC,
        topic=topic,
        defaultTopic="TBW102",
        readQueueNums="4",
        writeQueueNums="4",
        perm="6",
        topicFilterType="SINGLE_TAG",
        topicSysFlag="0",
        order="false",
    )


def send(pair: Pair, topic: str, count: int, queues: int) -> None:
    for number in range(count):
        message = partial(pair.send, topic, b"%s %d" % (topic.encode(), number), queue_id=number % queues)
        # A busy machine's broker rejects what waited for long.
        wait_until(lambda message=message: message().code == 0, what=f"a message to {topic} is acknowledged")


def fill(pair: Pair) -> None:
    """Makes topics, deletes some, and makes some of these again: one with fewer messages in one of its two
    queues, one without a message."""
    for topic in TOPICS:
        create_topic(pair, topic)
        send(pair, topic, 40, 2)
    pair.wait_followed()
    remove_and_make_again(pair)


def remove_and_make_again(pair: Pair) -> None:
    for topic in TOPICS[1:]:
        ask(pair, DELETE_TOPIC, topic=topic)
    for topic in TOPICS[2:]:
        create_topic(pair, topic)
    send(pair, "again", 10, 1)
    send(pair, "kept", 10, 2)
    pair.wait_followed()
    wait_until(lambda: topics(pair, 0) == topics(pair, 1), timeout_s=120, what="the slave has the topics")


def topics(pair: Pair, number: int) -> Any:
    body = call(pair.brokers[number].address, GET_ALL_TOPIC_CONFIG).body
    return json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', body))["topicConfigTable"]


def copied(pair: Pair, target: Path) -> Path:
    """Copies the stores of both brokers."""
    for number in range(2):
        copy(pair.store(number), target / f"broker-{number}")
    return target


def copy(source: Path, target: Path) -> None:
    """Copies a directory. The wheel stays sparse: shutil would write all 38 MB of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)


def stop(pair: Pair) -> None:
    for member in reversed(pair.brokers):
        member.process.signal(signal.SIGTERM)
        member.process.wait(120)


def stores(pair: Pair, root: Path) -> dict[str, Path]:
    """Copies of the group's stores: after a kill, and after a clean stop of the brokers that recovered."""
    found = {}
    for member in pair.brokers:
        member.process.kill()
    found["killed"] = copied(pair, root / "killed")
    for member in pair.brokers:
        member.start()
        wait_until(partial(pair.answers, member), timeout_s=180, what="it serves")
    pair.wait_followed()
    remove_and_make_again(pair)
    stop(pair)
    found["stopped"] = copied(pair, root / "stopped")
    return found


def damage(root: Path, source: Path) -> dict[str, Path]:
    """Copies with something lost: a queue of the topic that is there, and an entry of the master's table."""
    lost_queue, lost_entry = root / "lost-queue", root / "lost-entry"
    for target in (lost_queue, lost_entry):
        copy(source, target)
        shutil.rmtree(target / "broker-0" / "consumequeue" / "kept" / "1")
    for path in (lost_entry / "broker-0" / "config").glob("topics.json*"):
        path.write_bytes(path.read_bytes().replace(b'"kept"', b'"keep"'))
    return {"lost-queue": lost_queue, "lost-entry": lost_entry}


def replicas_of(stores: dict[str, Path]) -> list[AuditedReplica]:
    return [
        AuditedReplica(name, path.name, str(path))
        for name, folder in stores.items()
        for path in sorted(folder.iterdir())
    ]


def by_group(rows: Sequence[dict[str, Any]]) -> dict[str, Found]:
    found: dict[str, Found] = defaultdict(set)
    for row in rows:
        if row["kind"] not in ("directory.other-group", "log.behind"):
            found[row["group"]].add((row["replica"], row["kind"], row["topic"]))
    return dict(found)


@pytest.mark.parametrize(
    "brokers",
    [
        pytest.param((our_broker, our_broker), id="ours"),
        pytest.param((java_broker, our_broker), id="java", marks=pytest.mark.java),
    ],
)
def test_what_deleted_topics_leave_is_a_note(
    brokers: Sequence[Factory], spark: SparkSession, tmp_path: Path
) -> None:
    pair = Pair(tmp_path / "pair", brokers, octet=67)
    with pair:
        fill(pair)
        found = stores(pair, tmp_path / "copies")
    found |= damage(tmp_path / "copies", found["stopped"])
    replicas = replicas_of(found)
    alone = inprocess.run(replicas)
    groups = by_group(alone)
    assert {row["severity"] for row in alone if row["group"] == "killed"} == {"note"}
    # RocketMQ's checkpoint may be older than the deletion; what a topic has behind it may lack its units.
    either = {("broker-0", kind, "deleted") for kind in ("topic.deleted", "queue.behind")}
    assert either & groups["killed"]
    assert groups["stopped"] == NOTES
    for name in ("lost-queue", "lost-entry"):
        assert groups[name] - {("broker-0", "queue.behind", "kept")} == NOTES | LOST
    result = audit.run(spark, replicas)
    assert by_group([row.asDict() for row in result.findings.collect()]) == groups
