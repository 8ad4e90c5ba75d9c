"""Tests the audit on stores written by RocketMQ 5.3.3, alone and as a replica of ours: it finds nothing in
them, and it finds damage to copies of them."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_dledger.store.file_log import INDEX_FILE_SIZE
from tests.interop.java_env import compile_java, run_java
from tests.spark import damage, expectations
from tests.spark.dledger_groups import DLedgerNode
from tests.support.ha_peer import SETTINGS, HAPeer, agree, fill
from tests.support.net import free_port
from tests.unit.broker.replication.ha.broker_node import BrokerNode, until
from tests.unit.spark import inprocess
from tests.unit.store.support import Message

pytestmark = [pytest.mark.java, pytest.mark.timeout(2700), pytest.mark.filterwarnings("ignore")]

LOG_BYTES = 1 << 18
KINDS = ("bit_in_body", "bit_in_size", "bit_in_store_time", "hole", "unit_of_another_size", "unit_missing")


def test_a_store_of_rocketmq_has_no_findings_and_damage_to_a_copy_is_found(tmp_path: Path) -> None:
    sizes = [str(1 << 20), "200000", "1000", "4000"]
    root = tmp_path / "group" / "r1"
    classes = compile_java("StoreTool.java", "LocalStore.java", "ToolProcess.java")
    run_java(
        "StoreTool",
        [str(root), *sizes, "write:0:3000", "dispatched"],
        home=tmp_path / "home",
        classes=classes,
    )
    for name in ("r2", "r3"):
        shutil.copytree(root, root.with_name(name))
    paths = sorted(root.parent.iterdir())
    assert inprocess.without_notes(inprocess.run(inprocess.replicas_of(paths))) == []
    for kind in KINDS:
        target = tmp_path / kind
        shutil.copytree(root.parent, target)
        copies = sorted(target.iterdir())
        damage_done = damage.KINDS[kind](copies, random.Random(kind))
        found = inprocess.run(inprocess.replicas_of(copies))
        assert (kind, expectations.mismatches(damage_done, found)) == (kind, [])


def test_a_dledger_group_with_a_store_of_rocketmq_has_no_findings_and_damage_is_found(tmp_path: Path) -> None:
    """RocketMQ's broker has written the log of one peer, which a broker of ours continues; the others have
    copied it."""
    root = tmp_path / "group" / "r1"
    sizes = [str(LOG_BYTES), "200000", "1000", "4000"]
    tool = [str(root), *sizes, f"dledger:{free_port('127.0.0.1')}", "write:0:3000", "dispatched"]
    root.mkdir(parents=True)
    classes = compile_java("StoreTool.java", "LocalStore.java", "ToolProcess.java")
    run_java("StoreTool", tool, home=tmp_path / "home", classes=classes, heap_mb=384)
    (root / "dledger-n0" / "data").symlink_to("../data")
    assert inprocess.of_one_replica(inprocess.run(inprocess.replicas_of([root]))) == []
    settings = {
        "mappedFileSizeCommitLog": str(LOG_BYTES),
        "mappedFileSizeConsumeQueue": "200000",
        "maxHashSlotNum": "1000",
        "maxIndexNum": "4000",
    }
    java = DLedgerNode(root, 1, root / "data", index_file_bytes=INDEX_FILE_SIZE, **settings)
    others = [DLedgerNode(root.with_name(f"r{number}"), number, **settings) for number in (2, 3)]
    for node in (java, *others):
        node.open()
    java.lead(java.log.end_term + 1)
    java.write([Message(body=b"%d" % number) for number in range(200)])
    for node in others:
        node.follow(java)
    for node in (java, *others):
        node.commit(java.log.end_index)
        node.close()
    paths = sorted(root.parent.iterdir())
    assert inprocess.without_notes(inprocess.run(inprocess.replicas_of(paths))) == []
    for index in (root / "dledger-n0" / "index").iterdir():
        os.truncate(index, 1 << 20)  # its 160 MB would be copied
    for kind in (*KINDS, "bit_in_entry_term", "unit_of_entry_flipped"):
        shutil.copytree(root.parent, tmp_path / kind)
        copies = sorted((tmp_path / kind).iterdir())
        damage_done = damage.DLEDGER_KINDS[kind](copies, random.Random(kind))
        found = inprocess.run(inprocess.replicas_of(copies))
        assert (kind, expectations.mismatches(damage_done, found)) == (kind, [])
        shutil.rmtree(tmp_path / kind)


async def test_a_group_with_a_replica_of_rocketmq_has_no_findings_after_truncations(tmp_path: Path) -> None:
    java = HAPeer(tmp_path / "java", 2)
    ours = await BrokerNode(tmp_path / "ours", 1, SETTINGS).open()
    try:
        await java.start()
        await ours.lead(1)
        fill(ours, 1500)
        assert await java.tell(f"slave {ours.address} 1") == "true"
        await agree(ours, java)
        # Each of them writes alone and is truncated afterwards.
        assert await java.tell("slave 127.0.0.1:9 1") == "true"
        await until(lambda: not ours.ha_status().ha_connection_info)
        fill(ours, 70)
        assert await java.tell("master 2") == "true"
        assert await java.tell("write 300 700") == "ok"
        await ours.follow(java.address, 2)
        await agree(ours, java)
        await ours.follow(None, 2)
        assert await java.tell("write 90 800") == "ok"
        await ours.lead(3)
        fill(ours, 20)
        assert await java.tell(f"slave {ours.address} 3") == "true"
        await agree(ours, java)
    finally:
        java.process.kill()
        await ours.close()
    replicas = inprocess.replicas_of([java.store, tmp_path / "ours"])
    assert inprocess.without_notes(inprocess.run(replicas)) == []
