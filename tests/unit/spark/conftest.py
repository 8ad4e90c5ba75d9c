"""Fixtures of the audit's unit tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Group = Callable[[int], list[Path]]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Group:
    """Creates the healthy group of a seed, once."""
    from tests.spark import seeded_groups  # imports packages without which the tests are skipped

    return _created_once(tmp_path_factory.mktemp("healthy"), seeded_groups.create_healthy_group)


@pytest.fixture(scope="module")
def dledger_group(tmp_path_factory: pytest.TempPathFactory) -> Group:
    """Creates the healthy group of a seed with a DLedger log, once."""
    from tests.spark import dledger_groups

    return _created_once(tmp_path_factory.mktemp("dledger"), dledger_groups.create_healthy_group)


def _created_once(root: Path, create: Callable[[Path, int], list[Path]]) -> Group:
    made: dict[int, list[Path]] = {}

    def of(seed: int) -> list[Path]:
        if seed not in made:
            made[seed] = create(root / f"group-{seed}", seed)
        return made[seed]

    return of
