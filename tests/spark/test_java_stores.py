"""Tests the audit on stores written by RocketMQ 5.3.3, alone and as a replica of ours: it finds nothing in
them, and it finds damage to copies of them."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from tests.interop.java_env import compile_java, run_java
from tests.interop.test_replication import SETTINGS, HAPeer, agree, fill
from tests.spark import damage, expectations
from tests.unit.ha.broker_node import BrokerNode, until
from tests.unit.spark import inprocess

pytestmark = [pytest.mark.java, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]

KINDS = ("bit_in_body", "bit_in_size", "bit_in_store_time", "hole", "unit_of_another_size", "unit_missing")


def test_a_store_of_rocketmq_has_no_findings_and_damage_to_a_copy_is_found(tmp_path: Path) -> None:
    sizes = [str(1 << 20), "200000", "1000", "4000"]
    root = tmp_path / "group" / "r1"
    classes = compile_java("StoreTool.java", "ToolProcess.java")
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
