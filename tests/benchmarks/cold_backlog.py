"""A consumer reads a backlog that is not in memory while 64 producers send: how much slower sends become.

For each broker: fill a topic, stop the broker, empty the page cache, start the broker, warm it up with sends
and with pulls of another topic; then measure sends alone, and again while a consumer reads the backlog from
its first message to its last. The 64 producers send as fast as they are answered, and then at a fixed
rate. Each broker is the master of a group of its own under a controller, so that ours needs its write lease.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks import disk_runs, result_files
from tests.benchmarks.disk_runs import RECORD_BYTES, STORED_BYTES, Plan, fresh_folder
from tests.benchmarks.machine import settle
from tests.benchmarks.single_broker import RunningLoad, SingleBroker

PRODUCERS = 64
QUEUES = 8
BACKLOG, SENDS, WARM = "bench-backlog", "bench-send", "bench-warm"
WARM_MESSAGES = 50_000
FILL_TIMEOUT_S = 7200.0
GOAL = 2.0
LEAD_S = 2.0
"""How long producers send before they are measured."""
CLOSED_PER_S = 70_000
"""About what both take at most in the closed loop; for the disk's sake."""
FULL: Plan = {
    "backlog_gb": 20.0,
    "rounds": 1,
    "alone_s": 30.0,
    "read_max_s": 900.0,
    "java_warmup_s": 30.0,
    "paced_per_s": 6_400,
}
QUICK: Plan = {**FULL, "backlog_gb": 2.0, "alone_s": 8.0, "read_max_s": 120.0, "java_warmup_s": 10.0}


def _warm_up(lone: SingleBroker, program: Path, seconds: float) -> None:
    _send(lone, program, 0, seconds * 0.7).result(end=False)
    pull = lone.pull(program, WARM, queues=QUEUES, connections=1, depth=QUEUES, seconds=seconds * 0.3)
    pull.result(end=False)


def _send(lone: SingleBroker, program: Path, rate: float, seconds: float) -> RunningLoad:
    lone.wait_visible(SENDS, QUEUES)
    return lone.send(
        program,
        SENDS,
        queues=QUEUES,
        connections=PRODUCERS,
        depth=1,
        warmup=LEAD_S,
        seconds=seconds,
        rate=rate,
    )


def _fill(lone: SingleBroker, program: Path, topic: str, count: int) -> None:
    lone.create_topic(topic, QUEUES)
    load = lone.send(program, topic, queues=QUEUES, connections=1, depth=64, count=count)
    load.result(end=False, timeout_s=FILL_TIMEOUT_S)
    lone.wait_visible(topic, QUEUES)


def _round(lone: SingleBroker, program: Path, rate: float, plan: Plan) -> dict[str, Any]:
    lone.restart_broker()
    _warm_up(lone, program, plan["java_warmup_s"] if lone.kind == "java" else plan["java_warmup_s"] / 10)
    settle()
    epoch = lone.group.epoch()
    alone = _send(lone, program, rate, plan["alone_s"]).result(end=False)
    settle()
    sends = _send(lone, program, rate, plan["read_max_s"] + 60)
    time.sleep(LEAD_S)
    read_before, started = lone.read_bytes(), time.monotonic()
    reader = lone.pull(program, BACKLOG, queues=QUEUES, connections=1, depth=QUEUES, once=1)
    try:
        whole = reader.ended(plan["read_max_s"])
        took = time.monotonic() - started
        read = reader.result(end=False) if whole else {}
        beside = sends.result()
    finally:
        for load in (reader, sends):
            if load.alive():
                load.kill()
    from_disk = lone.read_bytes() - read_before
    return {
        "alone": alone,
        "beside": beside,
        "reader": {
            "whole": whole,
            "seconds": round(took, 2),
            "messages": read.get("messages"),
            "read_from_disk_gb": round(from_disk / 1e9, 2),
            "mb_per_s": round(read["messages"] * RECORD_BYTES / took / 1e6, 1) if whole else None,
        },
        "elections": lone.group.epoch() - epoch,
    }


def measure(program: Path, names: list[str], folder: Path, plan: Plan) -> dict[str, Any]:
    """Load -> kind -> one result a round."""
    found: dict[str, dict[str, list[Any]]] = {}
    count = int(plan["backlog_gb"] * 1e9 / RECORD_BYTES)
    for name in names:
        with SingleBroker(name, fresh_folder(folder)) as lone:
            lone.create_topic(SENDS, QUEUES)
            print(f"{name}: filling {plan['backlog_gb']:g} GB …", flush=True)
            _fill(lone, program, BACKLOG, count)
            _fill(lone, program, WARM, WARM_MESSAGES)
            for _ in range(plan["rounds"]):
                for load, rate in (
                    ("closed loop", 0),
                    (f"{plan['paced_per_s']:,} a second", plan["paced_per_s"]),
                ):
                    result = _round(lone, program, rate, plan)
                    found.setdefault(load, {}).setdefault(name, []).append(result)
                    print(
                        f"{name:5} {load:16} p99 alone {result['alone']['p99_ms']:.2f} ms,"
                        f" beside the reader {result['beside']['p99_ms']:.2f} ms; {result['reader']};"
                        f" refused {result['beside']['refused']}",
                        flush=True,
                    )
    return found


def summarise(measured: dict[str, Any]) -> dict[str, Any]:
    """Medians by load and kind."""
    found: dict[str, Any] = {}
    for load, kinds in measured.items():
        for kind, rounds in kinds.items():
            row: dict[str, Any] = {}
            for moment in ("alone", "beside"):
                for field in ("p50_ms", "p99_ms", "max_ms", "per_second"):
                    row[f"{moment}_{field}"] = statistics.median(r[moment][field] for r in rounds)
            row["p99_factor"] = round(row["beside_p99_ms"] / row["alone_p99_ms"], 2)
            row["refused"] = sum(r["alone"]["refused"] + r["beside"]["refused"] for r in rounds)
            row["elections"] = sum(r["elections"] for r in rounds)
            row["read_seconds"] = statistics.median(r["reader"]["seconds"] for r in rounds)
            row["read_whole"] = all(r["reader"]["whole"] for r in rounds)
            row["read_from_disk_gb"] = statistics.median(r["reader"]["read_from_disk_gb"] for r in rounds)
            found.setdefault(load, {})[kind] = row
    return found


def describe(summary: dict[str, Any], plan: Plan) -> tuple[str, str]:
    """Introduction and tables."""
    about = (
        f"Sends while a consumer reads a cold backlog of {plan['backlog_gb']:g} GB\n"
        f"{PRODUCERS} producers with one send each in flight, bodies of 1 KB, asynchronous flush; one"
        f" consumer, {QUEUES} pulls in flight. The master is the only broker of its group, under one"
        " controller. The page cache is emptied before each measurement. With a fixed rate a send that has to"
        " wait for its turn counts from the moment at which it was due. `From disk` is what was read for the"
        " broker's process meanwhile. Medians of"
        f" {plan['rounds']} round{'s' if plan['rounds'] > 1 else ''}."
    )
    head = ["sends", "broker", "sends/s alone", "beside", "p99 alone, ms", "beside", "factor", "max, ms"]
    head += ["backlog read in, s", "from disk, GB", "refused", "elections"]
    lines = []
    for load, kinds in summary.items():
        for kind, row in kinds.items():
            lines.append(
                [
                    load,
                    "ours" if kind == "ours" else "RocketMQ",
                    f"{row['alone_per_second']:,.0f}",
                    f"{row['beside_per_second']:,.0f}",
                    f"{row['alone_p99_ms']:.2f}",
                    f"{row['beside_p99_ms']:.2f}",
                    f"{row['p99_factor']:.2f}",
                    f"{row['beside_max_ms']:.0f}",
                    f"{row['read_seconds']:.0f}"
                    if row["read_whole"]
                    else f"not in {row['read_seconds']:.0f}",
                    f"{row['read_from_disk_gb']:.1f}",
                    str(row["refused"]),
                    str(row["elections"]),
                ]
            )
    verdicts = []
    for load, kinds in summary.items():
        if "ours" in kinds:
            row = kinds["ours"]
            reached = row["p99_factor"] < GOAL and not row["refused"] and not row["elections"]
            verdicts.append(
                f"- {load}: the 99th percentile below {GOAL:g} times that without the reader, and no lease"
                f" lost (a send refused, an election): {'reached' if reached else 'missed'}"
                f" ({row['p99_factor']:.2f}; {row['refused']} refused, {row['elections']} elections)"
            )
    return about, "\n\n".join([result_files.table(head, lines), "\n".join(verdicts)])


def main() -> int:
    parser = disk_runs.parser("cold_backlog", __doc__)
    parser.add_argument("--gb", type=float, help=f"size of the backlog (default {FULL['backlog_gb']:g})")
    parser.add_argument("--rounds", type=int, help=f"default {FULL['rounds']}")
    options = parser.parse_args()
    plan = {**(QUICK if options.quick else FULL)}
    plan["backlog_gb"] = options.gb or plan["backlog_gb"]
    plan["rounds"] = options.rounds or plan["rounds"]
    loaded_s = plan["alone_s"] + plan["java_warmup_s"] + plan["backlog_gb"] * 6
    needed = plan["backlog_gb"] * 1e9 * STORED_BYTES / RECORD_BYTES
    needed += plan["rounds"] * loaded_s * CLOSED_PER_S * STORED_BYTES
    return disk_runs.main(
        "cold_backlog",
        options,
        plan,
        needed_bytes=needed,
        whole=plan["backlog_gb"] >= FULL["backlog_gb"],
        measure=measure,
        summarise=summarise,
        describe=describe,
    )


if __name__ == "__main__":
    sys.exit(main())
