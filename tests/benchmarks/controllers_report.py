"""Formats the results of the second part of `make bench` as Markdown and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.benchmarks import result_files
from tests.benchmarks.result_files import table

RATIO_GOAL = 1.5
FAIL_OVER_GOAL_S = 2.0
MEMORY_GOAL = 0.2
LEASES_GOAL = 0.25
"""The share of a core, for the leases of 1,000 groups."""


def _appends(found: dict[str, Any]) -> str:
    head = ["in flight", "peers", "appends/s", "p50 ms", "p99 ms", "CPU µs", "ratio", "goal"]
    lines = []
    for depth, kinds in found.items():
        java = kinds.get("java")
        for kind, row in kinds.items():
            line = [depth, kind, f"{row['per_second']:,.0f}", f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}"]
            line.append(f"{row['cpu_us']:.0f}")
            if java is None or kind == "java":
                line += ["–", "–"]
            else:
                ratio = row["per_second"] / java["per_second"]
                verdict = "reached" if ratio >= RATIO_GOAL else "missed"
                worse = ", p99 worse" if row["p99_ms"] > java["p99_ms"] else ""
                line += [f"{ratio:.2f}", verdict + worse]
            lines.append(line)
    return table(head, lines)


def _elections(found: dict[str, Any]) -> str:
    head = ["controllers", "elections", "median s", "worst s"]
    return table(
        head,
        [
            [name, str(row["count"]), f"{row['median_s']:.2f}", f"{row['worst_s']:.2f}"]
            for name, row in found.items()
        ],
    )


def _groups(found: dict[str, Any]) -> str:
    head = [
        "controllers",
        "registered in s",
        "masters lost",
        "all replaced within s",
        "worst s",
        "never replaced",
    ]
    lines = [
        [
            name,
            f"{row['register_s']:.1f}",
            str(row["lost_masters"]),
            f"{row['fail_over_s']:.2f}",
            f"{row['fail_over_worst_s']:.2f}",
            str(row["not_replaced"]),
        ]
        for name, row in found.items()
    ]
    return table(head, lines)


def _renewed(row: dict[str, Any]) -> str:
    if row["per_second"] < 0.95 * row["asked_per_second"]:
        return "some renewals got no response in time"
    return "reached" if row["leader_cores"] < LEASES_GOAL else "missed"


def _leases(found: dict[str, Any]) -> str:
    head = ["groups", "renewals/s", "requested/s", "granted", "p50 ms", "p99 ms"]
    head += ["leader, cores", "CPU µs", "goal"]
    lines = [
        [
            f"{row['groups']:,}",
            f"{row['per_second']:,.0f}",
            f"{row['asked_per_second']:,.0f}",
            f"{row['granted_share']:.1%}",
            f"{row['p50_ms']:.2f}",
            f"{row['p99_ms']:.2f}",
            f"{row['leader_cores']:.2f}",
            f"{row['cpu_us']:.0f}",
            _renewed(row),
        ]
        for row in found.values()
    ]
    return table(head, lines)


def _memory(found: dict[str, Any]) -> str:
    head = ["leading controller", "idle, MB", "with the groups, MB"]
    lines = [
        [name]
        + [
            f"{row[f'{moment}_rss_mb']:.0f} ({row[f'{moment}_anonymous_mb']:.0f})"
            for moment in ("idle", "with_groups")
        ]
        for name, row in found.items()
    ]
    return table(head, lines)


def verdicts(summary: dict[str, Any]) -> list[str]:
    """A line for each goal: whether it is reached."""
    found = []
    groups = summary.get("groups", {})
    if "ours" in groups:
        worst = groups["ours"]["fail_over_worst_s"]
        reached = "reached" if worst < FAIL_OVER_GOAL_S and not groups["ours"]["not_replaced"] else "missed"
        found.append(
            f"all lost masters replaced in under {FAIL_OVER_GOAL_S:g} s: {reached} (worst {worst:.2f} s)"
        )
    if "ours" in groups and "java" in groups:
        share = groups["ours"]["with_groups_rss_mb"] / groups["java"]["with_groups_rss_mb"]
        reached = "reached" if share <= MEMORY_GOAL else "missed"
        found.append(f"memory with the groups at most a fifth of RocketMQ's: {reached} ({share:.2f})")
    return found


def tables(summary: dict[str, Any], plan: dict[str, Any]) -> str:
    """The tables, each with an explanation."""
    parts = []
    if "appends" in summary:
        parts += [
            "## Raft appends",
            _appends(summary["appends"]),
            "Three peers on this machine, bodies of 256 bytes, one connection to the leader. DLedger's"
            " peers have a heap of 512 MB and the G1 collector. CPU is that of all three peers for one"
            " append. `ours` acknowledges what a quorum has synced to disk. DLedger acknowledges what a"
            " quorum has written, and flushes every 10 ms; so does `ours, asynchronous flush`. The goal: at"
            f" least {RATIO_GOAL:g} times DLedger's throughput.",
        ]
    if "elections" in summary:
        parts += [
            "## Election after kill -9 of the leading controller",
            _elections(summary["elections"]),
            "From the kill until another controller reports itself as leader. All settings are defaults: our"
            " leader sends a heartbeat every 200 ms, RocketMQ's every 2,000 ms.",
        ]
    if "leases" in summary:
        parts += [
            "## Steady renewal of write leases",
            _leases(summary["leases"]),
            "Every master renews its lease twice in 300 ms, the duration of a lease. The goal: less"
            " than a quarter of a core.",
        ]
    if "groups" in summary:
        parts += [
            f"## {plan['groups']:,} groups of three replicas, a third of their masters lost at once",
            _groups(summary["groups"]),
            "Brokers are simulated. A master is lost when the connection of its heartbeats closes, just"
            " after it has renewed its write lease (300 ms). Our controllers wait until the lease has"
            " expired; RocketMQ's have no leases. The time ends when the leading controller lists a new"
            " master for every group.",
            "## Memory: resident (without pages of files)",
            _memory(summary["groups"]),
            "RocketMQ's controllers have a heap of at most 512 MB.",
        ]
        parts += ["\n".join(f"- {line}" for line in verdicts(summary))]
    return "\n\n".join(parts)


def write(directory: Path, data: dict[str, Any]) -> tuple[Path, Path]:
    """Writes `controllers-DATE.json` with everything measured and `controllers-DATE.md` with the tables."""
    plan = data["plan"]
    intro = [
        f"# Our controllers compared with those of RocketMQ {data['rocketmq']}, {data['date']}",
        f"`{data['command']}`; medians of {plan['rounds']} rounds (the order changes from round to round),"
        f" only the measured processes running; {plan['seconds']:g} s a measurement of appends after"
        f" {plan['warmup_s']:g} s of the same load, and {plan['java_warmup_s']:g} s before the first for"
        " Java's JIT compiler. Every response is checked; indexes are unique and dense.",
    ]
    return result_files.write(directory, "controllers", data, intro, tables(data["summary"], plan))
