"""`make bench`, fourth part: measures the speed of the audit.

It compares the bytes of log per second and core with a plain `zlib.crc32` pass over the same files in the
page cache, and measures how time and memory grow with the size of the logs and the number of executors. Then
it audits a group with 5,000 queues, the same group with one log of which half of the records are damaged, and
the same group behind volume readers, as on Kubernetes.

python -m tests.benchmarks.audit [--gib 1,4,16,64] [--executors 1,2] [--rounds 3] [--group-gib 1] [--quick]

A size is that of the logs of three replicas together. Executors are processes of one core each
(`local-cluster`). Whole audits need Java, and each size needs space on the disk; where that suffices for one
replica only, the other two are hard links to its files. The benchmark prints what is missing and measures
the rest. Results of the default plan go to `docs/results`, others to `.cache/bench/results`."""

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from epochmq_spark import store_layout
from epochmq_spark.sources.summary import SummaryReader
from tests.benchmarks import audit_report, whole_audits
from tests.benchmarks.machine import describe_machine, flush_dirty_pages
from tests.spark import wrecked_groups
from tests.unit.store.support import Message, open_store, put

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "docs" / "results"
CACHE = ROOT / ".cache" / "bench"
BODY = 1024
REPLICAS = 3
SEGMENT = 64 << 20
QUEUES = 8
STORE_SHARE = 1.3
"""Bytes on the disk, with consume queues and index, for each byte of log."""
LARGE_GIB = 64.0
"""A size that is measured in one round: it alone takes half an hour."""
SPARE_GIB = 5.0
"""Of the disk, that stay free."""
FULL: dict[str, Any] = {
    "gib": [1.0, 4.0, 16.0, 64.0],
    "executors": [1, 2],
    "rounds": 3,
    "group_gib": 1.0,
    "queues": 5000,
}
QUICK: dict[str, Any] = {"gib": [0.25], "executors": [1], "rounds": 1, "group_gib": 0.05, "queues": 500}


def build(root: Path, log_bytes: int, queues: int = QUEUES, *, linked: bool = False) -> list[Path]:
    """Three equal stores of 1 KiB messages with unique keys, tags and an index. Their logs have `log_bytes`
    together. With `linked` the second and the third store are hard links to the files of the first."""
    units = log_bytes // REPLICAS // BODY // queues + 1
    store = open_store(
        root / "r1",
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=6_000_000 if queues == QUEUES else 20 * max(units, 10),
        max_hash_slot_num=500_000,
        max_index_num=2_000_000,
        max_message_size=4096,
    )
    number = 0
    while store.max_phy_offset < log_bytes // REPLICAS:
        properties = {"UNIQ_KEY": f"7F0000010A1E18B4AAC2{number:012X}", "TAGS": "paid"}
        body = number.to_bytes(8, "big") * (BODY // 8)
        put(store, Message(body=body, queue_id=number % queues, properties=properties))
        number += 1
    store.stop()
    names = [f"r{replica + 1}" for replica in range(REPLICAS)]
    for name in names[1:]:
        shutil.copytree(root / "r1", root / name, copy_function=os.link if linked else shutil.copy2)
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


def measure(paths: list[Path], plan: dict[str, Any]) -> dict[str, Any]:
    """Measures one size."""
    rounds = plan["rounds"]
    replicas = [store_layout.AuditedReplica("group", path.name, str(path)) for path in paths]
    found: dict[str, Any] = {
        "log_bytes": sum(file.stat().st_size for path in paths for file in (path / "commitlog").iterdir())
    }
    flush_dirty_pages()
    crc32_pass(paths)  # brings all files into the page cache
    # Loads the compiled code, or compiles it: as long for 1 GiB as for 1 TiB.
    found["first_pass_cpu_s"] = seconds(lambda: audit_pass(replicas), time.process_time, 1)[0]
    found["crc32_cpu_s"] = seconds(lambda: crc32_pass(paths), time.process_time, rounds)
    found["pass_cpu_s"] = seconds(lambda: audit_pass(replicas), time.process_time, rounds)
    say(found, "pass_cpu_s")
    for count in plan["executors"]:
        run = whole_audits.measure(locations_of(paths), count, rounds, "healthy")
        found.setdefault("audits", {})[str(count)] = run
        say_audit(f"audit, {count} executors", run)
    return found


def locations_of(paths: list[Path]) -> list[tuple[str, str]]:
    """(name, location) of the stores."""
    return [(path.name, str(path)) for path in paths]


def measure_groups(root: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Measures audits of one group with many queues: as it is, behind volume readers, and with a log of which
    half of the records are damaged."""
    paths = build(root, int(plan["group_gib"] * 2**30), plan["queues"])
    flush_dirty_pages()
    found: dict[str, Any] = {"queues": plan["queues"], "gib": plan["group_gib"], "audits": {}}
    for count in plan["executors"]:
        cells = found["audits"][str(count)] = {}
        cells["healthy"] = whole_audits.measure(locations_of(paths), count, plan["rounds"], "healthy")
        say_audit(f"{plan['queues']} queues, {count} executors", cells["healthy"])
    with whole_audits.counted_volumes(paths) as (locations, requests):
        whole_audits.measure(locations, plan["executors"][0], 1, "healthy")
        found["requests"] = dict(requests)
        found["files"] = sum(1 for one in paths[0].rglob("*") if one.is_file())
    print(f"  requests to each volume of {found['files']} files: {found['requests']}", flush=True)
    found["damaged_records"] = list(wrecked_groups.wreck(paths[1]))
    for count in plan["executors"]:
        run = whole_audits.measure(locations_of(paths), count, plan["rounds"], "damaged")
        found["audits"][str(count)]["wrecked"] = run
        say_audit(f"half of a log damaged, {count} executors", run)
    return found


def say_audit(what: str, run: dict[str, Any]) -> None:
    """Prints the result of whole audits."""
    seconds_of_rounds = [round(one, 1) for one in run["seconds"]]
    print(f"  {what}: {seconds_of_rounds} s, {run['findings']} findings, {run['peak_mb']}", flush=True)


def say(found: dict[str, Any], what: str) -> None:
    """Prints a line of progress."""
    ratio = statistics.median(found["crc32_cpu_s"]) / statistics.median(found[what])
    print(
        f"{found['log_bytes'] / 2**30:.2f} GiB of logs: {what} {found[what]}, {ratio:.2f} of crc32",
        flush=True,
    )


def free_gib() -> float:
    """What the disk has room for."""
    return shutil.disk_usage(CACHE).free / 2**30 - SPARE_GIB


def possible(plan: dict[str, Any]) -> dict[str, Any]:
    """The part of the plan that this machine can run; prints what is missing."""
    free = free_gib()
    there_is_room = [gib for gib in plan["gib"] if gib * STORE_SHARE / REPLICAS < free]
    for gib in sorted(set(plan["gib"]) - set(there_is_room)):
        needed = gib * STORE_SHARE / REPLICAS
        print(f"missing: {needed:.1f} GiB of disk for {gib:g} GiB of logs, there is room for {free:.1f}")
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
    parser.add_argument("--group-gib", type=float, help="size of the group with many queues, default 1")
    parser.add_argument("--rounds", type=int, help=f"default {FULL['rounds']}")
    options = parser.parse_args()
    plan = dict(QUICK if options.quick else FULL)
    if options.gib:
        plan["gib"] = [float(one) for one in options.gib.split(",")]
    if options.executors:
        plan["executors"] = [int(one) for one in options.executors.split(",")]
    if options.group_gib:
        plan["group_gib"] = options.group_gib
    if options.rounds:
        plan["rounds"] = options.rounds
    CACHE.mkdir(parents=True, exist_ok=True)
    is_whole = plan | {"rounds": FULL["rounds"]} == FULL
    plan = possible(plan)
    is_whole = is_whole and bool(plan["executors"])
    root = Path(tempfile.mkdtemp(prefix="audit-", dir=CACHE))
    measured: dict[str, Any] = {}
    try:
        for gib in plan["gib"]:
            folder = root / "stores"
            linked = gib * STORE_SHARE > free_gib()
            paths = build(folder, int(gib * 2**30), linked=linked)
            rounds = 1 if gib >= LARGE_GIB else plan["rounds"]
            measured[f"{gib:g}"] = measure(paths, plan | {"rounds": rounds}) | {"linked": linked}
            shutil.rmtree(folder)
        groups = measure_groups(root / "groups", plan) if plan["executors"] else {}
    finally:
        shutil.rmtree(root, ignore_errors=True)
    data = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "command": " ".join(["python -m tests.benchmarks.audit", *sys.argv[1:]]),
        "plan": plan,
        "measurements": measured,
        "groups": groups,
    }
    written = audit_report.write(RESULTS if is_whole else CACHE / "results", data)
    print("\n" + audit_report.tables(measured, groups))
    print("written: " + ", ".join(str(path) for path in written))


if __name__ == "__main__":
    main()
