"""A replica group under RocketMQ's producer and consumers while processes die and hang, links drop packets
one way or both, and disks are slow or full; see `tests/integration/chaos`. A second group has clients of
every kind (transactions, timers, POP, ordered POP, delay levels, retries), and loses its power besides. Two
groups without controllers, whose slaves act for their masters, have the same clients. The seed of a round is
printed. EPOCHMQ_CHAOS_SEED repeats what was drawn, not the timing of the machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.integration.chaos import disks, network
from tests.integration.chaos.acting import ActingRounds
from tests.integration.chaos.mixed import MixedRounds
from tests.integration.chaos.rounds import ChaosRounds
from tests.integration.disks import images

ROUND_S = 30
ACTING_ROUND_S = 10
"""The essential faults take longer; with what is due later, about a minute in all."""
SOAK_S = 1200

pytestmark = pytest.mark.java


@pytest.fixture(autouse=True)
def _needs_a_machine_of_its_own() -> None:
    lacks = network.missing() or disks.missing()
    if lacks is not None:
        pytest.skip(f"missing: {lacks}")


@pytest.fixture
def _needs_file_systems() -> None:
    if (lacks := images.missing()) is not None:
        pytest.skip(f"missing: {lacks}")


def seed_of_round() -> int:
    """The seed of the environment, or a new one."""
    seed = int(os.environ.get("EPOCHMQ_CHAOS_SEED") or time.time())
    print(f"seed {seed}")
    return seed


def mixed_rounds_of(folder: Path, seconds: float) -> None:
    """Runs a round with messages of every kind."""
    with MixedRounds(folder, seed_of_round()) as rounds:
        rounds.run(seconds)
        print(rounds.history())


def rounds_of(folder: Path, seconds: float) -> None:
    """Runs a round of `seconds` with a new seed."""
    with ChaosRounds(folder, seed_of_round()) as rounds:
        rounds.run(seconds)
        print(rounds.history())


@pytest.mark.timeout(900)
def test_half_a_minute_of_every_fault_under_rocketmqs_clients(tmp_path: Path) -> None:
    rounds_of(tmp_path, ROUND_S)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 1500)
def test_twenty_minutes_of_every_fault_under_rocketmqs_clients(tmp_path: Path) -> None:
    rounds_of(tmp_path, SOAK_S)


@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("_needs_file_systems")
def test_half_a_minute_of_faults_and_power_cuts_under_messages_of_every_kind(tmp_path: Path) -> None:
    mixed_rounds_of(tmp_path, ROUND_S)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 1800)
@pytest.mark.usefixtures("_needs_file_systems")
def test_twenty_minutes_of_faults_and_power_cuts_under_messages_of_every_kind(tmp_path: Path) -> None:
    mixed_rounds_of(tmp_path, SOAK_S)


def acting_rounds_of(folder: Path, seconds: float) -> None:
    """Runs a round over two groups whose slaves act for their masters."""
    with ActingRounds(folder, seed_of_round()) as rounds:
        rounds.run(seconds)
        print(rounds.history())


@pytest.mark.timeout(900)
def test_a_minute_of_faults_in_two_groups_with_acting_masters(tmp_path: Path) -> None:
    acting_rounds_of(tmp_path, ACTING_ROUND_S)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 1800)
def test_twenty_minutes_of_faults_in_two_groups_with_acting_masters(tmp_path: Path) -> None:
    acting_rounds_of(tmp_path, SOAK_S)
