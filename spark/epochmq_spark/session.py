"""Creates the Spark sessions of the audit: on this machine, on the user's own Spark, and on a Kubernetes
cluster."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_MEMORY = "1g"
DRIVER_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-XX:TieredStopAtLevel=1",
    # Each audit compiles more generated code; when the 48 MB of the default are full, all further code is
    # interpreted.
    "-XX:ReservedCodeCacheSize=256m",
    # The heap grows with what is in use rather than with what was allocated.
    "-Xms64m",
    "-Xmn32m",
    "-XX:MinHeapFreeRatio=10",
    "-XX:MaxHeapFreeRatio=20",
)
"""Options of the driver's JVM."""
WITHOUT_UI = {
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
}
"""How much the driver keeps for its UI, which it does without a UI, too: descriptions of many queries."""
_WORKER_ERROR = "An exception was thrown from the Python worker"
_PYTHON_ERROR = re.compile(r"[\w.]*(?:Error|Exception|Exit|Interrupt)\b(?::|$)")
_MASTER = re.compile(r"local(-cluster)?(\[[\d*, ]+\])?|yarn|spark://\S+|k8s://\S+")


def audit_session(
    cores: int | None = None, *, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of `epochmq audit`: on this machine, or on the cluster that `master` names. `config` is
    Spark configuration, which overrides that of the audit."""
    if master is None or is_local(master):
        return local_session(cores, master=master, config=config)
    return user_session(master, config)


def local_session(
    cores: int | None = None,
    *,
    memory: str = DRIVER_MEMORY,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session on `cores` cores of this machine (default: all), which listens on 127.0.0.1 only."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    count = cores or os.cpu_count() or 1
    return _session(master or f"local[{count}]", _spark_config(count, memory, config or {}), "ERROR")


def user_session(master: str | None = None, config: Mapping[str, str] | None = None) -> SparkSession:
    """A session on the user's own Spark. Without a master, `spark-submit` or its configuration names it.
    Nothing of the user's configuration is changed."""
    os.environ.setdefault("PYSPARK_PYTHON", "python3" if master else sys.executable)
    return _session(master, {"spark.sql.session.timeZone": "UTC"} | dict(config or {}), "WARN")


def spark_errors() -> tuple[type[Exception], ...]:
    """The errors of Spark: of its session, of a task, and of Java."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


def describe_error(error: Exception) -> str:
    """An error in one line. Those of Spark have the stack traces of executors behind it."""
    text = str(error)
    if isinstance(error, spark_errors()) and "No space left on device" in text:
        return (
            "Spark has no space left for its own files: free some in the folder spark.local.dir (/tmp unless "
            "it is set), or name another one with --conf spark.local.dir=DIR"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if any(_WORKER_ERROR in line for line in lines[:2]):
        # The last line of the worker's traceback, before Java's, is the error itself.
        causes = [line for line in lines if _PYTHON_ERROR.match(line) and _WORKER_ERROR not in line]
        if causes:
            return f"a task failed: {causes[0]}"
    return lines[0] if lines else type(error).__name__


def is_local(master: str) -> bool:
    """Whether a master URL means this machine."""
    return master.startswith("local")


def check_master(master: str | None) -> None:
    """Raises ValueError for what is no master URL of Spark."""
    if master is not None and not _MASTER.fullmatch(master):
        raise ValueError(
            f"--master {master}: expected local[N], yarn, spark://HOST:PORT or k8s://https://HOST:PORT"
        )


def parse_config(texts: Sequence[str]) -> dict[str, str]:
    """Parses options `--conf KEY=VALUE`. Raises ValueError."""
    config = {}
    for text in texts:
        key, assigned, value = text.partition("=")
        if not assigned or not key.startswith("spark."):
            raise ValueError(f"--conf {text}: expected spark.KEY=VALUE")
        config[key] = value
    return config


def cluster_session(config: Mapping[str, str], address: str) -> SparkSession:
    """A session whose executors are pods. `config` is the Spark configuration that the operator chose,
    `address` the address of this pod, at which executors reach the driver."""
    # With a bind address of 0.0.0.0, executors would try to connect to 0.0.0.0.
    own = {
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,
        "spark.task.maxFailures": "4",  # an executor may be lost together with its node
    }
    merged = _spark_config(2, DRIVER_MEMORY, own | dict(config))
    return _session("k8s://https://kubernetes.default.svc", merged, "WARN")


def _session(master: str | None, config: Mapping[str, str], log_level: str) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("epochmq audit")
    if master is not None:
        builder = builder.master(master)
    for key, value in config.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    return session


def _spark_config(cores: int, memory: str, config: Mapping[str, str]) -> dict[str, str]:
    """The configuration of the audit's own sessions, with `config`, which overrides it."""
    own = {
        "spark.driver.memory": memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(max(2, 2 * cores)),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        # The driver builds the table of each broadcast join; by default, a page of it has 16 MB.
        "spark.buffer.pageSize": "1m",
        "spark.sql.broadcastExchange.maxThreadThreshold": "8",
        "spark.sql.shuffleExchange.maxThreadThreshold": "8",
        # A missing or damaged file is a finding. A task that fails for another reason fails again.
        "spark.task.maxFailures": "1",
        "spark.driver.extraJavaOptions": " ".join(DRIVER_OPTIONS),
    }
    if config.get("spark.ui.enabled") != "true":
        own |= WITHOUT_UI
    return own | dict(config)
