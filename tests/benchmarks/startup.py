"""Measures start-up time: from the start of the broker's process until its first send is acknowledged.

For each broker and each number of queues: fill a log; then, repeatedly, stop the broker cleanly or kill it
(kill -9) under sends, empty the page cache, start the broker, and try to send until a send is acknowledged.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from tests.benchmarks import disk_runs, result_files
from tests.benchmarks.disk_runs import RECORD_BYTES, STORED_BYTES, Plan, fresh_folder
from tests.benchmarks.machine import flush_dirty_pages
from tests.benchmarks.peers import Peer
from tests.benchmarks.single_broker import RunningLoad, create_topic, drop_page_cache, load_command
from tests.support.cluster import Cluster
from tests.support.remoting import call

TOPIC = "bench-queues"
SEND_MESSAGE_V2 = 310
POLL_S = 0.005
ASK_TIMEOUT_S = 5.0
START_TIMEOUT_S = 1800.0
STOP_TIMEOUT_S = 600.0
FILL_TIMEOUT_S = 7200.0
QUEUE_BYTES = 64 << 10
KINDS = ("clean stop", "kill -9")
FULL: Plan = {"log_gb": 20.0, "queues": [1, 1_000, 20_000], "rounds": 3, "sends_s": 5.0}
QUICK: Plan = {"log_gb": 1.0, "queues": [1, 1_000], "rounds": 1, "sends_s": 2.0}


def _load(cluster: Cluster, program: Path, **options: str | int | float) -> RunningLoad:
    address, pid = cluster.broker_address, cluster.broker_process.pid
    name = cluster.broker_name
    return RunningLoad(load_command(program, address, pid, "send", TOPIC, broker=name, **options))


class BrokerEndedError(Exception):
    """The broker's process ended before it acknowledged a send."""


def first_acknowledged_s(cluster: Cluster) -> float:
    """Starts the broker; returns the seconds until a send is acknowledged.

    Raises:
        BrokerEndedError: with the process's exit status.
    """
    header = {
        "a": "bench",
        "b": TOPIC,
        "c": "TBW102",
        "d": "8",
        "e": "0",
        "f": "0",
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "i": "",
        "j": "0",
        "k": "false",
        "m": "false",
        "n": cluster.broker_name,
    }
    started = time.monotonic()
    cluster.broker_process.start()
    while time.monotonic() - started < START_TIMEOUT_S:
        try:
            response = call(
                cluster.broker_address, SEND_MESSAGE_V2, header, b"x" * 1024, timeout_s=ASK_TIMEOUT_S
            )
        except OSError:
            response = None
        if response is not None and response.code == 0:
            return time.monotonic() - started
        if not cluster.broker_process.alive:
            raise BrokerEndedError(f"ended with {cluster.broker_process.status}")
        time.sleep(POLL_S)
    raise AssertionError(f"no send was acknowledged within {START_TIMEOUT_S:g} s:\n{cluster.logs()}")


def _stop(cluster: Cluster, program: Path, kind: str, queues: int, seconds: float) -> float:
    """Sends for some seconds, then stops or kills the broker; returns the seconds of a clean stop."""
    load = _load(cluster, program, queues=queues, connections=1, depth=64, fresh=1, seconds=FILL_TIMEOUT_S)
    try:
        load.ended(seconds)
        if kind == "kill -9":
            cluster.broker_process.kill()
            return 0.0
    finally:
        load.kill()
    flush_dirty_pages()
    started = time.monotonic()
    cluster.broker_process.stop(timeout_s=STOP_TIMEOUT_S)
    return time.monotonic() - started


def _errors_in_logs(folder: Path) -> str:
    """The last errors that a broker wrote to its log files below the folder."""
    errors: list[str] = []
    for path in sorted(folder.rglob("*.log")):
        lines = path.read_text(errors="replace").splitlines()
        errors += [f"{path.name}: {line}" for line in lines if " ERROR " in line or "Exception" in line][-5:]
    return "\n".join(errors)


def _starts(name: str, program: Path, folder: Path, queues: int, plan: Plan) -> dict[str, list[Any]]:
    peer = Peer(name, folder)
    cluster = peer.cluster
    found: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    try:
        cluster.start()
        create_topic(cluster.broker_address, TOPIC, queues)
        count = max(int(plan["log_gb"] * 1e9 / RECORD_BYTES), queues)
        print(f"{name}: filling {plan['log_gb']:g} GB in {queues:,} queues …", flush=True)
        load = _load(cluster, program, queues=queues, connections=1, depth=64, count=count, fresh=1)
        load.result(end=False, timeout_s=FILL_TIMEOUT_S)
        for number in range(plan["rounds"]):
            for kind in KINDS:
                stopped_s = _stop(cluster, program, kind, queues, plan["sends_s"])
                drop_page_cache(folder)
                try:
                    took = first_acknowledged_s(cluster)
                except BrokerEndedError as error:
                    print(
                        f"{queues:,} queues, {kind}, {name}: {error}\n{_errors_in_logs(folder)}", flush=True
                    )
                    found[kind].append({"ended": str(error), "stop_s": round(stopped_s, 3)})
                    return found
                found[kind].append({"seconds": round(took, 3), "stop_s": round(stopped_s, 3)})
                print(
                    f"round {number + 1}/{plan['rounds']}  {queues:6,} queues  {kind:10} {name:5}"
                    f" {took:8.2f} s (stopped in {stopped_s:.1f} s)",
                    flush=True,
                )
    finally:
        cluster.abandon()
        shutil.rmtree(folder, ignore_errors=True)
    return found


def measure(program: Path, names: list[str], folder: Path, plan: Plan) -> dict[str, Any]:
    """Starts by cell and peer, one for each round, and none after one that failed. Only one store exists at a
    time."""
    found: dict[str, dict[str, list[Any]]] = {}
    for queues in plan["queues"]:
        for name in names:
            for kind, starts in _starts(name, program, fresh_folder(folder), queues, plan).items():
                found.setdefault(f"{queues:,} queues, {kind}", {})[name] = starts
    return found


def summarise(measured: dict[str, Any]) -> dict[str, Any]:
    """The median and the worst start of each cell in which every start succeeded, or how one failed."""
    return {
        cell: {name: _summary(starts) for name, starts in peers.items() if starts}
        for cell, peers in measured.items()
    }


def _summary(starts: list[dict[str, Any]]) -> dict[str, Any]:
    stop_s = statistics.median(start["stop_s"] for start in starts)
    if "ended" in starts[-1]:
        return {"ended": starts[-1]["ended"], "stop_s": stop_s}
    seconds = [start["seconds"] for start in starts]
    return {"median_s": statistics.median(seconds), "worst_s": max(seconds), "stop_s": stop_s}


def describe(summary: dict[str, Any], plan: Plan) -> tuple[str, str]:
    """The introduction and the tables."""
    about = (
        f"Start-up time with {plan['log_gb']:g} GB of log\n"
        "From the start of the process until a send is acknowledged. The page cache is empty before every"
        " start, commit log files have 1 GiB, and the broker is killed under sends."
        f" {plan['rounds']} start{'s' if plan['rounds'] > 1 else ''} of each."
    )
    head = ["start after", "ours: median, s", "worst", "RocketMQ: median, s", "worst", "ratio"]
    head += ["ours stopped in, s", "RocketMQ"]
    lines, verdicts = [], []
    for cell, peers in summary.items():
        ours, java = peers.get("ours"), peers.get("java")
        row = [cell]
        for one in (ours, java):
            if one and "ended" in one:
                row += [one["ended"], "–"]
            else:
                row += [f"{one['median_s']:.2f}", f"{one['worst_s']:.2f}"] if one else ["–", "–"]
        both = ours and java and "ended" not in {**ours, **java}
        ratio = ours["median_s"] / java["median_s"] if both else None
        row.append("–" if ratio is None else f"{ratio:.2f}")
        row += [f"{one['stop_s']:.1f}" if one and "clean" in cell else "–" for one in (ours, java)]
        lines.append(row)
        if ratio is not None:
            reached = "reached" if ratio <= 1 else "missed"
            verdicts.append(f"- {cell}: never slower than RocketMQ: {reached} ({ratio:.2f} of its time)")
    return about, "\n\n".join([result_files.table(head, lines), "\n".join(verdicts)])


def main() -> int:
    parser = disk_runs.parser("startup", __doc__)
    parser.add_argument("--gb", type=float, help=f"size of the log (default {FULL['log_gb']:g})")
    parser.add_argument("--rounds", type=int, help=f"default {FULL['rounds']}")
    parser.add_argument("--queues", type=int, action="append", help="number of queues (repeatable)")
    options = parser.parse_args()
    plan = {**(QUICK if options.quick else FULL)}
    plan["log_gb"] = options.gb or plan["log_gb"]
    plan["rounds"] = options.rounds or plan["rounds"]
    plan["queues"] = options.queues or plan["queues"]
    sends = plan["rounds"] * len(KINDS) * plan["sends_s"] * 100_000 * STORED_BYTES
    needed = plan["log_gb"] * 1e9 * STORED_BYTES / RECORD_BYTES + max(plan["queues"]) * QUEUE_BYTES + sends
    return disk_runs.main(
        "startup",
        options,
        plan,
        needed_bytes=needed,
        whole=plan["log_gb"] >= FULL["log_gb"] and set(FULL["queues"]) <= set(plan["queues"]),
        measure=measure,
        summarise=summarise,
        describe=describe,
    )


if __name__ == "__main__":
    sys.exit(main())
