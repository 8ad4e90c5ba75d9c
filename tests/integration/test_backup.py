"""A group is backed up while it serves, loses all its disks, and comes back from the backup."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.integration.up_run import GroupRun

BATCH = 200


class SendingProducer:
    """Sends batches to a group in a thread. `acknowledged` are the bodies that it acknowledged."""

    def __init__(self, run: GroupRun) -> None:
        self._run = run
        self._stop = threading.Event()
        self._sent_once = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.acknowledged: list[str] = []

    def _send(self) -> None:
        batch = 0
        while not self._stop.is_set():
            bodies = [f"{batch}-{number}" for number in range(BATCH)]
            self._run.ok("produce", "orders", stdin="\n".join(bodies) + "\n")
            self.acknowledged += bodies
            batch += 1
            self._sent_once.set()

    def __enter__(self) -> SendingProducer:
        self._thread.start()
        assert self._sent_once.wait(120)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def backed_up(run: GroupRun, url: str) -> Any:
    (taken,) = json.loads(run.ok("backup", "orders", "--to", url, "-o", "json"))
    return taken


@pytest.mark.soak
def test_a_group_without_disks_comes_back_from_its_backup(tmp_path: Path) -> None:
    run = GroupRun(tmp_path)
    url = str(tmp_path / "backups")
    try:
        run.up()
        with SendingProducer(run) as producer:
            first = backed_up(run, url)
            expected = len(producer.acknowledged)
            second = backed_up(run, url)
        acknowledged = producer.acknowledged
        assert second["parent"] == first["id"]
        assert second["uploadedBytes"] < second["bytes"]
        assert second["replica"] != run.wait_master()["pod"], "a slave is read"
        run.ok("down")
        shutil.rmtree(run.state)
        stores = [run.state / "volumes" / f"orders-broker-{ordinal}" / "store" for ordinal in range(3)]
        targets = [word for store in stores for word in ("--to", str(store))]
        for backup in (first, second):
            assert run.call("backup", "verify", url, "--backup", backup["id"]).returncode == 0
        done = run.call("restore", url, *targets, "--group", "orders-a")
        assert done.returncode == 0, done.stderr
        assert "is not empty" in run.call("restore", url, *targets).stderr
        run.up()
        run.until(run.whole, "every replica is in the SyncStateSet")
        assert {one["maxOffset"] for one in run.group()["replicas"]} == {second["logEnd"]}
        run.ok("produce", "orders", "the last message")
        missing = set(acknowledged[:expected])

        def has_everything() -> bool:
            # Not more than must be there: `consume` waits for as many as it is asked for.
            missing.difference_update(run.bodies("readers", len(missing)))
            return not missing

        run.until(has_everything, "every message acknowledged before the backup is read")
    finally:
        run.here("down")
