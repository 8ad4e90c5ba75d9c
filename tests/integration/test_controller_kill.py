"""No kill -9 of any controller loses what a controller has acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.controller_rounds import ControllerRounds


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.soak)])
def test_nothing_acknowledged_is_lost(tmp_path: Path, rounds: int) -> None:
    """Leader, follower or all three at once, at random moments, again and again."""
    run = ControllerRounds(tmp_path, seed=rounds)
    run.start()
    try:
        for number in range(1, rounds + 1):
            run.round(number)
    except BaseException as error:
        error.add_note(run.group.logs(1500))
        raise
    finally:
        run.stop()
    assert run.acknowledged > 2 * rounds
