"""Topics of type BatchCQ: the audit checks their messages in the log, and the units of their queues against
them; with light message queues, consumer offsets are in a file of another name."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_protocol import message as records
from epochmq_spark.store_layout import AuditedReplica
from epochmq_store.message_store import MessageStore
from epochmq_store.statuses import PutStatus
from epochmq_store.store_config import StoreConfig
from tests.spark.damage_kit import overwrite
from tests.unit.spark import inprocess

pytestmark = pytest.mark.filterwarnings("ignore")

HOST = records.encode_host("127.0.0.2", 40_000)


def write(root: Path) -> None:
    """A store with single messages and inner batches of a topic, and a consumer at its end."""
    store = MessageStore(
        StoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=1 << 20,
            mapped_file_size_consume_queue=20 * 1000,
            mapper_file_size_batch_consume_queue=46 * 1000,
            max_hash_slot_num=1000,
            max_index_num=4000,
        ),
        is_batch_topic=lambda topic: topic == "batches",
    )
    store.load()
    for topic in ("batches", "plain"):
        queue = store.queue(topic, 0)
        for number in range(20):
            properties = {"UNIQ_KEY": f"{number:032X}"}
            flags = 0
            if topic == "batches" and number % 2:
                properties |= {"INNER_NUM": "3", "INNER_BASE": str(queue.max_offset)}
                flags = records.INNER_BATCH_FLAG | records.NEED_UNWRAP_FLAG
            status, *_ = store.append(
                queue,
                body=b"x" * number,
                properties=records.format_properties(properties),
                born_timestamp=1_700_000_000_000,
                born_host=HOST,
                sys_flag=flags,
                uniq_key=properties["UNIQ_KEY"],
            )
            assert status is PutStatus.PUT_OK
    table = {"batches@readers": {"0": store.queue("batches", 0).max_offset}, "plain@readers": {"0": 20}}
    store.stop()
    (root / "config").mkdir()
    (root / "config" / "consumerOffset.json").write_text(
        json.dumps({"dataVersion": {}, "offsetTable": table})
    )


def kinds(root: Path) -> list[str]:
    replicas = [AuditedReplica("group-a", "r1", str(root))]
    found = inprocess.of_one_replica(inprocess.run(replicas))
    return [row["kind"] for row in inprocess.without_notes(found)]


def test_a_healthy_store_with_batches_has_no_findings(tmp_path: Path) -> None:
    write(tmp_path)
    assert (tmp_path / "batchconsumequeue" / "batches").is_dir()
    assert kinds(tmp_path) == []


def test_damage_of_an_inner_batch_in_the_log_is_found(tmp_path: Path) -> None:
    write(tmp_path)
    path = min((tmp_path / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    at = data.index(b"x" * 13)  # the body of an inner batch
    data[at] ^= 1
    path.write_bytes(data)
    assert kinds(tmp_path) == ["record.checksum"]


QUEUE = "batchconsumequeue/batches/0"
UNIT_BYTES = 46


def unit_of_no_record(root: Path) -> None:
    overwrite(unit_file(root), 3 * UNIT_BYTES, struct.pack(">q", 100_000))


def unit_of_another_record(root: Path) -> None:
    data = unit_file(root).read_bytes()
    overwrite(unit_file(root), UNIT_BYTES, data[3 * UNIT_BYTES : 3 * UNIT_BYTES + 12])


def unit_with_another_base(root: Path) -> None:
    overwrite(unit_file(root), 5 * UNIT_BYTES + 28, struct.pack(">q", 11))


def unit_with_another_count(root: Path) -> None:
    overwrite(unit_file(root), 5 * UNIT_BYTES + 36, struct.pack(">h", 2))


def unit_with_another_time(root: Path) -> None:
    overwrite(unit_file(root), 5 * UNIT_BYTES + 20, struct.pack(">q", 1))


def unit_of_zeros_at_the_start(root: Path) -> None:
    overwrite(unit_file(root), 0, bytes(UNIT_BYTES))


def unit_of_zeros_in_the_middle(root: Path) -> None:
    overwrite(unit_file(root), 5 * UNIT_BYTES, bytes(UNIT_BYTES))


def unit_file(root: Path) -> Path:
    (path,) = (root / QUEUE).iterdir()
    return path


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (unit_of_no_record, "batch-queue.no-record"),
        (unit_of_another_record, "batch-queue.wrong-unit"),
        (unit_with_another_base, "batch-queue.wrong-unit"),
        (unit_with_another_count, "batch-queue.wrong-unit"),
        (unit_with_another_time, "batch-queue.wrong-unit"),
        (unit_of_zeros_at_the_start, "batch-queue.missing-unit"),
        (unit_of_zeros_in_the_middle, "batch-queue.missing-unit"),
    ],
)
def test_damage_of_a_unit_is_found(tmp_path: Path, damage: Callable[[Path], None], kind: str) -> None:
    write(tmp_path)
    damage(tmp_path)
    found = kinds(tmp_path)
    assert kind in found
    assert set(found) <= {kind, "batch-queue.wrong-unit"}


def test_consumer_offsets_of_a_broker_with_light_queues_are_checked(tmp_path: Path) -> None:
    """Such a broker writes `lmqConsumerOffset.json` in place of the other file."""
    write(tmp_path)
    config = tmp_path / "config"
    (config / "consumerOffset.json").rename(config / "lmqConsumerOffset.json")
    assert kinds(tmp_path) == []
    table = {"plain@readers": {"0": 21}, "%LMQ%q@readers": {"0": 1 << 40}}
    (config / "lmqConsumerOffset.json").write_text(json.dumps({"dataVersion": {}, "offsetTable": table}))
    assert kinds(tmp_path) == ["consumer-offset.ahead"]
    (config / "lmqConsumerOffset.json").write_text("{")
    assert kinds(tmp_path) == ["state.unreadable"]


def test_bytes_that_are_no_unit_are_named(tmp_path: Path) -> None:
    write(tmp_path)
    (file,) = (tmp_path / "batchconsumequeue" / "batches" / "0").iterdir()
    file.write_bytes(b"\xff" * file.stat().st_size)
    assert kinds(tmp_path) == ["batch-queue.no-record"]
