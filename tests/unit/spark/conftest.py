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

    root = tmp_path_factory.mktemp("healthy")
    made: dict[int, list[Path]] = {}

    def of(seed: int) -> list[Path]:
        if seed not in made:
            made[seed] = seeded_groups.create_healthy_group(root / f"group-{seed}", seed)
        return made[seed]

    return of
