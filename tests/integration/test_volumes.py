"""The volume of one process of a replica group is exchanged, emptied, copied back or damaged under producers:
no acknowledged message is lost, and every refusal names a remedy that works. `EPOCHMQ_VOLUMES_SEED` repeats
what was drawn, not the timing of the machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.integration.volumes.faults import BIT, CLONE, CONSUME_QUEUES, CONTROLLER, EMPTY, OLDER
from tests.integration.volumes.modes import ControlledVolumes, DLedgerVolumes, VolumeGroup
from tests.integration.volumes.rounds import VolumeRounds
from tests.integration.volumes.traffic import ThreadTraffic


def rounds_of(group: VolumeGroup, kinds: list[str]) -> None:
    """Runs rounds of these kinds."""
    seed = int(os.environ.get("EPOCHMQ_VOLUMES_SEED") or time.time())
    print(f"seed {seed}")
    with VolumeRounds(group, lambda made: ThreadTraffic(made, seed), seed) as rounds:
        rounds.run(kinds)
    assert [str(one) for one in rounds.rounds if not one.passed] == []
    assert len(rounds.rounds) == len(kinds)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param([OLDER, EMPTY, CLONE], id="exchanged volumes"),
        pytest.param([BIT + "the log", BIT + "the epoch file", BIT + "the checkpoint"], id="flipped bits"),
        pytest.param([BIT + CONSUME_QUEUES], id="a flipped bit of a consume queue"),
        pytest.param([CONTROLLER + EMPTY, CONTROLLER + BIT + "the entries"], id="volumes of controllers"),
    ],
)
def test_nothing_acknowledged_is_lost_and_each_remedy_works(tmp_path: Path, kinds: list[str]) -> None:
    rounds_of(ControlledVolumes(tmp_path), kinds)


@pytest.mark.timeout(900)
def test_a_rotten_entry_of_a_dledger_log_is_repaired_or_named(tmp_path: Path) -> None:
    rounds_of(DLedgerVolumes(tmp_path), [BIT + "the entries"] * 3)
