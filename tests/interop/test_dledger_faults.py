"""Three brokers with a DLedger log under RocketMQ's producer and consumers: processes die and hang, links
drop packets, disks are slow or full (`tests/integration/chaos/dledger.py`), and all brokers lose their power
at one moment (`tests/integration/disks`). No acknowledged message is lost, the logs stay equal, and the audit
finds nothing. The seed is printed; EPOCHMQ_CHAOS_SEED and EPOCHMQ_CUTS_SEED repeat what was drawn, not the
timing of the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.chaos import disks, network
from tests.integration.chaos.dledger import DLedgerRounds
from tests.integration.disks import audits, images
from tests.integration.disks.group import DLedgerImageGroup
from tests.integration.disks.power_cuts import ALL, AT_END, EACH, NEVER, PowerCutRounds

ROUND_S, SOAK_S = 30, 1200
CUTS, SOAK_CUTS = 5, 50

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore")]  # the audit's libraries warn


@pytest.fixture(scope="module", autouse=True)
def _ends_the_audits_session() -> Iterator[None]:
    yield
    if audits.missing() is None:
        audits.end_session()


def seed_of(variable: str) -> int:
    """The seed of the environment, or a new one."""
    seed = int(os.environ.get(variable) or time.time())
    print(f"seed {seed}")
    return seed


def chaos(folder: Path, seconds: float, *, spark: bool) -> None:
    """Runs a round of faults of this length, and audits what it has left, with Spark or without."""
    if (lacks := network.missing() or disks.missing()) is not None:
        pytest.skip(f"missing: {lacks}")
    with DLedgerRounds(folder, seed_of("EPOCHMQ_CHAOS_SEED")) as rounds:
        rounds.run(seconds)
        print(rounds.history())
    if (lacks := audits.missing()) is not None:
        print(f"no audit; missing: {lacks}")
        return
    assert audits.audit(rounds.stores, folder / "audit", spark=spark) == []


@pytest.mark.timeout(900)
def test_half_a_minute_of_every_fault(tmp_path: Path) -> None:
    chaos(tmp_path, ROUND_S, spark=False)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_S + 1800)
def test_twenty_minutes_of_every_fault(tmp_path: Path) -> None:
    chaos(tmp_path, SOAK_S, spark=True)


def cut(folder: Path, rounds: int, audit: str, *, spark: bool) -> None:
    """Cuts the power of all brokers so often; they flush before they acknowledge. The audit runs in Spark or
    without."""
    if (lacks := images.missing()) is not None:
        pytest.skip(f"missing: {lacks}")
    if (lacks := audits.missing()) is not None:
        print(f"no audit; missing: {lacks}")
        audit = NEVER
    seed = seed_of("EPOCHMQ_CUTS_SEED")
    found = PowerCutRounds(folder, ALL, seed, audit=audit, spark=spark, make_group=DLedgerImageGroup)
    found.run(rounds)
    assert [str(cut) for cut in found.cuts if not cut.passed] == []
    assert len(found.cuts) == rounds


@pytest.mark.timeout(900)
def test_acknowledged_messages_survive_power_cuts_of_all_brokers(tmp_path: Path) -> None:
    cut(tmp_path, CUTS, AT_END, spark=False)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_fifty_power_cuts_of_all_brokers(tmp_path: Path) -> None:
    cut(tmp_path, SOAK_CUTS, EACH, spark=True)
