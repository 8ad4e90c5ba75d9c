"""What the tests of the audit's parts share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Group = Callable[[int], list[Path]]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Group:
    """The healthy group of a seed, made once."""
    from tests.spark import seeded_groups  # needs what the tests skip without

    root = tmp_path_factory.mktemp("healthy")
    made: dict[int, list[Path]] = {}

    def of(seed: int) -> list[Path]:
        if seed not in made:
            made[seed] = seeded_groups.healthy(root / f"group-{seed}", seed)
        return made[seed]

    return of
