"""`make bench`, third part: measures replica groups of three under three controllers, ours and RocketMQ's,
under the same loads, in one run on this machine. See `--help`."""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.benchmarks import replica_groups_report as report
from tests.benchmarks.build import CACHE, CompilerMissingError, load_program
from tests.benchmarks.cells import run_load
from tests.benchmarks.group_peers import MeasuredBrokers, MeasuredGroup, PacedSends, sendfile_s
from tests.benchmarks.machine import OccupiedMemory, describe_machine, flush_dirty_pages
from tests.benchmarks.peers import QUEUES
from tests.interop.java_env import JavaMissingError, java_library, rocketmq_version
from tests.support.group_processes import Member
from tests.support.process import wait_until
from tests.support.replica_group import ReplicaGroup

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
PARTS = ("throughput", "catch_up", "kill", "stop", "switch")
CELLS = ((1, 64), (16, 16))
StartGroup = Callable[[str], AbstractContextManager[MeasuredBrokers]]
"""Starts a group of one kind."""
BODY_BYTES = 1024
RECORD_BYTES = 1150
MARGIN_S = 120
SILENCE_MAX_S = 40.0
FULL: dict[str, Any] = {
    "rounds": 3,
    "warmup_s": 1.0,
    "seconds": 5.0,
    "java_warmup_s": 20.0,
    "catch_up_bytes": 2 << 30,
    "catch_up_rounds": 3,
    "kill": {"ours": 50, "java": 10},
    "stop": {"ours": 10, "java": 2},
    "switch": {"ours": 20, "java": 5},
}
QUICK: dict[str, Any] = {
    "rounds": 1,
    "warmup_s": 0.5,
    "seconds": 2.0,
    "java_warmup_s": 8.0,
    "catch_up_bytes": 256 << 20,
    "catch_up_rounds": 1,
    "kill": {"ours": 5, "java": 2},
    "stop": {"ours": 2, "java": 1},
    "switch": {"ours": 5, "java": 2},
}


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.replica_groups", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round only")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part (repeatable)")
    parser.add_argument("--peers", default="ours,java", help="ours, java, or ours,java (default)")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of the results (default: docs/results; .cache/bench for a partial run)",
    )
    parser.add_argument(
        "--add-to",
        type=Path,
        metavar="JSON",
        help="an earlier result of this machine, whose parts are kept if this run does not measure them",
    )
    parser.add_argument(
        "--note", action="append", default=[], help="a note for readers of the result (repeatable)"
    )
    return parser.parse_args()


def send(
    program: Path, group: MeasuredBrokers, connections: int, depth: int, warmup_s: float, seconds: float
) -> dict[str, Any]:
    """Measures sends to the master. The CPU time is that of all three brokers for one message."""
    flush_dirty_pages()
    before = group.cpu_s()
    times = [f"warmup={warmup_s}", f"seconds={seconds}"]
    result = run_load(_load(program, group, connections, depth) + times, warmup_s + seconds + MARGIN_S)
    share = seconds / (warmup_s + seconds)
    result["cpu_us"] = (group.cpu_s() - before) * share / result["requests"] * 1e6
    return result


def _load(program: Path, group: MeasuredBrokers, connections: int, depth: int) -> list[str]:
    master = group.master
    host, _, port = master.address.rpartition(":")
    return [
        str(program),
        "send",
        f"host={host}",
        f"port={port}",
        "topic=bench-send",
        f"broker={ReplicaGroup.NAME}",
        f"queues={QUEUES}",
        f"connections={connections}",
        f"depth={depth}",
        f"body={BODY_BYTES}",
        f"pid={master.process.pid}",
    ]


def measure_throughput(names: list[str], folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Results by cell and kind, one for each round."""
    variants: dict[str, StartGroup] = {
        "two of three": lambda kind: _StartedGroup(kind, folder, waits_for_all=False),
        "all three": lambda kind: _StartedGroup(kind, folder, waits_for_all=True),
    }
    return measure_sends(load_program(), names, folder, plan, variants)


def measure_sends(
    program: Path, names: list[str], folder: Path, plan: Mapping[str, Any], variants: dict[str, StartGroup]
) -> dict[str, Any]:
    """Results by cell and kind, one for each round. One group runs at a time, in another order in each round:
    of each kind every variant, by its title."""
    found: dict[str, dict[str, list[Any]]] = {}
    occupied = OccupiedMemory(folder)
    for number in range(plan["rounds"]):
        for kind in names if number % 2 == 0 else names[::-1]:
            for title, start in variants.items():
                with start(kind) as group:
                    warm = plan["java_warmup_s"] if kind == "java" else plan["java_warmup_s"] / 10
                    send(program, group, 16, 16, 0, warm)
                    for connections, depth in CELLS:
                        flush_dirty_pages()
                        occupied.occupy()
                        result = send(program, group, connections, depth, plan["warmup_s"], plan["seconds"])
                        cell = f"{connections}x{depth}, {title}"
                        found.setdefault(cell, {}).setdefault(kind, []).append(result)
                        print(
                            f"round {number + 1}/{plan['rounds']}  {cell:22} {kind:5}"
                            f" {result['per_second']:>9,.0f}/s  p50 {result['p50_ms']:8.3f}"
                            f"  p99 {result['p99_ms']:8.3f} ms  CPU {result['cpu_us']:6.1f} µs",
                            flush=True,
                        )
    occupied.release()
    return found


def measure_catch_up(names: list[str], folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Results by kind, one for each round: an empty third replica copies a log of a given size."""
    program = load_program()
    found: dict[str, list[Any]] = {}
    occupied = OccupiedMemory(folder)
    for _ in range(plan["catch_up_rounds"]):
        for kind in names:
            with _StartedGroup(kind, folder, brokers=2) as group:
                count = plan["catch_up_bytes"] // RECORD_BYTES
                run_load([*_load(program, group, 1, 64), f"count={count}"], MARGIN_S + count / 1000)
                found.setdefault(kind, []).append(_catch_up(group, occupied))
                print(f"catch-up  {kind:5} {found[kind][-1]}", flush=True)
    occupied.release()
    return found


def _catch_up(group: MeasuredGroup, occupied: OccupiedMemory) -> dict[str, float]:
    master, newcomer = group.master, group.group.brokers[2]
    end = group.log_end(master)
    files = sorted((group.folder / master.name / "store" / "commitlog").iterdir())
    share = end / sum(path.stat().st_size for path in files)
    flush_dirty_pages()
    plain = min(sendfile_s(files) for _ in range(3)) * share
    occupied.occupy()  # repeated, because the host takes back free pages
    copied = sendfile_s(files, group.folder / "copy") * share
    shutil.rmtree(group.folder / "copy")
    flush_dirty_pages()
    occupied.occupy()
    newcomer.start()
    wait_until(lambda: group.log_end(newcomer) > 0, timeout_s=120, what="the first bytes arrive")
    started, first = time.monotonic(), group.log_end(newcomer)
    wait_until(lambda: group.log_end(newcomer) >= end, timeout_s=300, what="the replica has the whole log")
    took = time.monotonic() - started
    return {
        "mb_per_s": round((end - first) / took / 1e6, 1),
        "sendfile_mb_per_s": round(end / plain / 1e6, 1),
        "copied_mb_per_s": round(end / copied / 1e6, 1),
        "seconds": round(took, 3),
        "mb": round((end - first) / 1e6, 1),
    }


def measure_kill(names: list[str], folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """By kind: the seconds from kill -9 of the master to the first acknowledgement of a send that started
    after it."""

    return _measure_failovers(names, folder, plan["kill"], lambda master: master.process.kill(), Member.start)


def measure_stop(names: list[str], folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """By kind: the same, from SIGSTOP of the master."""

    return _measure_failovers(
        names,
        folder,
        plan["stop"],
        lambda master: master.process.signal(signal.SIGSTOP),
        lambda master: master.process.signal(signal.SIGCONT),
    )


def _measure_failovers(
    names: list[str],
    folder: Path,
    counts: dict[str, int],
    disturb: Callable[[Member], None],
    mend: Callable[[Member], None],
) -> dict[str, Any]:
    found: dict[str, list[float]] = {}
    for kind in names:
        with _StartedGroup(kind, folder) as group, SendingProducer(group) as sends:
            for number in range(counts[kind]):
                if not _is_in_sync(group):
                    break
                master = group.master
                since = time.monotonic_ns()
                disturb(master)
                took = sends.first_acknowledged_s(since, time.monotonic_ns(), SILENCE_MAX_S)
                found.setdefault(kind, []).append(round(took, 4))
                print(f"disturbance {number + 1}  {kind:5} {took:7.3f} s", flush=True)
                mend(master)
    return found


def measure_switch(names: list[str], folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """By kind, for each planned switchover: the longest time without an acknowledgement, and failed sends."""
    found: dict[str, list[Any]] = {}
    for kind in names:
        with _StartedGroup(kind, folder) as group, SendingProducer(group) as sends:
            for number in range(plan["switch"][kind]):
                if not _is_in_sync(group):
                    break
                before = time.monotonic_ns()
                group.switch()
                sends.first_acknowledged_s(before, time.monotonic_ns(), SILENCE_MAX_S)
                _is_in_sync(group)
                found.setdefault(kind, []).append(_pause(sends.sends(), before))
                print(f"switch {number + 1}  {kind:5} {found[kind][-1]}", flush=True)
    return found


def _is_in_sync(group: MeasuredGroup) -> bool:
    """Waits until all replicas are in sync; False if they are not. A group of RocketMQ's may never be in sync
    again; then it is not measured further."""
    try:
        group.group.wait_in_sync(3, timeout_s=120)
    except AssertionError as error:
        if group.kind == "ours":
            raise
        print(f"{group.kind}: {error}", flush=True)
        return False
    return True


def _pause(sends: list[tuple[int, int, str]], before_ns: int) -> dict[str, Any]:
    ends = sorted(end for _, end, status in sends if status == "SEND_OK")
    last = max((end for end in ends if end < before_ns), default=before_ns)
    after = [last, *(end for end in ends if end >= before_ns)]
    gap = max((later - earlier for earlier, later in itertools.pairwise(after)), default=0)
    failures = Counter(status for start, _, status in sends if start >= last and status != "SEND_OK")
    return {"pause_ms": round(gap / 1e6, 1), "failed": failures.total(), "failures": dict(failures)}


class _StartedGroup:
    """A context manager: a group in its own folder, which is killed and deleted at the end."""

    def __init__(self, kind: str, folder: Path, *, brokers: int = 3, waits_for_all: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self._group = MeasuredGroup(kind, self._folder, waits_for_all=waits_for_all)
        self._brokers = brokers

    def __enter__(self) -> MeasuredGroup:
        try:
            self._group.start(self._brokers)
        except BaseException as error:
            error.add_note(self._group.group.logs())
            self.__exit__()
            raise
        return self._group

    def __exit__(self, *_: object) -> None:
        self._group.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


class SendingProducer:
    """A context manager: the Java producer, sending."""

    def __init__(self, group: MeasuredBrokers) -> None:
        self._sends = PacedSends(group.group.nameserver.address, group.folder / "producer")

    def __enter__(self) -> PacedSends:
        self._sends.start()
        return self._sends

    def __exit__(self, *_: object) -> None:
        self._sends.process.kill()


def summary(data: dict[str, Any]) -> dict[str, Any]:
    """The medians and the worst cases of all measurements, by part."""
    found: dict[str, Any] = {}
    for cell, kinds in data.get("throughput", {}).items():
        for kind, results in kinds.items():
            fields = ("per_second", "p50_ms", "p99_ms", "cpu_us")
            row = {field: round(statistics.median(r[field] for r in results), 3) for field in fields}
            found.setdefault("throughput", {}).setdefault(cell, {})[kind] = row
    for kind, results in data.get("catch_up", {}).items():
        speeds = ("mb_per_s", "sendfile_mb_per_s", "copied_mb_per_s")
        middle = {field: statistics.median(r[field] for r in results) for field in speeds}
        found.setdefault("catch_up", {})[kind] = middle
    for part in ("kill", "stop"):
        for kind, times in data.get(part, {}).items():
            row = {"count": len(times), "median_s": statistics.median(times), "worst_s": max(times)}
            found.setdefault(part, {})[kind] = row
    for kind, results in data.get("switch", {}).items():
        pauses = [r["pause_ms"] for r in results]
        found.setdefault("switch", {})[kind] = {
            "count": len(results),
            "median_ms": statistics.median(pauses),
            "worst_ms": max(pauses),
            "failed": sum(r["failed"] for r in results),
        }
    return found


def main() -> int:
    options = arguments()
    plan: dict[str, Any] = QUICK if options.quick else FULL
    parts, names = list(options.only or PARTS), options.peers.split(",")
    try:
        java_library()
    except JavaMissingError as error:
        print(f"{error}: there is neither a Java producer nor a RocketMQ to compare with", flush=True)
        names = [name for name in names if name != "java"]
        parts = [part for part in parts if part in ("throughput", "catch_up")]
    try:
        load_program()
    except CompilerMissingError as error:
        print(f"{error}: cannot produce the load", flush=True)
        parts = [part for part in parts if part not in ("throughput", "catch_up")]
    if not names or not parts:
        print("this machine can measure none of the requested cells")
        return 2
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=CACHE, prefix="groups-"))
    work = {
        "throughput": measure_throughput,
        "catch_up": measure_catch_up,
        "kill": measure_kill,
        "stop": measure_stop,
        "switch": measure_switch,
    }
    try:
        measured = {part: work[part](names, folder, plan) for part in PARTS if part in parts}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    dates = dict.fromkeys(measured, date)
    if options.add_to:
        earlier = json.loads(options.add_to.read_text())
        measured = earlier["measurements"] | measured
        dates = dict.fromkeys(measured, earlier["date"]) | earlier.get("dates", {}) | dates
    data: dict[str, Any] = {
        "date": date,
        "dates": dates,
        "rocketmq": rocketmq_version(),
        "machine": describe_machine(),
        "command": " ".join(
            ["python -m tests.benchmarks.replica_groups", *(["--quick"] if options.quick else [])]
        ),
        "plan": plan,
        "notes": options.note,
        "summary": summary(measured),
        "measurements": measured,
    }
    whole = set(PARTS) <= measured.keys() and names == ["ours", "java"] and not options.quick
    written = report.write(options.out or (RESULTS if whole else CACHE / "results"), data)
    print("\n" + report.tables(data["summary"]))
    print("written: " + ", ".join(str(path) for path in written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
