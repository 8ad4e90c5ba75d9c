"""The matrix of releases in docs/rocketmq.md has a cell for each role, mode and release that is tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.conftest import CLUSTERS
from tests.interop.java_env import RELEASES
from tests.support.release_matrix import MODES, counted, recorded_lines
from tools.release_matrix import ROOT, kept_counts


def test_every_kind_of_cluster_has_a_mode() -> None:
    assert set(MODES) == set(CLUSTERS)


@pytest.mark.soak  # it collects all tests twice
@pytest.mark.timeout(1800)
def test_the_matrix_has_the_cells_of_the_tests_that_pytest_collects(tmp_path: Path) -> None:
    files = []
    for release in RELEASES:
        files.append(tmp_path / release.version)
        environment = {**os.environ, "EPOCHMQ_MATRIX": str(files[-1]), "EPOCHMQ_ROCKETMQ": release.version}
        environment.pop("EPOCHMQ_INTEROP_ORACLE", None)
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist", "tests/interop"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=900)
    collected, kept = counted(recorded_lines(files)), kept_counts()
    assert kept.keys() == collected.keys(), "run tools.release_matrix again (docs/develop/testing.md)"
