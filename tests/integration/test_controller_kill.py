"""Kill -9 of any controller loses nothing that a controller has acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.controller_rounds import ControllerRounds
from tests.support.cluster import Settings
from tests.support.process import wait_until

PLAIN: Settings = {}
COMPACTING: Settings = {"controllerSnapshotEntries": 20, "mappedFileSize": 4096}


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("rounds", "settings"),
    [
        (12, PLAIN),
        pytest.param(8, COMPACTING, marks=pytest.mark.soak),
        pytest.param(200, PLAIN, marks=pytest.mark.soak),
        pytest.param(100, COMPACTING, marks=pytest.mark.soak),
    ],
)
def test_nothing_acknowledged_is_lost(tmp_path: Path, rounds: int, settings: Settings) -> None:
    """Kills the leader, a follower or all three at random moments, again and again: with a whole log, and
    with one that loses its beginning to snapshots."""
    run = ControllerRounds(tmp_path, rounds, settings)
    try:
        run.start()
        for number in range(1, rounds + 1):
            run.round(number)
        if settings is COMPACTING:

            def dropped() -> bool:
                run.work(0.1)
                return not any(has_beginning(tmp_path))

            wait_until(dropped, what="all have removed the beginnings of their logs")
    except BaseException as error:
        error.add_note(run.group.logs(1500))
        raise
    finally:
        run.stop()
    assert run.acknowledged > 2 * rounds
    assert has_beginning(tmp_path) == [settings is PLAIN] * 3


def has_beginning(folder: Path) -> list[bool]:
    """Whether each controller's log still has its first file."""
    paths = [path / "data" / f"{0:020d}" for path in folder.glob("controller-*/store/dledger-*")]
    return [path.exists() for path in paths]
