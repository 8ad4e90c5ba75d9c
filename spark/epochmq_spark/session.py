"""A Spark session of this machine, for `epochmq audit`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_MEMORY = "1g"


def local_session(cores: int | None = None, *, memory: str = DRIVER_MEMORY) -> SparkSession:
    """A session on `cores` cores (all of them when not given), talking to nobody but this machine."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    count = cores or os.cpu_count() or 1
    builder = SparkSession.builder.master(f"local[{count}]").appName("epochmq audit")
    for key, value in _settings(count, memory).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def cluster_session(settings: Mapping[str, str], address: str) -> SparkSession:
    """A session whose executors are pods. `settings` are Spark's own, what the operator chose; `address` is
    this pod's, where executors find the driver."""
    from pyspark.sql import SparkSession

    # At 0.0.0.0 executors would be told to connect there.
    chosen = _settings(2, DRIVER_MEMORY) | {"spark.driver.host": address, "spark.driver.bindAddress": address}
    chosen["spark.task.maxFailures"] = "4"  # an executor may go with its node
    builder = SparkSession.builder.master("k8s://https://kubernetes.default.svc").appName("epochmq audit")
    for key, value in (chosen | dict(settings)).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def _settings(cores: int, memory: str) -> dict[str, str]:
    return {
        "spark.driver.memory": memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(max(2, 2 * cores)),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        # A missing or damaged file is a finding; a task that fails again fails for another reason.
        "spark.task.maxFailures": "1",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:-UsePerfData -XX:TieredStopAtLevel=1",
    }
