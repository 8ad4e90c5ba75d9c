"""A replica group of real processes under faults; see `replica_rounds`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.replica_rounds import ReplicaRounds

ROUND_S = 20
SOAK_S = 1200


def test_faults_lose_nothing_and_never_make_two_masters(tmp_path: Path) -> None:
    with ReplicaRounds(tmp_path, seed=int(time.time())) as rounds:
        rounds.run(ROUND_S)
        print(rounds.history())


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 600)
def test_twenty_minutes_of_faults(tmp_path: Path) -> None:
    with ReplicaRounds(tmp_path, seed=int(time.time())) as rounds:
        rounds.run(SOAK_S)
        print(rounds.history())
