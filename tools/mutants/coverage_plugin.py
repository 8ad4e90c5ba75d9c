"""A pytest plugin that sets the coverage context to the running test, and writes results and durations of
tests.

Loaded by `-p tools.mutants.coverage_plugin` in the run that measures coverage; nothing else needs it."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from coverage import Coverage

RESULTS_VARIABLE = "EPOCHMQ_MUTANTS_RESULTS"
_seconds: dict[str, float] = {}
_failed: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Attributes all lines that execute during a test, on any thread, to this test."""
    measured = Coverage.current()
    assert measured is not None, "this plugin needs `coverage run`"
    measured.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        measured.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds up the durations of the phases of a test."""
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.outcome != "passed":
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Writes the results to the file that the environment variable names."""
    passed = {test: seconds for test, seconds in _seconds.items() if test not in _failed}
    Path(os.environ[RESULTS_VARIABLE]).write_text(json.dumps({"passed": passed, "failed": sorted(_failed)}))
