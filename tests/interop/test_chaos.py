"""A replica group under RocketMQ's producer and consumers while processes die and hang, links drop packets
one way or both, and disks are slow or full; see `tests/integration/chaos`. The seed of a round is printed.
EPOCHMQ_CHAOS_SEED repeats what was drawn, not the timing of the machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.integration.chaos import disks, network
from tests.integration.chaos.rounds import ChaosRounds

ROUND_S = 45
SOAK_S = 1200

pytestmark = pytest.mark.java


@pytest.fixture(autouse=True)
def _needs_a_machine_of_its_own() -> None:
    lacks = network.missing() or disks.missing()
    if lacks is not None:
        pytest.skip(f"missing: {lacks}")


def rounds_of(folder: Path, seconds: float) -> None:
    """Runs a round of `seconds` with a new seed."""
    seed = int(os.environ.get("EPOCHMQ_CHAOS_SEED") or time.time())
    print(f"seed {seed}")
    with ChaosRounds(folder, seed) as rounds:
        rounds.run(seconds)
        print(rounds.history())


@pytest.mark.timeout(900)
def test_a_minute_of_every_fault_under_rocketmqs_clients(tmp_path: Path) -> None:
    rounds_of(tmp_path, ROUND_S)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 1500)
def test_twenty_minutes_of_every_fault_under_rocketmqs_clients(tmp_path: Path) -> None:
    rounds_of(tmp_path, SOAK_S)
