"""The broker of the tests of POP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.broker.kit import Bench
from tests.unit.broker.services.pop.support import popping


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with popping(tmp_path) as made:
        yield made
