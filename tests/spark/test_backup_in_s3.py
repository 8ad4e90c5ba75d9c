"""Backups in an S3 bucket: written, verified, pruned and restored; a restored group passes the audit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="missing: Arrow (make install-spark)")

from epochmq_store.backups import backup_plan, catalog, restoring, taking
from epochmq_store.backups.backup_errors import BackupError
from epochmq_store.backups.manifest import BackedUpGroup
from epochmq_store.backups.storage_url import open_storage
from epochmq_store.backups.taking import BackupCut
from tests.integration.up_run import GroupRun
from tests.spark import s3_server
from tests.spark.s3_server import BUCKET, S3MissingError, S3Server
from tests.unit.store.backups.log_bytes import log, write_store

GROUP = BackedUpGroup("orders-a", "DefaultCluster", "Controller")
MESSAGES = [(1000 + number, b"message %d" % number + b"." * 150) for number in range(60)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    try:
        with s3_server.running(tmp_path_factory.mktemp("s3")) as running:
            yield running
    except S3MissingError as error:
        pytest.skip(str(error))


@pytest.mark.soak
def test_backups_in_a_bucket_are_incremental_and_come_back(server: S3Server, tmp_path: Path) -> None:
    store, storage = tmp_path / "store", open_storage(server.location("incremental"))
    found = []
    for count in (20, 40, 60):
        write_store(store, log(MESSAGES[:count]), config={"topics.json": b"%d" % count})
        cut = BackupCut(GROUP, "orders-broker-0", store, store, None)
        found.append(taking.take(storage, store, lambda cut=cut: cut, product="1"))  # type: ignore[misc] # the cut of this round
    assert [one.parent for one in found] == [None, found[0].id, found[1].id]
    assert found[2].uploaded_bytes == len(log(MESSAGES)) - len(log(MESSAGES[:40])) + 2
    catalog.delete(storage, backup_plan.expired(catalog.existing(storage), 1))
    assert catalog.ids(storage) == [found[2].id]
    assert catalog.verify(storage, [found[2]], lambda text: None).faults == ()
    restoring.restore(storage, [tmp_path / "restored"])
    files = sorted((tmp_path / "restored" / "commitlog").iterdir())
    assert b"".join(path.read_bytes() for path in files).rstrip(b"\0") == log(MESSAGES)
    server.replace(f"incremental/{found[2].pieces[0].key}", b"other bytes")
    with pytest.raises(BackupError, match="the manifest says"):
        restoring.restore(storage, [tmp_path / "broken"])
    assert not (tmp_path / "broken").exists()


def test_a_bucket_that_does_not_exist_is_named_without_credentials(server: S3Server, tmp_path: Path) -> None:
    url = server.location("x").replace(f"@{BUCKET}/", "@no-such-bucket/")
    write_store(tmp_path / "store", log(MESSAGES))
    cut = BackupCut(GROUP, "orders-broker-0", tmp_path / "store", tmp_path / "store", None)
    with pytest.raises(BackupError, match="no-such-bucket/x: cannot") as error:
        taking.take(open_storage(url), tmp_path / "store", lambda: cut, product="1")
    assert "secret" not in str(error.value)


def test_the_program_of_a_pod_takes_its_credentials_from_the_environment(
    server: S3Server, tmp_path: Path
) -> None:
    """As the keys of a Secret; the URL of a resource has none."""
    url, cut, message = server.location("pod"), tmp_path / "cut", tmp_path / "message"
    write_store(tmp_path / "store", log(MESSAGES))
    cut.write_text(str(len(log(MESSAGES[:20]))))
    words = {
        "--url": url.replace("key:secret@", ""),
        "--store": tmp_path / "store",
        "--broker-name": "orders-a",
        "--cluster": "DefaultCluster",
        "--mode": "Controller",
        "--replica": "orders-broker-0",
        "--order": "uid/1",
        "--ready": tmp_path / "ready",
        "--cut": cut,
        "--message": message,
    }
    command = [sys.executable, "-m", "epochmq_store.backups.pod_program"]
    command += [str(word) for pair in words.items() for word in pair]
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    done = subprocess.run(
        command, env={**os.environ, **keys}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    (taken,) = catalog.manifests(open_storage(url))
    assert json.loads(message.read_text())["id"] == taken.id
    assert (taken.order, taken.log_end) == ("uid/1", len(log(MESSAGES[:20])))


@pytest.mark.soak  # six processes, twice, and a start of Spark
@pytest.mark.timeout(2700)
@pytest.mark.skipif(shutil.which("java") is None, reason="missing: `java` 17 or newer")
def test_a_group_restored_from_a_bucket_passes_the_audit(server: S3Server, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
    run, url = GroupRun(tmp_path), server.location("audited")
    try:
        run.up()
        bodies = [f"message {number}" for number in range(500)]
        run.ok("produce", "orders", stdin="\n".join(bodies) + "\n")
        run.ok("backup", "orders", "--to", url)
        run.ok("down")
        shutil.rmtree(run.state)
        stores = [run.state / "volumes" / f"orders-broker-{ordinal}" / "store" for ordinal in range(3)]
        done = run.call("restore", url, *(word for store in stores for word in ("--to", str(store))))
        assert done.returncode == 0, done.stderr
        run.up()
        run.until(run.whole, "every replica is in the SyncStateSet")
        assert run.bodies("readers", len(bodies)) == sorted(bodies)
        audited = run.here("audit", "orders", "-o", "json", "--cores", "2")
        summary = json.loads(audited.stdout)
        assert audited.returncode == 0, summary
        assert summary["coverage"]["replicasCompared"] == 3
    finally:
        run.here("down")
