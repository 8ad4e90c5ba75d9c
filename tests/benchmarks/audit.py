"""`make bench`, fourth part: measures the speed of the audit.

It compares the bytes of log per second and core with a plain `zlib.crc32` pass over the same files in the
page cache, and measures how time and memory grow with the size of the logs and the number of executors.

python -m tests.benchmarks.audit [--gib 1,4,16] [--executors 1,2] [--quick]

A size is that of the logs of three replicas together. Executors are processes of one core each
(`local-cluster`). Whole audits need Java, and each size needs space on the disk. The benchmark prints what is
missing and measures the rest."""

from __future__ import annotations

import argparse
import datetime
import mmap
import os
import shutil
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from epochmq_spark import audit, store_layout
from epochmq_spark.session import local_session
from epochmq_spark.sources.summary import SummaryReader
from tests.benchmarks import audit_report
from tests.benchmarks.machine import describe_machine, flush_dirty_pages
from tests.benchmarks.process_tree import ProcessTreeMemory
from tests.unit.store.support import Message, open_store, put

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "docs" / "results"
CACHE = ROOT / ".cache" / "bench"
BODY = 1024
REPLICAS = 3
SEGMENT = 64 << 20
EXECUTOR_MB = 1024
STORE_SHARE = 1.2
"""Bytes on the disk, with consume queues and index, for each byte of log."""
FULL: dict[str, Any] = {"gib": [1.0, 4.0, 16.0], "executors": [1, 2], "rounds": 3}
QUICK: dict[str, Any] = {"gib": [0.25], "executors": [1], "rounds": 1}


def build(root: Path, log_bytes: int) -> list[Path]:
    """Three equal stores of 1 KiB messages with unique keys, tags and an index. Their logs have `log_bytes`
    together."""
    store = open_store(
        root / "r1",
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=6_000_000,
        max_hash_slot_num=500_000,
        max_index_num=2_000_000,
        max_message_size=4096,
    )
    number = 0
    while store.max_phy_offset < log_bytes // REPLICAS:
        properties = {"UNIQ_KEY": f"7F0000010A1E18B4AAC2{number:012X}", "TAGS": "paid"}
        body = number.to_bytes(8, "big") * (BODY // 8)
        put(store, Message(body=body, queue_id=number % 8, properties=properties))
        number += 1
    store.stop()
    names = [f"r{replica + 1}" for replica in range(REPLICAS)]
    for name in names[1:]:
        shutil.copytree(root / "r1", root / name)
    return [root / name for name in names]


def crc32_pass(paths: list[Path]) -> None:
    """Computes one CRC for each segment."""
    for path in paths:
        for file in sorted((path / "commitlog").iterdir()):
            with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
                zlib.crc32(data)


def audit_pass(replicas: list[store_layout.AuditedReplica]) -> None:
    """Runs the audit's pass over logs, queues and index in this process, without Spark."""
    reader = SummaryReader(replicas, {})
    for partition in reader.partitions():
        for _ in reader.read(partition):
            pass


def seconds(action: Callable[[], Any], clock: Callable[[], float], rounds: int) -> list[float]:
    """The duration of each round."""
    found = []
    for _ in range(rounds):
        started = clock()
        action()
        found.append(clock() - started)
    return found


@contextmanager
def session(executors: int) -> Iterator[SparkSession]:
    """A session with this many executors and the settings of `epochmq audit`."""
    local_session(1).stop()
    settings = {
        "spark.executor.memory": f"{EXECUTOR_MB}m",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:-UsePerfData -XX:TieredStopAtLevel=1",
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


def measure(paths: list[Path], plan: dict[str, Any]) -> dict[str, Any]:
    """Measures one size."""
    rounds = plan["rounds"]
    replicas = [store_layout.AuditedReplica("group", path.name, str(path)) for path in paths]
    found: dict[str, Any] = {
        "log_bytes": sum(file.stat().st_size for path in paths for file in (path / "commitlog").iterdir())
    }
    flush_dirty_pages()
    crc32_pass(paths)  # brings all files into the page cache
    found["crc32_cpu_s"] = seconds(lambda: crc32_pass(paths), time.process_time, rounds)
    found["pass_cpu_s"] = seconds(lambda: audit_pass(replicas), time.process_time, rounds)
    say(found, "pass_cpu_s")
    for count in plan["executors"]:
        with session(count) as spark, ProcessTreeMemory() as family:
            audits: list[int] = []

            def whole(spark: SparkSession = spark, audits: list[int] = audits) -> None:
                audits.append(audit.run(spark, replicas).findings.count())

            took = seconds(whole, time.perf_counter, rounds)
        if any(audits):
            raise AssertionError(f"{audits} findings in healthy logs")
        found.setdefault("audits", {})[str(count)] = {"seconds": took, "peak_mb": family.peaks_mb}
        print(
            f"  audit, {count} executors: {[round(one, 1) for one in took]} s, {family.peaks_mb}", flush=True
        )
    return found


def say(found: dict[str, Any], what: str) -> None:
    """Prints a line of progress."""
    ratio = statistics.median(found["crc32_cpu_s"]) / statistics.median(found[what])
    print(
        f"{found['log_bytes'] / 2**30:.2f} GiB of logs: {what} {found[what]}, {ratio:.2f} of crc32",
        flush=True,
    )


def possible(plan: dict[str, Any]) -> dict[str, Any]:
    """The part of the plan that this machine can run; prints what is missing."""
    free = shutil.disk_usage(CACHE).free / 2**30
    there_is_room = [gib for gib in plan["gib"] if gib * STORE_SHARE < free]
    for gib in set(plan["gib"]) - set(there_is_room):
        print(
            f"missing: {gib * STORE_SHARE:.1f} GiB of disk for {gib:g} GiB of logs, {free:.1f} GiB are free"
        )
    executors = plan["executors"] if shutil.which("java") else []
    if not executors:
        print("missing: `java` 17 or newer for whole audits")
    return plan | {"gib": there_is_room, "executors": executors}


def main() -> None:
    """Builds the stores, measures, and writes the results."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.audit", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round only")
    parser.add_argument("--gib", help="sizes, default 1,4,16")
    parser.add_argument("--executors", help="default 1,2")
    options = parser.parse_args()
    plan = dict(QUICK if options.quick else FULL)
    if options.gib:
        plan["gib"] = [float(one) for one in options.gib.split(",")]
    if options.executors:
        plan["executors"] = [int(one) for one in options.executors.split(",")]
    CACHE.mkdir(parents=True, exist_ok=True)
    plan = possible(plan)
    root = Path(tempfile.mkdtemp(prefix="audit-", dir=CACHE))
    measured: dict[str, Any] = {}
    try:
        for gib in plan["gib"]:
            folder = root / "stores"
            measured[f"{gib:g}"] = measure(build(folder, int(gib * 2**30)), plan)
            shutil.rmtree(folder)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    data = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "command": "python -m tests.benchmarks.audit" + (" --quick" if options.quick else ""),
        "plan": plan,
        "measurements": measured,
    }
    written = audit_report.write(RESULTS if plan == FULL else CACHE / "results", data)
    print("\n" + audit_report.tables(measured))
    print("written: " + ", ".join(str(path) for path in written))


if __name__ == "__main__":
    main()
