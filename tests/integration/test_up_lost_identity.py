"""What a person does under `epochmq up` when a volume was restored, or all controllers have lost theirs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.up_run import GroupRun


@contextmanager
def starting(run: GroupRun) -> Iterator[None]:
    """Runs `up`, which waits until all pods are ready, meanwhile."""
    thread = threading.Thread(target=run.up)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def ready(run: GroupRun) -> bool:
    """Whether every replica is ready."""
    return all(one["phase"] == "Ready" for one in run.group()["replicas"])


@pytest.mark.soak
def test_a_restored_volume_and_lost_controllers(tmp_path: Path) -> None:
    run = GroupRun(tmp_path)
    volumes = tmp_path / "state" / "volumes"
    try:
        run.up()
        run.ok("produce", "orders", "one")
        replica = run.wait_slaves()[0]
        name = f"orders/{replica['brokerId']}"
        run.ok("down")
        store = volumes / replica["pod"] / "store"
        shutil.copytree(store, tmp_path / "older")
        run.up()
        run.ok("produce", "orders", "two")
        run.ok("down")
        shutil.rmtree(store)
        (tmp_path / "older").rename(store)
        with starting(run):
            run.until(lambda: "refuse its store" in run.here("status").stdout, "the older store is refused")
            other = run.here("replica", "adopt", "orders/9")
            assert "refuse no store of orders/9" in other.stderr
            assert f"is broker {replica['brokerId']} again" in run.ok("replica", "adopt", name)
            run.until(lambda: ready(run), "the adopted store catches up")
        assert "there is nothing to adopt" in run.ok("controllers", "adopt")
        run.ok("down")
        for ordinal in range(3):
            (folder,) = (volumes / f"orders-controller-{ordinal}").rglob("dledger-*")
            shutil.rmtree(folder)
        with starting(run):
            run.until(
                lambda: "would be the master" in run.here("controllers", "adopt", "--dry-run").stdout,
                "all brokers respond",
            )
            assert "is the master of epoch" in run.ok("controllers", "adopt")
            run.until(lambda: ready(run), "the group is rebuilt")
        run.receive(["one", "two"], "readers")
    finally:
        run.here("down")
