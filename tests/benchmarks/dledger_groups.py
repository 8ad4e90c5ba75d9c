"""`make bench`, tenth part: measures three brokers with a DLedger log, ours and RocketMQ's: sends with both
kinds of flush, and the time from kill -9 of the leader to the first acknowledged send. See `--help`."""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks import disk_runs, result_files
from tests.benchmarks.disk_runs import Plan, fresh_folder
from tests.benchmarks.group_peers import MAKERS, SETTINGS, MeasuredBrokers, PacedSends
from tests.benchmarks.replica_groups import SILENCE_MAX_S, SendingProducer, StartGroup, measure_sends
from tests.interop.java_env import JavaMissingError, java_library
from tests.support.cluster import Settings
from tests.support.dledger_group import DLedgerGroup

OCTET = 64
PARTS = ("throughput", "kill")
FLUSHES = {"asynchronous": "ASYNC_FLUSH", "synchronous": "SYNC_FLUSH"}
FULL: Plan = {
    "rounds": 3,
    "warmup_s": 1.0,
    "seconds": 5.0,
    "java_warmup_s": 20.0,
    "kill": {"ours": 50, "java": 50},
}
QUICK: Plan = {
    "rounds": 1,
    "warmup_s": 0.5,
    "seconds": 2.0,
    "java_warmup_s": 8.0,
    "kill": {"ours": 5, "java": 3},
}
RATIO_GOAL = 2.0
SHARE_GOAL = 0.1


class MeasuredDLedgerGroup(MeasuredBrokers):
    """Three brokers of one kind, and a nameserver of ours."""

    group: DLedgerGroup

    def __init__(self, kind: str, folder: Path, flush: str = FLUSHES["asynchronous"]) -> None:
        _, broker = MAKERS[kind]
        self.kind, self.folder = kind, folder
        settings: Settings = {**SETTINGS, "flushDiskType": flush, "maxMessageSize": 4 << 20}
        self.group = DLedgerGroup(folder, [broker] * 3, broker=settings, octet=OCTET)


@contextlib.contextmanager
def started(kind: str, folder: Path, flush: str) -> Iterator[MeasuredDLedgerGroup]:
    """A group in a folder of its own, which is killed and deleted at the end."""
    own = fresh_folder(folder)
    measured = MeasuredDLedgerGroup(kind, own, flush)
    try:
        with measured.group:
            measured.group.wait_replicated()
            measured.create_topic()
            yield measured
    finally:
        shutil.rmtree(own, ignore_errors=True)


def measure_throughput(program: Path, names: list[str], folder: Path, plan: Plan) -> dict[str, Any]:
    """Results by cell and kind, one for each round."""
    variants: dict[str, StartGroup] = {
        title: partial(started, folder=folder, flush=flush) for title, flush in FLUSHES.items()
    }
    return measure_sends(program, names, folder, plan, variants)


def measure_kill(names: list[str], folder: Path, plan: Plan) -> dict[str, Any]:
    """By kind: the seconds from kill -9 of the leader to the first acknowledgement of a send that started
    after it."""
    found: dict[str, list[float]] = {}
    for kind in names:
        with started(kind, folder, FLUSHES["asynchronous"]) as group, SendingProducer(group) as sends:
            for number in range(plan["kill"][kind]):
                group.group.wait_replicated()
                found.setdefault(kind, []).append(_killed(group, sends))
                print(f"kill {number + 1}  {kind:5} {found[kind][-1]:7.3f} s", flush=True)
    return found


def _killed(group: MeasuredDLedgerGroup, sends: PacedSends) -> float:
    master = group.group.master()
    assert master is not None
    since = time.monotonic_ns()
    master.process.kill()
    took = sends.first_acknowledged_s(since, time.monotonic_ns(), SILENCE_MAX_S)
    master.start()
    return round(took, 4)


def summarise(measured: dict[str, Any]) -> dict[str, Any]:
    """The medians and the worst cases."""
    found: dict[str, Any] = {}
    for cell, kinds in measured.get("throughput", {}).items():
        for kind, results in kinds.items():
            fields = ("per_second", "p50_ms", "p99_ms", "cpu_us")
            row = {field: round(statistics.median(r[field] for r in results), 3) for field in fields}
            found.setdefault("throughput", {}).setdefault(cell, {})[kind] = row
    for kind, times in measured.get("kill", {}).items():
        row = {"count": len(times), "median_s": statistics.median(times), "worst_s": max(times)}
        found.setdefault("kill", {})[kind] = row
    return found


def _verdict(reached: bool) -> str:
    return "reached" if reached else "missed"


def _throughput(found: dict[str, Any]) -> str:
    head = ["cell", "brokers", "msg/s", "p50 ms", "p99 ms", "CPU µs/msg", "ratio", "goal: 2"]
    lines = []
    for cell, kinds in found.items():
        for kind, row in kinds.items():
            line = [cell, kind, f"{row['per_second']:,.0f}", f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}"]
            line.append(f"{row['cpu_us']:.1f}")
            if kind == "java" or "java" not in kinds:
                line += ["–", "–"]
            else:
                ratio = row["per_second"] / kinds["java"]["per_second"]
                line += [f"{ratio:.2f}", _verdict(ratio >= RATIO_GOAL)]
            lines.append(line)
    return result_files.table(head, lines)


def _kill(found: dict[str, Any]) -> str:
    head = ["brokers", "times", "median s", "worst s", "share of RocketMQ's median", "goal: 0.1"]
    lines = []
    for kind, row in found.items():
        line = [kind, str(row["count"]), f"{row['median_s']:.3f}", f"{row['worst_s']:.3f}"]
        if kind == "java" or "java" not in found:
            line += ["–", "–"]
        else:
            share = row["median_s"] / found["java"]["median_s"]
            line += [f"{share:.3f}", _verdict(share <= SHARE_GOAL)]
        lines.append(line)
    return result_files.table(head, lines)


def describe(summary: dict[str, Any], plan: Plan) -> tuple[str, str]:
    """The introduction and the tables."""
    about = (
        "Three brokers with a DLedger log\n"
        f"Medians of {plan['rounds']} rounds (the order changes from round to round), one group running at a"
        f" time, with a nameserver of ours; {plan['seconds']:g} s a measurement of sends after"
        f" {plan['warmup_s']:g} s of the same load, and {plan['java_warmup_s']:g} s before the first for"
        " Java's JIT compiler. Settings are RocketMQ's defaults; its brokers have a heap of 1 GB each and the"
        " G1 collector."
    )
    parts = []
    if "throughput" in summary:
        parts += [
            "## Sends",
            _throughput(summary["throughput"]),
            "1 KB bodies. A send is acknowledged when two of the three brokers have it: with synchronous"
            " flush ours have synced it; RocketMQ's DLedger brokers acknowledge what is written, whatever the"
            " setting. The brokers and the load share the machine. CPU is that of all three brokers.",
        ]
    if "kill" in summary:
        parts += [
            "## First acknowledged send after kill -9 of the leader",
            _kill(summary["kill"]),
            "RocketMQ's Java producer starts a send every 5 ms, whatever the result of the others. It"
            " requests routes every 100 ms; its other settings are defaults."
            f" {SILENCE_MAX_S:g} s mean that no send was acknowledged within that time.",
        ]
    return about, "\n\n".join(parts)


def has_java() -> bool:
    """Whether there is a Java producer."""
    try:
        java_library()
    except JavaMissingError as error:
        print(f"{error}: no Java producer", flush=True)
        return False
    return True


def main() -> int:
    parser = disk_runs.parser("dledger_groups", __doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part (repeatable)")
    parser.add_argument("--kills", type=int, help=f"of each kind (default {FULL['kill']['ours']})")
    parser.add_argument(
        "--add-to",
        type=Path,
        metavar="JSON",
        help="an earlier result of this machine, whose parts are kept if this run does not measure them",
    )
    options = parser.parse_args()
    plan = {**(QUICK if options.quick else FULL)}
    if options.kills:
        plan["kill"] = dict.fromkeys(plan["kill"], options.kills)
    earlier = json.loads(options.add_to.read_text())["measurements"] if options.add_to else {}
    parts = options.only or PARTS

    def measure(program: Path, names: list[str], folder: Path, plan: Plan) -> dict[str, Any]:
        found = dict(earlier)
        if "throughput" in parts:
            found["throughput"] = measure_throughput(program, names, folder, plan)
        if "kill" in parts and has_java():
            found["kill"] = measure_kill(names, folder, plan)
        return found

    return disk_runs.main(
        "dledger_groups",
        options,
        plan,
        needed_bytes=0,
        whole=set(PARTS) <= {*parts, *earlier} and not options.kills,
        measure=measure,
        summarise=summarise,
        describe=describe,
    )


if __name__ == "__main__":
    sys.exit(main())
