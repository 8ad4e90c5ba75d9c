"""Measures how fast a Spark user's queries read a store through the data source `epochmq.commitlog`.

python -m tests.benchmarks.sources [--mb 256] [--rounds 3] [--only count] [--store DIRECTORY]

The store has messages of about 900 bytes with a unique key, keys, tags and two properties of a user. One in a
hundred is of the topic `rare`, the others are of `orders`. Each query runs in `local[2]`, once to warm up and
then in rounds. Its CPU time is that of Spark's JVM and of all Python workers. On a machine that does other
work, too, it is the number to compare; the seconds are not. A query named `… few` states the columns that it
needs. The first line measures the reader alone, with all columns, in this process and without Spark.

With `--store` the directory is used, and created if it is missing; otherwise the store is removed at the end.
Results stay in `.cache/bench/results`."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epochmq_spark.session import local_session
from epochmq_spark.sources import register
from epochmq_spark.sources.commitlog import CommitLogSource
from tests.benchmarks import result_files
from tests.benchmarks.machine import cpu_seconds, describe_machine
from tests.benchmarks.process_tree import descendants
from tests.unit.store.support import Message, open_store, put

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CACHE = Path(__file__).resolve().parent.parent.parent / ".cache" / "bench"
BODY = 640
SEGMENT = 64 << 20
QUEUES = 4
RARE_SHARE = 100
KEYS = 5000
Query = Callable[["DataFrame"], int]


def build(root: Path, log_bytes: int) -> None:
    """Creates the store."""
    store = open_store(
        root,
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=6_000_000,
        max_hash_slot_num=500_000,
        max_index_num=2_000_000,
        max_message_size=4096,
    )
    number = 0
    while store.max_phy_offset < log_bytes:
        properties = {
            "UNIQ_KEY": f"7F0000010A1E18B4AAC2{number:012X}",
            "KEYS": f"order-{number % KEYS} customer-{number % 977}",
            "TAGS": "paid" if number % 3 else "new",
            "WAIT": "true",
            "CLUSTER": "DefaultCluster",
            "traceparent": f"00-4bf92f3577b34da6a3ce929d{number:08x}-00f067aa0ba902b7-01",
        }
        topic = "rare" if number % RARE_SHARE == 0 else "orders"
        body = number.to_bytes(8, "big") * (BODY // 8)
        put(store, Message(topic=topic, queue_id=number // 7 % QUEUES, body=body, properties=properties))
        number += 1
    store.stop()
    count = {"readQueueNums": QUEUES, "writeQueueNums": QUEUES}
    (root / "config").mkdir(exist_ok=True)
    table = {"topicConfigTable": dict.fromkeys(("orders", "rare"), count)}
    (root / "config" / "topics.json").write_text(json.dumps(table))


def queries() -> dict[str, tuple[str, Query]]:
    """By name the columns to read ("" for the default ones), and the query, which returns a number."""
    from pyspark.sql import functions as f

    def per_hour(log: DataFrame) -> int:
        hours = log.groupBy("topic", f.date_trunc("hour", "store_time").alias("hour"))
        return len(hours.agg(f.count("*"), f.sum("body_size")).collect())

    def of_topic(log: DataFrame) -> int:
        return log.where("topic = 'rare'").count()

    def of_key(log: DataFrame) -> int:
        return log.where(f.array_contains(f.split("keys", " "), "order-7")).count()

    def of_time(log: DataFrame) -> int:
        ((low, high),) = log.agg(f.min("store_timestamp"), f.max("store_timestamp")).collect()
        return log.where(f"store_timestamp < {low + (high - low) // 50}").count()

    def properties(log: DataFrame) -> int:
        return log.where("properties['traceparent'] like '%7-00f067aa0ba902b7-01'").count()

    return {
        "count": ("", lambda log: log.count()),
        "count, few": ("kind", lambda log: log.count()),
        "topic": ("", of_topic),
        "topic, few": ("topic", of_topic),
        "key, few": ("keys", of_key),
        "hours": ("", per_hour),
        "hours, few": ("topic,store_time,body_size", per_hour),
        "time, few": ("store_timestamp", of_time),
        "properties, few": ("properties", properties),
    }


def measured(action: Callable[[], int], rounds: int) -> dict[str, Any]:
    """Seconds and CPU seconds of each round after the first, and the answer."""
    answer = action()
    seconds, cpu = [], []
    for _ in range(rounds):
        started, before = time.monotonic(), cpu_of_tree()
        assert action() == answer
        seconds.append(round(time.monotonic() - started, 3))
        cpu.append(round(cpu_of_tree() - before, 3))
    return {"answer": answer, "seconds": seconds, "cpu_s": cpu}


def cpu_of_tree() -> float:
    """The CPU seconds of this process and of its descendants that are running."""
    total = time.process_time()  # children that have ended count with the process that waited for them
    for pid in descendants(os.getpid()):
        try:
            total += cpu_seconds(pid)
        except OSError:
            continue  # the process has ended
    return total


def read_alone(store: Path) -> int:
    """Reads all columns without Spark; returns the number of rows."""
    source = CommitLogSource({"path": str(store)})
    reader = source.reader(source.schema())
    return sum(batch.num_rows for one in reader.partitions() for batch in reader.read(one))


def measure(spark: SparkSession, store: Path, rounds: int, only: str) -> dict[str, Any]:
    """Measures all queries whose names start with `only`."""
    found: dict[str, Any] = {"reader alone": measured(lambda: read_alone(store), rounds)}
    total = found["reader alone"]["answer"]
    say("reader alone", found["reader alone"], total)
    for name, (columns, query) in queries().items():
        if not name.startswith(only):
            continue

        def run(name: str = name, columns: str = columns, query: Query = query) -> int:
            reader = spark.read.format("epochmq.commitlog")
            if name.startswith("topic"):
                reader = reader.option("topics", "rare")
            if columns:
                reader = reader.option("columns", columns)
            return query(reader.load(str(store)))

        found[name] = measured(run, rounds)
        say(name, found[name], total)
    return found


def line_of(name: str, one: dict[str, Any], total: int) -> list[str]:
    """A row of the table: rows of the store a second, by the clock and by the CPU."""
    seconds, cpu = statistics.median(one["seconds"]), statistics.median(one["cpu_s"])
    rates = [f"{total / value:,.0f}" if value else "–" for value in (seconds, cpu)]
    return [name, f"{one['answer']:,}", f"{seconds:.2f}", f"{cpu:.2f}", *rates]


def say(name: str, one: dict[str, Any], total: int) -> None:
    """Prints a line of progress."""
    _, answer, seconds, cpu, rate, per_cpu = line_of(name, one, total)
    print(
        f"{name:18} {answer:>9}  {seconds:>6} s  {cpu:>6} CPU s  {rate:>10}/s  {per_cpu:>10}/CPU s",
        flush=True,
    )


def main() -> None:
    """Builds the store, measures, and writes the results."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sources", description=__doc__)
    parser.add_argument("--mb", type=int, default=256, help="size of the log, default 256")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--only", default="", help="queries whose names start so")
    parser.add_argument("--store", type=Path, help="a directory to keep the store in")
    options = parser.parse_args()
    if not shutil.which("java"):
        print("missing: `java` 17 or newer for the data sources")
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="sources-", dir=CACHE))
    try:
        store = options.store or root / "store"
        if not store.exists():
            build(store, options.mb << 20)
        spark = local_session(2)
        try:
            register(spark)
            found = measure(spark, store, options.rounds, options.only)
        finally:
            spark.stop()
    finally:
        shutil.rmtree(root)
    data = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "command": result_files.command_line("tests.benchmarks.sources", sys.argv[1:]),
        "measurements": found,
    }
    total = found["reader alone"]["answer"]
    head = ["query", "answer", "s", "CPU s", "rows/s", "rows/CPU s"]
    tables = result_files.table(head, [line_of(name, one, total) for name, one in found.items()])
    intro = ["# Queries through `epochmq.commitlog`", f"`{data['command']}`: {total:,} rows, medians."]
    written = result_files.write(CACHE / "results", "sources", data, intro, tables)
    print("written: " + ", ".join(str(path) for path in written))


if __name__ == "__main__":
    main()
