"""Measures memory and start-up time with many pending timer messages.

For each broker and each number of messages: send them, due in the two days from an hour ahead on; wait until
all are in the wheel, and measure the memory; then, repeatedly, stop the broker cleanly or kill it (kill -9),
empty the page cache, start the broker, and measure the time until a send is acknowledged, the time until all
messages are in the wheel again, and the memory then."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks import disk_runs, result_files
from tests.benchmarks.disk_runs import Plan, fresh_folder
from tests.benchmarks.machine import flush_dirty_pages, memory_dict
from tests.benchmarks.peers import QUEUES, Peer
from tests.benchmarks.single_broker import RunningLoad, drop_page_cache, load_command
from tests.benchmarks.startup import TOPIC, first_acknowledged_s
from tests.support.process import wait_until
from tests.support.remoting import call

GET_BROKER_RUNTIME_INFO = 28
BODY_BYTES = 100
STORED_BYTES = 600
"""Bytes of one message in the log, with its unit in the queue and in the timer log."""
LEAD_S = 3600
SPREAD_S = 2 * 24 * 3600
"""RocketMQ takes timer messages for three days ahead at most."""
FILL_TIMEOUT_S = 7200.0
WHEEL_TIMEOUT_S = 7200.0
STOP_TIMEOUT_S = 600.0
KINDS = ("clean stop", "kill -9")
FULL: Plan = {"pending": [1_000_000, 10_000_000], "rounds": 3}
QUICK: Plan = {"pending": [100_000], "rounds": 1}


def all_in_wheel(peer: Peer) -> bool:
    """Whether the wheel has all messages of the timer topic. RocketMQ does not know it while it starts."""
    response = call(peer.cluster.broker_address, GET_BROKER_RUNTIME_INFO, timeout_s=120)
    if response.code != 0 or not response.body:
        return False
    return int(json.loads(response.body)["table"]["timerOffsetBehind"]) == 0


def _wait_in_wheel(peer: Peer) -> None:
    wait_until(
        lambda: all_in_wheel(peer),
        timeout_s=WHEEL_TIMEOUT_S,
        what=f"{peer.name} has all messages in the wheel",
    )


def _fill(peer: Peer, program: Path, pending: int) -> None:
    cluster = peer.cluster
    due_ms = int((time.time() + LEAD_S) * 1000)
    options: dict[str, str | int | float] = {
        "queues": QUEUES, "connections": 4, "depth": 64, "count": pending, "due": due_ms,
        "spread": SPREAD_S, "body": BODY_BYTES, "stall": 120,
    }  # fmt: skip
    command = load_command(
        program,
        cluster.broker_address,
        cluster.broker_process.pid,
        "send",
        TOPIC,
        broker=cluster.broker_name,
        **options,
    )
    RunningLoad(command).result(end=False, timeout_s=FILL_TIMEOUT_S)


def _stop(peer: Peer, kind: str) -> float:
    """Stops or kills the broker; returns the seconds of a clean stop."""
    flush_dirty_pages()
    process = peer.cluster.broker_process
    if kind == "kill -9":
        process.kill()
        return 0.0
    started = time.monotonic()
    process.stop(timeout_s=STOP_TIMEOUT_S)
    return time.monotonic() - started


def _pending(name: str, program: Path, folder: Path, pending: int, plan: Plan) -> dict[str, Any]:
    peer = Peer(name, folder)
    found: dict[str, Any] = {"starts": {kind: [] for kind in KINDS}}
    try:
        peer.cluster.start()
        peer.create_topic(TOPIC)
        found["empty"] = memory_dict(peer.broker_pid)
        print(f"{name}: sending {pending:,} timer messages …", flush=True)
        _fill(peer, program, pending)
        _wait_in_wheel(peer)
        found["filled"] = memory_dict(peer.broker_pid)
        for number in range(plan["rounds"]):
            for kind in KINDS:
                stopped_s = _stop(peer, kind)
                drop_page_cache(folder)
                began = time.monotonic()
                seconds = first_acknowledged_s(peer.cluster)
                _wait_in_wheel(peer)
                start = {
                    "seconds": round(seconds, 3),
                    "in_wheel_s": round(time.monotonic() - began, 3),
                    "stop_s": round(stopped_s, 3),
                    **memory_dict(peer.broker_pid),
                }
                found["starts"][kind].append(start)
                print(
                    f"round {number + 1}/{plan['rounds']}  {pending:10,} pending  {kind:10} {name:5}"
                    f" {start['seconds']:8.2f} s, all in the wheel after {start['in_wheel_s']:.2f} s,"
                    f" {start['anonymous_mb']:.0f} MB",
                    flush=True,
                )
    finally:
        peer.cluster.abandon()
        shutil.rmtree(folder, ignore_errors=True)
    return found


def measure(program: Path, names: list[str], folder: Path, plan: Plan) -> dict[str, Any]:
    """Results by number of messages and peer. Only one store exists at a time."""
    return {
        f"{pending:,}": {name: _pending(name, program, fresh_folder(folder), pending, plan) for name in names}
        for pending in plan["pending"]
    }


def summarise(measured: dict[str, Any]) -> dict[str, Any]:
    """Memory and the medians of the starts."""
    found: dict[str, Any] = {}
    for pending, peers in measured.items():
        for name, one in peers.items():
            summary: dict[str, Any] = {
                "empty_mb": one["empty"]["anonymous_mb"],
                "anonymous_mb": one["filled"]["anonymous_mb"],
                "rss_mb": one["filled"]["rss_mb"],
            }
            for kind, starts in one["starts"].items():
                for field in ("seconds", "in_wheel_s", "stop_s", "anonymous_mb"):
                    summary[f"{kind}: {field}"] = round(statistics.median(s[field] for s in starts), 3)
                summary[f"{kind}: worst"] = max(start["seconds"] for start in starts)
            found.setdefault(pending, {})[name] = summary
    return found


def describe(summary: dict[str, Any], plan: Plan) -> tuple[str, str]:
    """The introduction and the tables."""
    about = (
        "Pending timer messages\n"
        f"Bodies of {BODY_BYTES} bytes, due evenly in two days. Memory is anonymous memory, without pages of"
        " mapped files; RocketMQ's heap has a fixed size of 2 GB. Start-up time: from the start of the"
        " process until a send is acknowledged, and until all messages are in the wheel; the page cache is"
        f" empty before. Medians of {plan['rounds']} start{'s' if plan['rounds'] > 1 else ''} of each kind."
    )
    head = ["", "ours", "RocketMQ"]
    rows = [
        ("memory before, MB", "empty_mb", ",.0f"),
        ("memory with all pending, MB", "anonymous_mb", ",.0f"),
        *(
            (f"{kind}: {text}", f"{kind}: {field}", form)
            for kind in KINDS
            for text, field, form in (
                ("start, s", "seconds", ".2f"),
                ("slowest start, s", "worst", ".2f"),
                ("all in the wheel after, s", "in_wheel_s", ".2f"),
                ("memory then, MB", "anonymous_mb", ",.0f"),
            )
        ),
        ("clean stop, s", "clean stop: stop_s", ".2f"),
    ]
    tables, verdicts = [], []
    for pending, peers in summary.items():
        lines = [
            [
                text,
                *(format(peers[name][field], form) if name in peers else "–" for name in ("ours", "java")),
            ]
            for text, field, form in rows
        ]
        tables.append(f"## {pending} pending\n\n{result_files.table(head, lines)}")
        if "ours" in peers and "java" in peers:
            ours, java = peers["ours"], peers["java"]
            for kind in KINDS:
                ratio = ours[f"{kind}: seconds"] / java[f"{kind}: seconds"]
                verdict = "reached" if ratio <= 1 else "missed"
                verdicts.append(
                    f"- {pending} pending, {kind}: never slower than RocketMQ: {verdict} ({ratio:.2f} of its"
                    " time)"
                )
            verdict = "reached" if ours["anonymous_mb"] <= java["anonymous_mb"] else "missed"
            verdicts.append(f"- {pending} pending: no more memory than RocketMQ: {verdict}")
    return about, "\n\n".join([*tables, "\n".join(verdicts)])


def main() -> int:
    parser = disk_runs.parser("pending_timers", __doc__)
    parser.add_argument("--rounds", type=int, help=f"default {FULL['rounds']}")
    parser.add_argument("--pending", type=int, action="append", help="number of messages (repeatable)")
    options = parser.parse_args()
    plan = {**(QUICK if options.quick else FULL)}
    plan["rounds"] = options.rounds or plan["rounds"]
    plan["pending"] = options.pending or plan["pending"]
    return disk_runs.main(
        "pending_timers",
        options,
        plan,
        needed_bytes=max(plan["pending"]) * STORED_BYTES,
        whole=set(FULL["pending"]) <= set(plan["pending"]) and plan["rounds"] >= FULL["rounds"],
        measure=measure,
        summarise=summarise,
        describe=describe,
    )


if __name__ == "__main__":
    sys.exit(main())
