"""Tests the audit on groups of RocketMQ's brokers in controller mode, alone and mixed with ours. It finds
nothing while they run through elections, kill -9 and truncations, and it finds damage to their directories
afterwards."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark.findings import sentence
from tests.interop.java_cluster import java_broker
from tests.spark import damage
from tests.spark.damaged_audit import audit_damaged
from tests.spark.process_groups import ProcessGroup, Traffic
from tests.support.group_processes import Factory, our_broker
from tests.unit.spark import inprocess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.soak,
    pytest.mark.java,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore"),
]
CYCLES, AUDITS_MIN = 4, 50
SEEDS = 2
"""Of each kind of damage and group: more than 200 injections in all."""
GROUPS = [
    pytest.param([java_broker] * 3, id="java"),
    pytest.param([our_broker, java_broker, our_broker], id="mixed"),
]


def run_and_audit(process_group: ProcessGroup) -> list[Path]:
    """Runs the group through failover cycles, audits it meanwhile, and returns its directories. Fails on any
    finding."""
    faults: list[BaseException] = []
    traffic = Traffic(process_group.group, 1)

    def run_cycles() -> None:
        try:
            for number in range(CYCLES):
                process_group.run_cycle(traffic, number)
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=run_cycles)
    traffic.wait_more(20)
    thread.start()
    audits = 0
    try:
        while not faults and (thread.is_alive() or audits < AUDITS_MIN):
            replicas = process_group.replicas("group-a")
            found = inprocess.without_notes(inprocess.run(replicas))
            sentences = [sentence(row) for row in found]
            assert sentences == [], (sentences[:5], audits, process_group.cycles, process_group.last_cut)
            process_group.readers.stop()
            audits += 1
    finally:
        thread.join(600)
        process_group.readers.stop()
        traffic.end()
    if faults:
        raise faults[0]
    print(f"{audits} cuts during {process_group.cycles} turns, {traffic.acknowledged} messages acknowledged")
    return process_group.stop()


@pytest.mark.parametrize("brokers", GROUPS)
def test_a_group_in_use_has_no_findings_and_damage_to_its_directories_is_found(
    brokers: Sequence[Factory], spark: SparkSession, tmp_path: Path
) -> None:
    process_group = ProcessGroup(tmp_path / "group", brokers, 1, 79)
    try:
        process_group.group.start()
        source = run_and_audit(process_group)
    except BaseException as error:
        error.add_note(process_group.group.logs(4000))
        raise
    finally:
        process_group.readers.stop()
        process_group.group.kill()
    assert inprocess.without_notes(inprocess.run(inprocess.replicas_of(source))) == []
    kinds = sorted(damage.KINDS)
    for seed in range(SEEDS):
        root = tmp_path / str(seed)
        assert audit_damaged(spark, root, {str(seed): source}, {str(seed): kinds}) == {}
        shutil.rmtree(root)
    print(f"{SEEDS * len(kinds)} injections of {len(kinds)} kinds")
