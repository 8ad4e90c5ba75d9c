"""Writes the files of an audit: findings, summary and report. To a folder of this machine they are written by
the driver, to a URI through Spark's Hadoop file systems (`hdfs://`, `s3a://`, `gs://` …)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochmq_spark import schemas
from epochmq_spark.results import FINDINGS_FILE, REPORT_FILE, SUMMARY_FILE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 10_000
FAILED_EXIT_CODE = 1
"""The exit code of `epochmq audit` when the audit itself fails."""


def is_uri(folder: str) -> bool:
    """Whether a folder is a URI, and not a path of this machine."""
    return "://" in folder


class ResultsNotWrittenError(OSError):
    """The results of an audit could not be written. The message names the file and the reason."""

    def __init__(self, location: object, reason: object) -> None:
        super().__init__(f"{location} could not be written: {reason}; choose another folder with --out")


def remove_results(spark: SparkSession, folder: str) -> None:
    """Removes the results of an earlier audit, so that nobody takes its verdict for that of a run that fails.
    Raises ResultsNotWrittenError."""
    for name in (SUMMARY_FILE, REPORT_FILE, FINDINGS_FILE):
        if is_uri(folder):
            _remove_uri(spark, f"{folder.rstrip('/')}/{name}")
            continue
        path = Path(folder) / name
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ResultsNotWrittenError(path, error.strerror) from None


def write_failure(spark: SparkSession, folder: str, reason: str) -> None:
    """Writes the summary of an audit that could not be finished: it has no verdict, but the reason. Raises
    ResultsNotWrittenError."""
    summary = {"verdict": None, "exitCode": FAILED_EXIT_CODE, "failure": reason}
    _write(spark, folder, SUMMARY_FILE, json.dumps(summary, indent=2) + "\n")


def write_findings(findings: DataFrame, folder: str) -> None:
    """Writes the table of findings. For a path of this machine the driver fetches the rows part by part: on a
    cluster, executors would write to their own disks. Raises ResultsNotWrittenError."""
    if is_uri(folder):
        findings.coalesce(1).write.mode("overwrite").parquet(f"{folder.rstrip('/')}/{FINDINGS_FILE}")
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = Path(folder) / FINDINGS_FILE
    rows: list[dict[str, Any]] = []
    try:
        with pq.ParquetWriter(target, schemas.FINDINGS) as writer:
            for row in findings.toLocalIterator(prefetchPartitions=True):
                rows.append(row.asDict())
                if len(rows) == BATCH_ROWS:
                    writer.write_table(pa.Table.from_pylist(rows, schema=schemas.FINDINGS))
                    rows = []
            writer.write_table(pa.Table.from_pylist(rows, schema=schemas.FINDINGS))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise ResultsNotWrittenError(target, reason) from None


def write_summary(
    spark: SparkSession, summary: Mapping[str, Any], folder: str, listed: Sequence[Mapping[str, Any]]
) -> None:
    """Writes the JSON summary, and the report with the findings `listed`. Raises
    ResultsNotWrittenError."""
    from epochmq_spark.report import page

    _write(spark, folder, SUMMARY_FILE, json.dumps(summary, indent=2) + "\n")
    _write(spark, folder, REPORT_FILE, page.render(summary, listed))


def _remove_uri(spark: SparkSession, location: str) -> None:
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(location)
    try:
        path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).delete(path, True)
    except Py4JJavaError as error:
        raise ResultsNotWrittenError(location, error.java_exception.getMessage()) from None


def _write(spark: SparkSession, folder: str, name: str, text: str) -> None:
    if not is_uri(folder):
        try:
            (Path(folder) / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise ResultsNotWrittenError(Path(folder) / name, error.strerror) from None
        return
    from py4j.protocol import Py4JJavaError

    jvm: Any = spark.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(f"{folder.rstrip('/')}/{name}")
    try:
        stream = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).create(path, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
    except Py4JJavaError as error:
        raise ResultsNotWrittenError(path.toString(), error.java_exception.getMessage()) from None
