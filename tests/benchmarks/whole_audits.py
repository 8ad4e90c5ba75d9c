"""Runs whole audits in a process of their own, with executors that are processes, too, and measures the
memory of each role and the requests to each volume."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from epochmq_operator.audits.manifests import EXECUTOR_JAVA_OPTIONS
from epochmq_spark import audit, results, store_layout, volume_client
from epochmq_spark.files_at_cut import VolumeCut
from epochmq_spark.session import local_session
from epochmq_spark.volume_reader import VolumeReader
from tests.benchmarks.process_tree import ProcessTreeMemory

EXECUTOR_MB = 1024
AUDIT_MAX_S = 3600
POLL_S = 0.05


@contextmanager
def session(executors: int) -> Iterator[SparkSession]:
    """A session with this many executors of one core each, and the settings of `epochmq audit`."""
    local_session(1).stop()
    settings = {
        "spark.executor.memory": f"{EXECUTOR_MB}m",
        "spark.executor.extraJavaOptions": EXECUTOR_JAVA_OPTIONS,
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
    }
    builder = SparkSession.builder.master(f"local-cluster[{executors},1,{EXECUTOR_MB}]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def _audit(locations: list[tuple[str, str]], executors: int, rounds: int, found: Any) -> None:
    """The process: puts (seconds, verdict, number of findings) of each round into the queue."""
    replicas = [store_layout.AuditedReplica("group", name, location) for name, location in locations]
    with session(executors) as spark:
        for _ in range(rounds):
            started = time.perf_counter()
            result = audit.run(spark, replicas)
            summary, _ = results.summarise(result, time.time())
            took = time.perf_counter() - started
            result.release()
            found.put((took, summary["verdict"], sum(summary["findingCounts"].values())))


def measure(
    locations: Sequence[tuple[str, str]], executors: int, rounds: int, verdict: str
) -> dict[str, Any]:
    """Seconds of each round, the number of findings, and the peak memory of each role. `locations` are
    (name, location) of the replicas. Fails if an audit has another verdict."""
    context = multiprocessing.get_context("spawn")
    found: Any = context.Queue()
    process = context.Process(target=_audit, args=(list(locations), executors, rounds, found))
    with ProcessTreeMemory() as family:
        process.start()
        process.join(AUDIT_MAX_S)
    if process.exitcode != 0:
        process.kill()
        process.join()
        raise AssertionError(f"the audit ended with {process.exitcode}")
    audits = [found.get(timeout=10) for _ in range(rounds)]
    if any(one != verdict for _, one, _ in audits):
        raise AssertionError(f"expected the verdict {verdict}: {audits}")
    return {
        "seconds": [took for took, _, _ in audits],
        "findings": audits[-1][2],
        "peak_mb": family.peaks_mb,
    }


@contextmanager
def counted_volumes(paths: Sequence[Path]) -> Iterator[tuple[list[tuple[str, str]], Counter[str]]]:
    """The directories behind volume readers, as on Kubernetes: (name, location), and the number of requests
    that each got so far."""
    requests: Counter[str] = Counter()
    running: list[tuple[VolumeReader, threading.Thread]] = []
    locations = []
    try:
        for path in paths:
            server = VolumeReader(("127.0.0.1", 0), path)
            server.RequestHandlerClass = _counting(server.RequestHandlerClass, path.name, requests)
            thread = threading.Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
            thread.start()
            running.append((server, thread))
            location = f"http://127.0.0.1:{server.server_address[1]}"
            volume_client.freeze(location, VolumeCut(1 << 60))
            locations.append((path.name, location))
        yield locations, requests
    finally:
        volume_client.close_connections()
        for server, thread in running:
            server.shutdown()
            thread.join()
            server.server_close()


def _counting(handler: Any, name: str, requests: Counter[str]) -> type[BaseHTTPRequestHandler]:
    lock = threading.Lock()

    class CountingHandler(handler):  # type: ignore[misc]  # the reader's own class is private
        def do_GET(self) -> None:  # noqa: N802  # the name is http.server's
            """Counts the request, and serves it."""
            with lock:
                requests[name] += 1
            super().do_GET()

    return CountingHandler
