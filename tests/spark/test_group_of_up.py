"""Tests `epochmq audit GROUP` on a group of `epochmq up` while messages are sent to it: it is healthy, a
damaged byte below the cut is named, and the directories themselves are rejected."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from tests.integration.up_run import GroupRun
from tests.spark.damage_kit import overwrite, records
from tests.support.up_dledger_run import LedgerRun

pytestmark = [
    pytest.mark.soak,  # six processes and two starts of Spark: a minute on a free machine
    pytest.mark.timeout(2700),
    pytest.mark.skipif(shutil.which("java") is None, reason="missing: `java` 17 or newer"),
]

MESSAGES = 200


def audited(run: GroupRun, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = run.here("audit", *arguments, "-o", "json", "--cores", "2")
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout) if done.stdout else {"error": done.stderr}


@pytest.mark.parametrize(
    ("make", "name"), [(GroupRun, "orders"), (LedgerRun, "ledger")], ids=["with-controllers", "dledger"]
)
def test_a_running_group_is_audited_by_its_name(
    tmp_path: Path, make: Callable[[Path], GroupRun], name: str
) -> None:
    run = make(tmp_path)
    run.up()
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            run.ok("produce", "audited", stdin="".join(f"more {number}\n" for number in range(50)))

    sender = threading.Thread(target=send)
    try:
        run.ok("produce", "audited", stdin="".join(f"message {number}\n" for number in range(MESSAGES)))
        sender.start()
        code, summary = audited(run, name)
        assert code == 0, summary
        assert {row["severity"] for row in summary["findings"]} <= {"note"}
        assert summary["coverage"]["replicasCompared"] == 3
        assert {one["group"] for one in summary["replicas"]} == {f"{name}-a"}
        assert min(one["records"] for one in summary["replicas"]) >= MESSAGES
        stop.set()
        sender.join()
        store = next(run.state.glob(f"volumes/{name}-broker-1/store"))
        record = next(one for one in records(store) if one.message.body == b"message 7")
        body_at = record.at + record.path.read_bytes()[record.at : record.at + record.size].index(
            b"message 7"
        )
        overwrite(record.path, body_at, b"M")
        code, summary = audited(run, name)
        named = [(row["replica"], row["kind"], row["start_offset"]) for row in summary["findings"]]
        assert (code, named) == (4, [(f"{name}-broker-1", "record.checksum", record.offset)])
        done = run.here("audit", str(store.parent))
        assert (done.returncode, "is in use by process" in done.stderr) == (2, True)
    finally:
        stop.set()
        if sender.is_alive():
            sender.join()
        run.here("down")
