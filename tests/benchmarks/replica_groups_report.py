"""Formats the results of the third part of `make bench` as Markdown and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.benchmarks import result_files
from tests.benchmarks.result_files import table

RATIO_GOAL = 2.0
CATCH_UP_GOAL = 0.8
KILL_GOAL_S, STOP_GOAL_S = 0.5, 3.0
PAUSE_GOAL_MS = 200.0


def _verdict(reached: bool) -> str:
    return "reached" if reached else "missed"


def _throughput(found: dict[str, Any]) -> str:
    head = ["cell", "brokers", "msg/s", "p50 ms", "p99 ms", "CPU µs/msg", "ratio", "goal"]
    lines = []
    for cell, kinds in found.items():
        java = kinds.get("java")
        for kind, row in kinds.items():
            line = [cell, kind, f"{row['per_second']:,.0f}", f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}"]
            line.append(f"{row['cpu_us']:.1f}")
            if java is None or kind == "java":
                line += ["–", "–"]
            else:
                ratio = row["per_second"] / java["per_second"]
                line += [f"{ratio:.2f}", _verdict(ratio >= RATIO_GOAL)]
            lines.append(line)
    return table(head, lines)


def _catch_up(found: dict[str, Any]) -> str:
    head = ["brokers", "MB/s", "sendfile, dropped, MB/s", "share", "goal", "sendfile, written, MB/s", "share"]
    lines = []
    for kind, row in found.items():
        speed, dropped, copied = (row[f"{what}mb_per_s"] for what in ("", "sendfile_", "copied_"))
        goal = _verdict(speed / dropped >= CATCH_UP_GOAL) if kind == "ours" else "–"
        line = [kind, f"{speed:,.0f}", f"{dropped:,.0f}", f"{speed / dropped:.2f}", goal]
        lines.append([*line, f"{copied:,.0f}", f"{speed / copied:.2f}"])
    return table(head, lines)


def _failover_times(found: dict[str, Any], goal_s: float) -> str:
    head = ["brokers", "times", "median s", "worst s", f"goal: always under {goal_s:g} s"]
    lines = [
        [
            kind,
            str(row["count"]),
            f"{row['median_s']:.3f}",
            f"{row['worst_s']:.3f}",
            _verdict(row["worst_s"] < goal_s) if kind == "ours" else "–",
        ]
        for kind, row in found.items()
    ]
    return table(head, lines)


def _switch(found: dict[str, Any]) -> str:
    head = ["brokers", "times", "median pause ms", "worst ms", "failed sends", "goal: 200 ms, none failed"]
    lines = [
        [
            kind,
            str(row["count"]),
            f"{row['median_ms']:.0f}",
            f"{row['worst_ms']:.0f}",
            str(row["failed"]),
            _verdict(row["worst_ms"] < PAUSE_GOAL_MS and not row["failed"]) if kind == "ours" else "–",
        ]
        for kind, row in found.items()
    ]
    return table(head, lines)


def tables(summary: dict[str, Any]) -> str:
    """The tables, each with an explanation."""
    parts = []
    if "throughput" in summary:
        parts += [
            "## Sends to three replicas",
            _throughput(summary["throughput"]),
            "1 KB bodies, asynchronous flush. `two of three`: a send is acknowledged when one other replica"
            " has it (`inSyncReplicas=2`); `all three`: when every member of the SyncStateSet has it"
            " (`allAckInSyncStateSet`). Three brokers, three controllers and the load share the machine. CPU"
            " is that of all three brokers.",
        ]
    if "catch_up" in summary:
        parts += [
            "## An empty replica catches up",
            _catch_up(summary["catch_up"]),
            "From the first bytes until it has the whole log of the master, compared with `sendfile` of the"
            " same files over loopback to a process that discards them, and to one that writes them to"
            " files.",
        ]
    for part, title, goal in (
        ("kill", "kill -9 of the master", KILL_GOAL_S),
        ("stop", "SIGSTOP of the master", STOP_GOAL_S),
    ):
        if part in summary:
            parts += [f"## First acknowledged send after {title}", _failover_times(summary[part], goal)]
    if "switch" in summary:
        parts += [
            "## Planned switchover",
            _switch(summary["switch"]),
            "Ours by `epochmq promote`, RocketMQ's by `electMaster`. The pause is the longest time without an"
            " acknowledgement.",
        ]
    if {"kill", "stop", "switch"} & summary.keys():
        parts.append(
            "RocketMQ's Java producer starts a send every 5 ms, whatever the result of the others. It"
            " requests routes every 100 ms; its other settings are defaults. If there are fewer times than"
            " planned, not all replicas of the group were in sync again within two minutes."
        )
    return "\n\n".join(parts)


def write(directory: Path, data: dict[str, Any]) -> tuple[Path, Path]:
    """Writes `replica-groups-DATE.json` with everything measured and `.md` with the tables."""
    plan = data["plan"]
    intro = [
        f"# Our replica groups compared with those of RocketMQ {data['rocketmq']}, {data['date']}",
        f"`{data['command']}`; medians of {plan['rounds']} rounds (the order changes from round to round),"
        f" one group running at a time, all its parts RocketMQ's or all ours but for the nameserver, which is"
        f" ours; {plan['seconds']:g} s a measurement of sends after {plan['warmup_s']:g} s of the same load,"
        f" and {plan['java_warmup_s']:g} s before the first for Java's JIT compiler. Settings are RocketMQ's"
        " defaults; its brokers have a heap of 1 GB each, its controllers 512 MB, all the G1 collector.",
    ]
    if len(set(data["dates"].values())) > 1:
        times = ", ".join(f"{part} {date}" for part, date in data["dates"].items())
        intro.append(f"The parts were measured one by one: {times}.")
    intro += data["notes"]
    return result_files.write(directory, "replica-groups", data, intro, tables(data["summary"]))
