"""Provides one Spark session for all tests of the audit; skips them where Spark or Java is missing."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.interop.java_env import JavaMissingError, java_library

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test that needs RocketMQ's jars if they are missing, with the reason."""
    if item.get_closest_marker("java") is not None:
        try:
            java_library()
        except JavaMissingError as missing:
            pytest.skip(str(missing))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores of this machine."""
    pytest.importorskip("pyspark", reason="missing: PySpark (make install-spark)")
    if shutil.which("java") is None:
        pytest.skip("missing: `java` 17 or newer")
    from epochmq_spark.session import local_session

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        session = local_session(2)
        yield session
        session.stop()
