"""`epochmq support-bundle`, as people type it, for a run with access control and sidecars."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.integration.up_run import GroupRun
from tests.support.cluster import NEVER_BUSY
from tests.support.signing import CHECKED, ROOT

pytestmark = pytest.mark.timeout(300)

CONFIG = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in {**NEVER_BUSY, **CHECKED}.items())
GUARDED_GROUP = f"""\
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata: {{name: orders}}
spec:
  replicas: 1
  brokerName: orders-a
  config:
    mappedFileSizeCommitLog: 33554432
{CONFIG}
"""


def test_a_bundle_of_a_run_has_its_state_and_none_of_its_secrets(tmp_path: Path) -> None:
    run = GroupRun(tmp_path)
    run.file.write_text(GUARDED_GROUP)
    file = tmp_path / "help.tar.gz"
    try:
        started = run.try_up("--admin")
        assert started.returncode == 0, started.stderr
        secrets = [(run.state / name).read_text().strip() for name in ("member-secret", "admin-token")]
        run.ok("support-bundle", str(file))
    finally:
        print(run.logs())  # shown when the test failed
        run.here("down")
    with tarfile.open(file) as archive:
        members = [one for one in archive.getmembers() if one.isfile()]
        texts: dict[str, str] = {}
        for one in members:
            content = archive.extractfile(one)
            assert content is not None
            texts[one.name] = content.read().decode()
    for secret in (*secrets, ROOT[1], "inner-secret"):
        assert not [name for name, text in texts.items() if secret in text]
    names = {name.partition("/")[2] for name in texts}
    assert {"versions.json", "status.json", "resources.json", "pods.json"} <= names
    assert {"logs/orders-broker-0.log", "metrics/orders-broker-0.txt"} <= names
    assert "broker" in texts["help/metrics/orders-broker-0.txt"]
    assert json.loads(texts["help/status.json"])["brokerGroups"][0]["name"] == "orders"
