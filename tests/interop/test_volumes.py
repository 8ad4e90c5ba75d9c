"""Volumes fail under RocketMQ's producer (`tests/integration/volumes`). The seed of a run is printed;
EPOCHMQ_VOLUMES_SEED repeats what was drawn, not the timing of the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.volumes.modes import (
    ActingVolumes,
    ControlledVolumes,
    DLedgerVolumes,
    VolumeGroup,
)
from tests.integration.volumes.rounds import VolumeRounds
from tests.integration.volumes.traffic import JavaTraffic

ROUNDS = 50
LONG_TIMEOUT_S = 7200

pytestmark = pytest.mark.java


@pytest.mark.soak
@pytest.mark.timeout(LONG_TIMEOUT_S)
@pytest.mark.parametrize("make", [ControlledVolumes, DLedgerVolumes, ActingVolumes])
def test_fifty_rounds_of_drawn_volume_faults_under_a_java_producer(
    tmp_path: Path, make: Callable[[Path], VolumeGroup]
) -> None:
    seed = int(os.environ.get("EPOCHMQ_VOLUMES_SEED") or time.time())
    print(f"seed {seed}")
    with VolumeRounds(make(tmp_path), JavaTraffic, seed) as rounds:
        rounds.run(rounds.draw(ROUNDS))
    assert [str(one) for one in rounds.rounds if not one.passed] == []
    assert len(rounds.rounds) == ROUNDS
