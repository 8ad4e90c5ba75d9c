"""Tests the audit of groups in use: it finds nothing while they run through failovers and truncations."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark.findings import sentence
from tests.spark.running_groups import running_group
from tests.unit.spark import inprocess

pytestmark = pytest.mark.filterwarnings("ignore")


def audit_repeatedly(root: Path, seed: int, count: int) -> None:
    """Audits a running group `count` times; each audit must find nothing."""
    with running_group(root, seed) as background:
        for number in range(count):
            replicas = background.replicas("group-a")
            found = inprocess.without_notes(inprocess.run(replicas))
            assert [sentence(row) for row in found] == [], f"{seed}, {number}: {background.group.last_cut!r}"
            background.readers.stop()
        background.wait(lambda: background.group.switches and background.group.truncations)


def test_a_group_in_use_has_no_findings(tmp_path: Path) -> None:
    audit_repeatedly(tmp_path, 1, 3)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(25))
def test_groups_in_use_have_no_findings(seed: int, tmp_path: Path) -> None:
    audit_repeatedly(tmp_path, seed, 8)
