"""Measures how much slower the sends of 64 producers become while a consumer reads a backlog that is not in
memory.

For each broker: fill a topic, stop the broker, empty the page cache, start the broker, touch the memory that
is free now, and warm the broker up with sends and with pulls of another topic. Then measure sends alone, and
again while a consumer reads the backlog from its first message, to the last one or until the time is over.
The 64 producers first send in a closed loop, then at a fixed rate. Each broker is the master of its own group
under a controller, so that ours needs its write lease."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks import disk_runs, result_files
from tests.benchmarks.disk_runs import RECORD_BYTES, STORED_BYTES, Plan, fresh_folder
from tests.benchmarks.machine import OccupiedMemory, flush_dirty_pages
from tests.benchmarks.single_broker import RunningLoad, SingleBroker

PRODUCERS = 64
QUEUES = 8
BACKLOG, SENDS, WARM = "bench-backlog", "bench-send", "bench-warm"
WARM_MESSAGES = 50_000
FILL_TIMEOUT_S = 7200.0
GOAL = 2.0
LEAD_S = 2.0
"""The time for which producers send before the measurement."""
CLOSED_PER_S = 70_000
"""About the largest rate of both brokers in the closed loop; limits the space needed on the disk."""
FULL: Plan = {
    "backlog_gb": 20.0,
    "rounds": 1,
    "alone_s": 30.0,
    "read_max_s": 900.0,
    "java_warmup_s": 30.0,
    "paced_per_s": 6_400,
}
QUICK: Plan = {**FULL, "backlog_gb": 2.0, "alone_s": 8.0, "read_max_s": 120.0, "java_warmup_s": 10.0}


def _warm_up(broker: SingleBroker, program: Path, seconds: float) -> None:
    _send(broker, program, 0, seconds * 0.7).result(end=False)
    pull = broker.pull(program, WARM, queues=QUEUES, connections=1, depth=QUEUES, seconds=seconds * 0.3)
    pull.result(end=False)


def _send(broker: SingleBroker, program: Path, rate: float, seconds: float) -> RunningLoad:
    broker.wait_visible(SENDS, QUEUES)
    return broker.send(
        program,
        SENDS,
        queues=QUEUES,
        connections=PRODUCERS,
        depth=1,
        warmup=LEAD_S,
        seconds=seconds,
        rate=rate,
    )


def _fill(broker: SingleBroker, program: Path, topic: str, count: int) -> None:
    broker.create_topic(topic, QUEUES)
    load = broker.send(program, topic, queues=QUEUES, connections=1, depth=64, count=count)
    load.result(end=False, timeout_s=FILL_TIMEOUT_S)
    broker.wait_visible(topic, QUEUES)


def _round(broker: SingleBroker, program: Path, rate: float, plan: Plan) -> dict[str, Any]:
    broker.restart_broker()
    # Without this, a virtual machine stood for up to 1.3 s in the next half minute, with a third of its CPU
    # time stolen: presumably the host takes back the memory that the page cache had.
    occupied = OccupiedMemory(broker.folder)
    occupied.occupy()
    _warm_up(broker, program, plan["java_warmup_s"] if broker.kind == "java" else plan["java_warmup_s"] / 10)
    flush_dirty_pages()
    epoch = broker.group.epoch()
    alone = _send(broker, program, rate, plan["alone_s"]).result(end=False)
    flush_dirty_pages()
    sends = _send(broker, program, rate, plan["read_max_s"] + 60)
    time.sleep(LEAD_S)
    read_before, started = broker.read_bytes(), time.monotonic()
    reader = broker.pull(program, BACKLOG, queues=QUEUES, connections=1, depth=QUEUES, once=1)
    try:
        whole = reader.ended(plan["read_max_s"])
        took = time.monotonic() - started
        read = reader.result(end=False) if whole else {}
        beside = sends.result()
    finally:
        for load in (reader, sends):
            if load.alive():
                load.kill()
    from_disk = broker.read_bytes() - read_before
    occupied.release()
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
        "elections": broker.group.epoch() - epoch,
    }


def measure(program: Path, names: list[str], folder: Path, plan: Plan) -> dict[str, Any]:
    """Results by load and kind, one for each round."""
    found: dict[str, dict[str, list[Any]]] = {}
    count = int(plan["backlog_gb"] * 1e9 / RECORD_BYTES)
    for name in names:
        with SingleBroker(name, fresh_folder(folder)) as broker:
            broker.create_topic(SENDS, QUEUES)
            print(f"{name}: filling {plan['backlog_gb']:g} GB …", flush=True)
            _fill(broker, program, BACKLOG, count)
            _fill(broker, program, WARM, WARM_MESSAGES)
            for _ in range(plan["rounds"]):
                for load, rate in (
                    ("closed loop", 0),
                    (f"{plan['paced_per_s']:,} a second", plan["paced_per_s"]),
                ):
                    result = _round(broker, program, rate, plan)
                    found.setdefault(load, {}).setdefault(name, []).append(result)
                    print(
                        f"{name:5} {load:16} p99 alone {result['alone']['p99_ms']:.2f} ms,"
                        f" with the reader {result['beside']['p99_ms']:.2f} ms; {result['reader']};"
                        f" rejected {result['beside']['refused']}",
                        flush=True,
                    )
    return found


def summarise(measured: dict[str, Any]) -> dict[str, Any]:
    """The medians by load and kind."""
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
    """The introduction and the tables."""
    about = (
        f"Sends while a consumer reads a cold backlog of {plan['backlog_gb']:g} GB\n"
        f"{PRODUCERS} producers with one send each in flight, bodies of 1 KB, asynchronous flush; one"
        f" consumer, {QUEUES} pulls in flight. The master is the only broker of its group, under one"
        " controller. The page cache is emptied before each measurement, and then filled with other pages,"
        " so that the virtual machine has its memory. At a fixed rate, the latency of a"
        " delayed send counts from the time at which it was due. `From disk` is the number of bytes read for"
        " the broker's process meanwhile. Medians of"
        f" {plan['rounds']} round{'s' if plan['rounds'] > 1 else ''}."
    )
    head = [
        "sends",
        "broker",
        "sends/s alone",
        "with reader",
        "p99 alone, ms",
        "with reader",
        "factor",
        "max, ms",
    ]
    head += ["backlog read in, s", "from disk, GB", "rejected", "elections"]
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
                f" lost (a send rejected, an election): {'reached' if reached else 'missed'}"
                f" ({row['p99_factor']:.2f}; {row['refused']} rejected, {row['elections']} elections)"
            )
    return about, "\n\n".join([result_files.table(head, lines), "\n".join(verdicts)])


def main() -> int:
    parser = disk_runs.parser("cold_backlog", __doc__)
    parser.add_argument("--gb", type=float, help=f"size of the backlog (default {FULL['backlog_gb']:g})")
    parser.add_argument("--rounds", type=int, help=f"default {FULL['rounds']}")
    parser.add_argument(
        "--read-seconds",
        type=float,
        help=f"how long the reader reads at most (default {FULL['read_max_s']:g}; it needs about"
        " 500 s for 20 GB)",
    )
    options = parser.parse_args()
    plan = {**(QUICK if options.quick else FULL)}
    plan["backlog_gb"] = options.gb or plan["backlog_gb"]
    plan["rounds"] = options.rounds or plan["rounds"]
    plan["read_max_s"] = options.read_seconds or plan["read_max_s"]
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
