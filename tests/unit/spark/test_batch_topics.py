"""Topics of type BatchCQ: the audit checks their messages in the log, and leaves out their queues, which are
not read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_broker.store import MessageStore, PutStatus, StoreConfig
from epochmq_protocol import message as records
from epochmq_spark.store_layout import AuditedReplica
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
        )
    )
    store.queues.is_batch_topic = lambda topic: topic == "batches"
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
