"""Measures the throughput of first sends to queues without files, and their effect on other producers.

In each round, for each broker: one connection with 64 sends in flight sends one message to each of 5,000 new
queues of a topic, then the first and the second message (to another queue) of 1,000 topics, which are created
by their first message, and last one message to each of 20,000 new queues. A broker that stops answering has
failed in that measurement, and a new broker takes the next one. Other producers send to an existing topic at
a fixed rate, before and meanwhile. Each broker is the master of its own group under a controller, so that
ours needs its write lease."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks import disk_runs, result_files
from tests.benchmarks.cells import LoadFailedError
from tests.benchmarks.disk_runs import Plan, fresh_folder
from tests.benchmarks.machine import flush_dirty_pages
from tests.benchmarks.single_broker import RunningLoad, SingleBroker, max_offset
from tests.support.process import wait_until

OLD, OLD_QUEUES = "bench-send", 8
OTHERS = 4
IN_FLIGHT = 64
LEAD_S = 2.0
"""The time for which the other producers send before the measurement."""
FOREVER_S = 100_000.0
VISIBLE_TIMEOUT_S = 120
QUEUE_BYTES = 64 << 10
"""The largest size on disk of a new queue."""
FULL: Plan = {
    "rounds": 3,
    "queues": [5_000, 20_000],
    "topics": 1_000,
    "others_per_s": 1_000,
    "before_s": 10.0,
    "java_warmup_s": 20.0,
}
Cell = tuple[str, str, dict[str, int], int]
"""(name, topic, options of the load, queues of a topic to create) of a measurement."""
FAILURES = (AssertionError, OSError, LoadFailedError, subprocess.TimeoutExpired)
"""How a broker that stops answering ends a measurement."""
QUICK: Plan = {**FULL, "rounds": 1, "queues": [1_000], "topics": 200, "before_s": 4.0, "java_warmup_s": 8.0}


def _others(broker: SingleBroker, program: Path, plan: Plan, warmup_s: float, seconds: float) -> RunningLoad:
    broker.wait_visible(OLD, OLD_QUEUES)
    return broker.send(
        program,
        OLD,
        queues=OLD_QUEUES,
        connections=OTHERS,
        depth=16,
        rate=plan["others_per_s"],
        warmup=warmup_s,
        seconds=seconds,
    )


def _cells(plan: Plan) -> Iterator[Cell]:
    smallest, *larger = plan["queues"]
    yield _queues_cell(smallest)
    count = plan["topics"]
    for which, queue in (("first", 0), ("second", 1)):
        options = {"topics": count, "count": count, "queue": queue}
        yield f"{count:,} new topics, {which} message of each", "bench-auto-", options, 0
    for number in larger:
        yield _queues_cell(number)


def _queues_cell(number: int) -> Cell:
    return f"{number:,} new queues", f"bench-{number}", {"queues": number, "count": number}, number


def _measured(
    broker: SingleBroker, program: Path, plan: Plan, topic: str, options: dict[str, int]
) -> dict[str, Any]:
    flush_dirty_pages()
    epoch = broker.group.epoch()
    others = _others(broker, program, plan, FOREVER_S, FOREVER_S)
    try:
        time.sleep(LEAD_S)
        others.open_window()
        started = time.monotonic()
        load = broker.send(program, topic, connections=1, depth=IN_FLIGHT, fresh=1, **options)
        found = load.result(end=False)
        if not found["refused"]:  # otherwise the last message may have been rejected
            _wait_visible(broker, topic, options)
        visible_s = time.monotonic() - started
        beside = others.result()
    finally:
        if others.alive():
            others.kill()
    return {
        "new": found,
        "others": beside,
        "visible_s": round(visible_s, 3),
        "elections": broker.group.epoch() - epoch,
    }


def _wait_visible(broker: SingleBroker, topic: str, options: dict[str, int]) -> None:
    if "queues" in options:
        last, queue = topic, options["queues"] - 1
    else:
        last, queue = f"{topic}{options['topics'] - 1:05d}", options["queue"]
    wait_until(
        lambda: max_offset(broker.broker.address, last, queue) > 0,
        timeout_s=VISIBLE_TIMEOUT_S,
        what=f"{broker.kind} shows the last message",
    )


def measure(program: Path, names: list[str], folder: Path, plan: Plan) -> dict[str, Any]:
    """Results by cell and kind, one for each round; each round has new brokers."""
    found: dict[str, dict[str, list[Any]]] = {}
    for number in range(plan["rounds"]):
        for name in names if number % 2 == 0 else names[::-1]:
            cells = list(_cells(plan))
            while cells:
                with SingleBroker(name, fresh_folder(folder)) as broker:
                    for cell, result in _measure_on(broker, program, plan, cells):
                        found.setdefault(cell, {}).setdefault(name, []).append(result)
                        print(
                            f"round {number + 1}/{plan['rounds']}  {cell:40} {name:5} {_line(result)}",
                            flush=True,
                        )
    return found


def _measure_on(
    broker: SingleBroker, program: Path, plan: Plan, cells: list[Cell]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measures `cells`, and takes each away, until none is left or the broker has failed."""
    broker.create_topic(OLD, OLD_QUEUES)
    warmup_s = plan["java_warmup_s"] if broker.kind == "java" else plan["java_warmup_s"] / 10
    warm = broker.send(program, OLD, queues=OLD_QUEUES, connections=1, depth=64, seconds=warmup_s)
    warm.result(end=False)
    flush_dirty_pages()
    before = _others(broker, program, plan, LEAD_S, plan["before_s"]).result(end=False)
    while cells:
        cell, topic, options, queues = cells.pop(0)
        try:
            if queues:
                broker.create_topic(topic, queues)
            result = {"before": before, **_measured(broker, program, plan, topic, options)}
        except FAILURES as error:
            yield cell, {"failure": (str(error) or type(error).__name__).splitlines()[0][:200]}
            return
        yield cell, result


def _line(result: dict[str, Any]) -> str:
    if "failure" in result:
        return f"failed: {result['failure']}"
    new, others = result["new"], result["others"]
    return (
        f"{new['per_second']:>9,.0f}/s  p50 {new['p50_ms']:.1f} ms;"
        f" others' p99 {result['before']['p99_ms']:.2f} -> {others['p99_ms']:.2f} ms;"
        f" rejected {new['refused']} + {others['refused']}"
    )


def summarise(measured: dict[str, Any]) -> dict[str, Any]:
    """The medians by cell and kind; of a broker that failed in any round, only the failures."""
    found: dict[str, Any] = {}
    for cell, kinds in measured.items():
        for kind, rounds in kinds.items():
            failures = [r["failure"] for r in rounds if "failure" in r]
            if failures:
                found.setdefault(cell, {})[kind] = {"rounds": len(rounds), "failures": failures}
                continue
            found.setdefault(cell, {})[kind] = {
                "per_second": statistics.median(r["new"]["per_second"] for r in rounds),
                "p50_ms": statistics.median(r["new"]["p50_ms"] for r in rounds),
                "p99_ms": statistics.median(r["new"]["p99_ms"] for r in rounds),
                "visible_s": statistics.median(r["visible_s"] for r in rounds),
                "others_p99_before_ms": statistics.median(r["before"]["p99_ms"] for r in rounds),
                "others_p99_ms": statistics.median(r["others"]["p99_ms"] for r in rounds),
                "others_max_ms": max(r["others"]["max_ms"] for r in rounds),
                "refused": sum(r["new"]["refused"] + r["others"]["refused"] for r in rounds),
                "elections": sum(r["elections"] for r in rounds),
            }
    return found


def describe(summary: dict[str, Any], plan: Plan) -> tuple[str, str]:
    """The introduction and the tables."""
    about = (
        "First sends to new queues and new topics\n"
        f"{IN_FLIGHT} sends in flight on one connection, bodies of 1 KB, asynchronous flush;"
        f" meanwhile {plan['others_per_s']:,} sends a second on {OTHERS} connections to a topic that has its"
        " files; their latencies count from the time at which they were due. The master is the only broker"
        " of its group, under one controller. `Visible` is the time at which the last message can be read:"
        " RocketMQ acknowledges it before it creates the file of the queue, ours after. Medians of"
        f" {plan['rounds']} round{'s' if plan['rounds'] > 1 else ''}, each with new brokers."
    )
    head = ["first sends", "ours/s", "RocketMQ/s", "ratio", "ours visible in, s", "RocketMQ", "ours p99, ms"]
    head += ["RocketMQ", "others' p99: ours, ms", "RocketMQ", "rejected by ours", "elections"]
    lines, verdicts = [], []
    for cell, kinds in summary.items():
        for kind, name in (("ours", "ours"), ("java", "RocketMQ")):
            if failures := kinds.get(kind, {}).get("failures"):
                count = f"{len(failures)} of {kinds[kind]['rounds']} rounds"
                verdicts.append(f"- {cell}: {name} failed in {count}: {failures[0]}")
        measured = {kind: one for kind, one in kinds.items() if "failures" not in one}
        ours, java = measured.get("ours"), measured.get("java")

        def both(
            field: str,
            form: str,
            ours: dict[str, Any] | None = ours,
            java: dict[str, Any] | None = java,
        ) -> list[str]:
            return [format(one[field], form) if one else "–" for one in (ours, java)]

        ratio = ours["per_second"] / java["per_second"] if ours and java else None
        lines.append(
            [
                cell,
                *both("per_second", ",.0f"),
                "–" if ratio is None else f"{ratio:.2f}",
                *both("visible_s", ".2f"),
                *both("p99_ms", ".1f"),
                *both("others_p99_ms", ".2f"),
                str(ours["refused"]) if ours else "–",
                str(ours["elections"]) if ours else "–",
            ]
        )
        if ratio is not None and ours is not None:
            reached = ratio >= 1 and not ours["refused"] and not ours["elections"]
            verdicts.append(
                f"- {cell}: never slower than RocketMQ, and no lease lost (a send rejected, an election):"
                f" {'reached' if reached else 'missed'}"
                f" ({ratio:.2f}; {ours['refused']} rejected, {ours['elections']} elections)"
            )
    return about, "\n\n".join([result_files.table(head, lines), "\n".join(verdicts)])


def main() -> int:
    parser = disk_runs.parser("new_queues", __doc__)
    parser.add_argument("--rounds", type=int, help=f"default {FULL['rounds']}")
    parser.add_argument("--queues", type=int, action="append", help="new queues (repeatable)")
    parser.add_argument("--topics", type=int, help=f"default {FULL['topics']}")
    options = parser.parse_args()
    plan = {**(QUICK if options.quick else FULL)}
    plan["rounds"] = options.rounds or plan["rounds"]
    plan["queues"] = options.queues or plan["queues"]
    plan["topics"] = options.topics or plan["topics"]
    queues = sum(plan["queues"]) + 2 * plan["topics"]
    return disk_runs.main(
        "new_queues",
        options,
        plan,
        needed_bytes=queues * QUEUE_BYTES + 10e9,
        whole=set(FULL["queues"]) <= set(plan["queues"]) and plan["topics"] >= FULL["topics"],
        measure=measure,
        summarise=summarise,
        describe=describe,
    )


if __name__ == "__main__":
    sys.exit(main())
