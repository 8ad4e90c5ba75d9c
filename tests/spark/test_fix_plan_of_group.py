"""The commands of the plan repair a stopped group of `epochmq up`: a store whose record differs from the
others is replaced, and damaged queues are built again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import fix_plan
from epochmq_spark.store_layout import AuditedReplica
from tests.integration.up_run import GroupRun
from tests.spark.damage_kit import overwrite, records
from tests.unit.spark import inprocess

pytestmark = [pytest.mark.timeout(2700), pytest.mark.filterwarnings("ignore")]
COPIES_MAX = 200


def stopped(run: GroupRun) -> list[AuditedReplica]:
    """Stops the group; its replicas."""
    run.until(run.whole, "all replicas are in the SyncStateSet")
    run.ok("down")
    stores = sorted(run.state.glob("volumes/orders-broker-*/store"))
    return [AuditedReplica("orders-a", path.parent.name, str(path)) for path in stores]


def bodies(run: GroupRun, count: int) -> set[str]:
    """This number of different bodies. On a busy machine `produce` may have sent a message twice."""
    for copies in range(COPIES_MAX):
        found = set(run.bodies(f"readers-{copies}", count + copies))
        if len(found) >= count:
            break
    return found


def test_the_printed_commands_repair_a_stopped_group(tmp_path: Path) -> None:
    run = GroupRun(tmp_path)
    try:
        run.up()
        run.ok("topic", "create", "orders")
        run.ok("produce", "orders", stdin="".join(f"message {number}\n" for number in range(200)))
        replicas = stopped(run)
        one, other = Path(replicas[1].location), Path(replicas[2].location)
        record = next(found for found in records(one) if found.message.body == b"message 7")
        data = record.path.read_bytes()[record.at : record.at + record.size]
        overwrite(record.path, record.at + data.index(b"UNIQ_KEY") + len("UNIQ_KEY") + 3, b"!")
        for queue in other.glob("consumequeue/orders/*/*"):
            overwrite(queue, 0, bytes(20))
        found = inprocess.run(replicas)
        assert {"log.diverged", "queue.missing-unit"} <= {row["kind"] for row in found}
        text = fix_plan.shell_text(inprocess.plan_of(replicas, found), "epochmq audit")
        assert f"mv -- {one} " in text
        assert f"{other}/consumequeue" in text
        subprocess.run(["sh", "-e"], input=text, text=True, check=True)
        assert not one.exists()
        run.up()
        assert bodies(run, 200) == {f"message {number}" for number in range(200)}
        replicas = stopped(run)
        assert len(replicas) == 3
        assert inprocess.without_notes(inprocess.run(replicas)) == []
    finally:
        run.here("down")
        shutil.rmtree(run.state / "volumes", ignore_errors=True)
