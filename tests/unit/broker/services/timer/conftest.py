"""Lets brokers of these tests read a clock that does not notice a busy machine."""

from __future__ import annotations

import pytest

from tests.unit.broker.steady_clock import use_steady_clock


@pytest.fixture(autouse=True)
def _steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    use_steady_clock(monkeypatch)
