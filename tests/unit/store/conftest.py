"""Replaces fsync by a no-op in the tests of the store, except in those with the mark `fsync`."""

from __future__ import annotations

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Declares the mark of tests that need the real fsync."""
    config.addinivalue_line("markers", "fsync: the test waits for the disk")


@pytest.fixture(autouse=True)
def _no_fsync(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "fsync" not in request.keywords:
        monkeypatch.setattr(os, "fsync", lambda fd: None)
        monkeypatch.setattr(os, "fdatasync", lambda fd: None)
