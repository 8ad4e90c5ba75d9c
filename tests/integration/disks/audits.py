"""Audits a group's stores: by `epochmq audit`, in a Spark session for several runs, or in this process."""

from __future__ import annotations

import importlib.util
import itertools
import shutil
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final


def missing() -> str | None:
    """The missing requirement of an audit on this machine, or None."""
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "numba")):
        return "the audit's libraries (make install-spark)"
    return None if shutil.which("java") else "`java` 17 or newer"


_AUDITOR: Final = ThreadPoolExecutor(1, thread_name_prefix="audit")
"""All audits run on one thread, one after another: Spark's session belongs to a thread."""
SESSION_AUDITS: Final = 10
"""After so many audits the session and its JVM end: the JVM keeps some 8 MB of each audit, also after the end
of the session. An audit of a user has a JVM of its own."""
_audits_in_session = itertools.count(1)


def audit(stores: Sequence[Path], folder: Path, *, spark: bool) -> list[str]:
    """Audits the replicas in these directories and returns all findings except notes. No process writes into
    the directories meanwhile. Without Spark the same code finds the same (`tests/spark`), for a few stores
    with a fraction of the CPU time."""
    return _AUDITOR.submit(_audit, stores, folder, spark=spark).result()


def _audit(stores: Sequence[Path], folder: Path, *, spark: bool) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        from epochmq_spark import local_audit
        from tests.unit.spark import inprocess

        replicas = local_audit.replicas_of([f"{s.parent.name}={s}" for s in stores])
        found = local_audit.run(replicas, folder, cores=2).findings if spark else inprocess.run(replicas)
        if spark and next(_audits_in_session) % SESSION_AUDITS == 0:
            _end_session()
    return [
        f"{row['replica']}: {row['kind']} at {row['start_offset']}: {row['detail']}"
        for row in found
        if row["severity"] != "note"
    ]


def end_session() -> None:
    """Ends the Spark session and its JVM, if there is one."""
    _AUDITOR.submit(_end_session).result()


def _end_session() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        session = SparkSession.getActiveSession()
        if session is None:
            return
        session.stop()
        gateway: Any = SparkContext._gateway
        SparkContext._gateway = SparkContext._jvm = None
        gateway.shutdown()
        gateway.proc.stdin.close()  # ends the JVM
        gateway.proc.wait()
