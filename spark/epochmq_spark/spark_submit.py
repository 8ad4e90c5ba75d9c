"""The audit as a program for `spark-submit`, and for a SparkApplication of the Spark operator:

    spark-submit --master yarn examples/audit_with_spark_submit.py \\
        --out hdfs://namenode/audits/monday a=hdfs://namenode/copies/a b=hdfs://namenode/copies/b

The session is the one of `spark-submit`. The exit code is that of `epochmq audit`, with `--verdict-only` 0
whatever the verdict: then a cluster manager does not count a damaged group as a failed application."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from epochmq_spark import coverage, local_audit, session
from epochmq_spark.findings import sentence

EXIT_FAILED, EXIT_USAGE = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Audits the replicas that the arguments name; returns the exit code."""
    parser = argparse.ArgumentParser(prog="epochmq audit", description="Audits the replicas of a group.")
    parser.add_argument("replicas", nargs="+", metavar="[NAME=]LOCATION", help="the store of a replica")
    parser.add_argument("--out", required=True, metavar="LOCATION", help="a folder for the results")
    parser.add_argument("--group", metavar="NAME", help="the name of the group")
    parser.add_argument("--metadata", type=Path, metavar="FILE", help="output of `epochmq status -o json`")
    parser.add_argument("--verdict-only", action="store_true", help="exit with 0 whatever the verdict")
    chosen = parser.parse_args(arguments)
    try:
        metadata = json.loads(chosen.metadata.read_text(encoding="utf-8")) if chosen.metadata else None
    except (OSError, ValueError) as error:
        return _failed(f"--metadata {chosen.metadata}: {error}", EXIT_USAGE)
    replicas = local_audit.replicas_of(chosen.replicas, chosen.group)
    spark = session.user_session()
    expected: tuple[type[Exception], ...] = (OSError, ValueError, *session.spark_errors())
    try:
        summary, findings = local_audit.run_in(
            spark, replicas, chosen.out, metadata=metadata, progress=_progress
        )
    except expected as error:
        return _failed(session.describe_error(error), EXIT_FAILED)
    finally:
        spark.stop()
    for row in findings:
        print(sentence(row))
    print(coverage.sentence(summary["coverage"]))
    print(f"{summary['verdict']}: {sum(summary['findingCounts'].values())} findings; results: {chosen.out}")
    return 0 if chosen.verdict_only else int(summary["exitCode"])


def _failed(text: str, code: int) -> int:
    print(f"audit: {text}", file=sys.stderr)
    return code


def _progress(text: str) -> None:
    print(f"audit: {text} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
