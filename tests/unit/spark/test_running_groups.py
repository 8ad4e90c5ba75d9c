"""Groups that are audited while they are in use, through failovers and truncations: nothing is found."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark.findings import sentence
from tests.spark.running_groups import running_group
from tests.unit.spark import inprocess

pytestmark = pytest.mark.filterwarnings("ignore")


def audited(root: Path, seed: int, count: int) -> None:
    """So many histories of a group that lives on."""
    with running_group(root, seed) as life:
        for number in range(count):
            replicas = life.replicas("group-a")
            found = inprocess.serious(inprocess.run(replicas))
            assert [sentence(row) for row in found] == [], f"{seed}, {number}: {life.story.last!r}"
            life.readers.release()
        life.wait(lambda: life.story.switches and life.story.truncations)


def test_a_group_in_use_has_no_findings(tmp_path: Path) -> None:
    audited(tmp_path, 1, 3)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(25))
def test_histories_of_groups_in_use_have_no_findings(seed: int, tmp_path: Path) -> None:
    audited(tmp_path, seed, 8)
