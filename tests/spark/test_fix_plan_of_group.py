"""The commands of `epochmq audit --fix-plan` repair a stopped group of `epochmq up`: a store whose record
differs from the others is replaced, and damaged queues are built again."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from tests.integration.up_run import GroupRun
from tests.spark.damage_kit import overwrite, records

pytestmark = [
    pytest.mark.soak,  # six processes, started twice, and three starts of Spark
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("java") is None, reason="missing: `java` 17 or newer"),
]


def stopped(run: GroupRun) -> list[str]:
    """Stops the group; the directories of its replicas."""
    run.until(run.whole, "all replicas are in the SyncStateSet")
    run.ok("down")
    return [str(path) for path in sorted(run.state.glob("volumes/orders-broker-*/store"))]


def audited(run: GroupRun, *arguments: str) -> Any:
    return run.here("audit", *arguments, "--cores", "2")


def test_the_printed_commands_repair_a_stopped_group(tmp_path: Path) -> None:
    run = GroupRun(tmp_path)
    try:
        run.up()
        run.ok("topic", "create", "orders")
        run.ok("produce", "orders", stdin="".join(f"message {number}\n" for number in range(200)))
        stores = stopped(run)
        one, other = Path(stores[1]), Path(stores[2])
        record = next(found for found in records(one) if found.message.body == b"message 7")
        data = record.path.read_bytes()[record.at : record.at + record.size]
        overwrite(record.path, record.at + data.index(b"UNIQ_KEY") + len("UNIQ_KEY") + 3, b"!")
        for queue in other.glob("consumequeue/orders/*/*"):
            overwrite(queue, 0, bytes(20))
        done = audited(run, *stores, "--fix-plan")
        assert done.returncode == 4, done.stderr
        assert "log.diverged" in done.stderr
        assert f"mv -- {one} " in done.stdout
        assert f"{other}/consumequeue" in done.stdout
        subprocess.run(["sh", "-e"], input=done.stdout, text=True, check=True)
        assert not one.exists()
        run.up()
        assert run.bodies("readers", 200) == sorted(f"message {number}" for number in range(200))
        done = audited(run, *stopped(run), "-o", "json")
        summary = json.loads(done.stdout)
        assert (done.returncode, summary["fixPlan"]) == (0, []), summary["findings"]
    finally:
        run.here("down")
