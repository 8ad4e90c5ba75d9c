"""Formats the results of the audit benchmark as Markdown and JSON."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from tests.benchmarks import result_files
from tests.benchmarks.result_files import table

RATIO_GOAL = 0.6
DRIVER_GOAL = 1.25
"""Of the driver's memory for a wrecked group, to that for a healthy one."""
ROLES = ("driver JVM", "driver Python", "executor JVM", "executor Python")


def tables(measured: dict[str, Any], groups: dict[str, Any] | None = None) -> str:
    """The tables of the pass, of whole audits, and of the group with many queues."""
    passes, audits = [], []
    for gib, found in measured.items():
        size = found["log_bytes"]
        bare, own = (statistics.median(found[name]) for name in ("crc32_cpu_s", "pass_cpu_s"))
        verdict = "reached" if bare / own >= RATIO_GOAL else "missed"
        cold = f"{found['first_pass_cpu_s']:.1f}"
        passes.append([gib, rate(size, bare), rate(size, own), f"{bare / own:.2f}", verdict, cold])
        for count, run in found.get("audits", {}).items():
            took = statistics.median(run["seconds"])
            row = [
                gib,
                count,
                f"{took:.1f}",
                f"{run['seconds'][0]:.1f}",
                rate(size, took * int(count)),
                f"{bare / took / int(count):.2f}",
            ]
            audits.append([*row, *memory_of(run)])
    first = [
        "GiB of logs",
        "zlib.crc32, GB/s",
        "the pass, GB/s and core",
        "ratio",
        f"goal {RATIO_GOAL}",
        "first pass, s",
    ]
    second = ["GiB of logs", "executors", "seconds", "the first, s", "GB/s and core", "of zlib.crc32"]
    second += [f"{role}, MB" for role in ROLES]
    return "\n\n".join(
        [
            "## One pass over logs, queues and index, one process, CPU time",
            table(first, passes),
            "## Whole audits",
            table(second, audits),
            "Wall-clock seconds, without the start of the session. The first audit of a session takes "
            "longer. The driver's JVM is master and worker, too. Memory is the peak of all processes of a "
            "role together, without page cache.",
            *describe_links(measured),
            *(tables_of_groups(groups) if groups else []),
        ]
    )


def describe_links(measured: dict[str, Any]) -> list[str]:
    """Says for which sizes the replicas are hard links."""
    linked = ", ".join(gib for gib, found in measured.items() if found.get("linked"))
    return [f"The replicas of {linked} GiB are hard links to the same files."] if linked else []


def memory_of(run: dict[str, Any]) -> list[str]:
    """The peak memory of each role, in MB."""
    return [f"{run['peak_mb'].get(role, 0):.0f}" for role in ROLES]


def tables_of_groups(groups: dict[str, Any]) -> list[str]:
    """The tables of the group with many queues, healthy and wrecked."""
    rows, ratios = [], []
    for count, cells in groups["audits"].items():
        for name, run in cells.items():
            took = statistics.median(run["seconds"])
            row = [name, count, f"{took:.1f}", f"{run['seconds'][0]:.1f}", str(run["findings"])]
            rows.append([*row, *memory_of(run)])
        healthy, wrecked = (driver_mb(cells[name]) for name in ("healthy", "wrecked"))
        ratio = wrecked / healthy
        ratios.append([count, f"{ratio:.2f}", "reached" if ratio <= DRIVER_GOAL else "missed"])
    requests = ", ".join(f"{name}: {count}" for name, count in sorted(groups["requests"].items()))
    head = ["group", "executors", "seconds", "the first, s", "findings", *(f"{role}, MB" for role in ROLES)]
    return [
        f"## A group with {groups['queues']} queues and {groups['gib']:g} GiB of logs",
        table(head, rows),
        table(["executors", "driver, wrecked to healthy", f"goal {DRIVER_GOAL}"], ratios),
        f"Wrecked: {sum(groups['damaged_records'])} records of one log have another magic number or body. "
        f"Requests to each volume reader of {groups['files']} files: {requests}.",
    ]


def driver_mb(run: dict[str, Any]) -> float:
    """The peak memory of the driver."""
    peak_mb: dict[str, float] = run["peak_mb"]
    return sum(value for role, value in peak_mb.items() if role.startswith("driver"))


def rate(size: int, seconds: float) -> str:
    """A rate in GB/s."""
    return f"{size / seconds / 1e9:.2f}"


def write(directory: Path, data: dict[str, Any]) -> tuple[Path, Path]:
    """Writes the two files of a run."""
    intro = [
        f"# The audit, {data['date']}",
        f"`{data['command']}`; medians of {data['plan']['rounds']} rounds over three equal replicas of 1 KiB "
        "messages with unique keys, tags and an index, from the page cache as far as it has room.",
    ]
    return result_files.write(
        directory, "audit", data, intro, tables(data["measurements"], data.get("groups"))
    )
