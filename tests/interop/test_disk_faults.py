"""Disks that fail, fill up and slow down, and descriptors that run out, at a master, a replica and the
leading controller, under RocketMQ's producer and consumers: no acknowledged message is lost, and all replicas
are in sync again. `python -m tests.integration.disks` measures the same for docs/results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.disks import faulty_volume
from tests.integration.disks.disk_faults import FAULTS, ROLES, SETTINGS, FaultRounds
from tests.integration.disks.group import FaultyGroup

HOLD_S = 1.0

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[FaultyGroup]:
    if (lacks := faulty_volume.missing()) is not None:
        pytest.skip(f"missing: {lacks}")
    with FaultyGroup(tmp_path, SETTINGS) as made:
        yield made


def test_no_disk_fault_of_any_member_loses_an_acknowledged_message(group: FaultyGroup) -> None:
    rounds = FaultRounds(group)
    for fault in FAULTS:
        for role in ROLES:
            found = rounds.run(role, fault, hold_s=HOLD_S)
            print(found)
            assert (found.lost, found.divergent) == (0, []), found
            assert found.felt, found
    rounds.finish()
