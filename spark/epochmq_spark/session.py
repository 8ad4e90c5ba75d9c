"""Creates the Spark sessions of the audit: on this machine, and on a Kubernetes cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_MEMORY = "1g"


def local_session(cores: int | None = None, *, memory: str = DRIVER_MEMORY) -> SparkSession:
    """A session on `cores` cores of this machine (default: all), which listens on 127.0.0.1 only."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    count = cores or os.cpu_count() or 1
    builder = SparkSession.builder.master(f"local[{count}]").appName("epochmq audit")
    for key, value in _spark_config(count, memory).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def cluster_session(config: Mapping[str, str], address: str) -> SparkSession:
    """A session whose executors are pods. `config` is the Spark configuration that the operator chose,
    `address` the address of this pod, at which executors reach the driver."""
    from pyspark.sql import SparkSession

    # With a bind address of 0.0.0.0, executors would try to connect to 0.0.0.0.
    merged = _spark_config(2, DRIVER_MEMORY) | {
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,
    }
    merged["spark.task.maxFailures"] = "4"  # an executor may be lost together with its node
    builder = SparkSession.builder.master("k8s://https://kubernetes.default.svc").appName("epochmq audit")
    for key, value in (merged | dict(config)).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def _spark_config(cores: int, memory: str) -> dict[str, str]:
    return {
        "spark.driver.memory": memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(max(2, 2 * cores)),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        # A missing or damaged file is a finding. A task that fails for another reason fails again.
        "spark.task.maxFailures": "1",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:-UsePerfData -XX:TieredStopAtLevel=1",
    }
