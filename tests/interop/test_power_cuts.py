"""A group that loses its power under RocketMQ's producer loses no acknowledged message, and its replicas stay
equal. Each controller and each broker has a file system of its own, and starts again from what had reached
its device (`tests/integration/disks`). The seed of a run is printed; EPOCHMQ_CUTS_SEED repeats what was
drawn, not the timing of the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.disks import audits, images
from tests.integration.disks.power_cuts import ALL, AT_END, EACH, NEVER, ONE, PowerCutRounds

SHORT, LONG = 10, 200
LONG_TIMEOUT_S = 7200

pytestmark = [pytest.mark.java, pytest.mark.filterwarnings("ignore")]  # the audit's libraries warn


@pytest.fixture(autouse=True)
def _needs_file_systems() -> None:
    if (lacks := images.missing()) is not None:
        pytest.skip(f"missing: {lacks}")


@pytest.fixture(scope="module", autouse=True)
def _ends_the_audits_session() -> Iterator[None]:
    yield
    if audits.missing() is None:
        audits.end_session()


def cut(folder: Path, scope: str, rounds: int, audit: str, *, spark: bool) -> None:
    """Makes `rounds` power cuts with a new seed; none may lose an acknowledged message. The audit runs in
    Spark or without."""
    seed = int(os.environ.get("EPOCHMQ_CUTS_SEED") or time.time())
    print(f"seed {seed}")
    if (lacks := audits.missing()) is not None:
        print(f"no audit; missing: {lacks}")
        audit = NEVER
    found = PowerCutRounds(folder, scope, seed, audit=audit, spark=spark)
    found.run(rounds)
    assert [str(cut) for cut in found.cuts if not cut.passed] == []
    assert len(found.cuts) == rounds


@pytest.mark.timeout(900)
def test_acknowledged_messages_survive_the_power_cut_of_the_whole_group(tmp_path: Path) -> None:
    cut(tmp_path, ALL, SHORT, AT_END, spark=False)


@pytest.mark.timeout(900)
def test_acknowledged_messages_survive_the_power_cut_of_one_broker_that_has_not_flushed(
    tmp_path: Path,
) -> None:
    cut(tmp_path, ONE, SHORT, AT_END, spark=False)


@pytest.mark.soak
@pytest.mark.timeout(LONG_TIMEOUT_S)
def test_two_hundred_power_cuts_of_the_whole_group(tmp_path: Path) -> None:
    cut(tmp_path, ALL, LONG, EACH, spark=True)


@pytest.mark.soak
@pytest.mark.timeout(LONG_TIMEOUT_S)
def test_two_hundred_power_cuts_of_one_broker(tmp_path: Path) -> None:
    cut(tmp_path, ONE, LONG, EACH, spark=True)
