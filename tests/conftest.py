"""Settings for all tests."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# Helpers assert, too, and should show the values as tests do.
pytest.register_assert_rewrite("tests.support", "tests.unit", "tests.integration", "tests.interop")

# How long an example takes says something of the machine.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

REPORT_CHARACTERS = 1500
"""Of the output of one process."""


def pytest_collection_finish() -> None:
    """Leaves the objects of ten thousand tests out of all further garbage collections."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows what the processes of a failed test wrote last."""
    from tests.support.process import forget_ended, started  # its asserts are rewritten from here on

    report = yield
    if report.failed:
        for process in started():
            report.sections.append((f"{process.name} in {item.name}", process.report(REPORT_CHARACTERS)))
    if report.when == "teardown":
        forget_ended()
    return report
