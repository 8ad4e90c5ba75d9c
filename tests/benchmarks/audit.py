"""The audit's speed: bytes a second and core of a whole audit, beside one bare `zlib.crc32` pass over the
same files from the page cache; and how it grows with size and executors.

    python -m tests.benchmarks.audit [--mib 256] [--cores 1,2]

Prints one JSON object a line."""

from __future__ import annotations

import argparse
import json
import mmap
import resource
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from epochmq_spark import audit, layout
from epochmq_spark.session import local_session
from epochmq_spark.sources.summary import SummaryReader
from tests.unit.store.support import Message, opened, put

BODY = 1024
SEGMENT = 64 << 20


def build(root: Path, mib: int) -> list[Path]:
    """Three equal stores with so many MiB of 1 KiB messages each, with unique keys, tags and an index."""
    store = opened(
        root / "r1",
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=6_000_000,
        max_hash_slot_num=500_000,
        max_index_num=2_000_000,
        max_message_size=4096,
    )
    number = 0
    while store.max_phy_offset < mib << 20:
        properties = {"UNIQ_KEY": f"7F0000010A1E18B4AAC2{number:012X}", "TAGS": "paid"}
        put(
            store,
            Message(body=number.to_bytes(8, "big") * (BODY // 8), queue_id=number % 8, properties=properties),
        )
        number += 1
    store.stop()
    for name in ("r2", "r3"):
        shutil.copytree(root / "r1", root / name)
    return [root / name for name in ("r1", "r2", "r3")]


def timed(action: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> float:
    """Seconds, the best of three: of CPU for what one process does alone."""
    best = float("inf")
    for _ in range(3):
        started = clock()
        action()
        best = min(best, clock() - started)
    return best


def bare_pass(paths: list[Path]) -> None:
    """One CRC over each segment."""
    for path in paths:
        for file in sorted((path / "commitlog").iterdir()):
            with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
                zlib.crc32(data)


def main() -> None:
    """Builds, measures, prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--cores", default="1,2")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="audit-"))
    try:
        for mib in (arguments.mib // 4, arguments.mib):
            measure(build(root / str(mib), mib), [int(cores) for cores in arguments.cores.split(",")])
            shutil.rmtree(root / str(mib))
    finally:
        shutil.rmtree(root)


def measure(paths: list[Path], cores: list[int]) -> None:
    """One size."""
    size = sum(file.stat().st_size for path in paths for file in (path / "commitlog").iterdir())
    bare = size / timed(lambda: bare_pass(paths))
    say(what="zlib.crc32", log_bytes=size, bytes_per_s_core=bare)
    replicas = [layout.Replica("group", path.name, str(path)) for path in paths]
    reader = SummaryReader(replicas, {})

    def one_pass() -> None:
        for partition in reader.partitions():
            for _ in reader.read(partition):
                pass

    walk = size / timed(one_pass)
    say(what="pass, one process", log_bytes=size, bytes_per_s_core=walk, ratio=walk / bare)
    for count in cores:
        spark = local_session(count)
        found: list[int] = []

        def whole() -> None:
            found.append(audit.run(spark, replicas).findings.count())  # noqa: B023 (used at once)

        seconds = timed(whole, time.perf_counter)
        spark.stop()
        rate = size / seconds / count
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
        say(what=f"audit, {count} cores", log_bytes=size, seconds=seconds, bytes_per_s_core=rate,
            ratio=rate / bare, findings=found[-1], peak_rss_mib_of_a_child=peak)  # fmt: skip


def say(**values: Any) -> None:
    """A line."""
    print(
        json.dumps({name: round(v, 3) if isinstance(v, float) else v for name, v in values.items()}),
        flush=True,
    )


if __name__ == "__main__":
    main()
