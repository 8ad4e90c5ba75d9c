"""Formats the results of the audit benchmark as Markdown and JSON."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from tests.benchmarks import result_files
from tests.benchmarks.result_files import table

RATIO_GOAL = 0.5


def tables(measured: dict[str, Any]) -> str:
    """The tables of the pass and of whole audits."""
    passes, audits = [], []
    for gib, found in measured.items():
        size = found["log_bytes"]
        bare, own = (statistics.median(found[name]) for name in ("crc32_cpu_s", "pass_cpu_s"))
        verdict = "reached" if bare / own >= RATIO_GOAL else "missed"
        passes.append([gib, rate(size, bare), rate(size, own), f"{bare / own:.2f}", verdict])
        for count, run in found.get("audits", {}).items():
            took = statistics.median(run["seconds"])
            row = [
                gib,
                count,
                f"{took:.1f}",
                rate(size, took * int(count)),
                f"{bare / took / int(count):.2f}",
            ]
            memory = run["peak_mb"]
            python = sum(value for name, value in memory.items() if name.startswith("python"))
            audits.append([*row, f"{memory.get('java', 0):.0f}", f"{python:.0f}"])
    first = ["GiB of logs", "zlib.crc32, GB/s", "the pass, GB/s and core", "ratio", "goal 0.5"]
    second = ["GiB of logs", "executors", "seconds", "GB/s and core", "of zlib.crc32"]
    second += ["JVMs, MB", "Python, MB"]
    return "\n\n".join(
        [
            "## One pass over logs, queues and index, one process, CPU time",
            table(first, passes),
            "## Whole audits",
            table(second, audits),
            "Wall-clock seconds, without the start of the session. JVMs: driver, master and executors "
            "together. Python: the workers of the executors. Memory is the peak, without page cache.",
        ]
    )


def rate(size: int, seconds: float) -> str:
    """A rate in GB/s."""
    return f"{size / seconds / 1e9:.2f}"


def write(directory: Path, data: dict[str, Any]) -> tuple[Path, Path]:
    """Writes the two files of a run."""
    intro = [
        f"# The audit, {data['date']}",
        f"`{data['command']}`; medians of {data['plan']['rounds']} rounds over three equal replicas of 1 KiB "
        "messages with unique keys, tags and an index, from the page cache.",
    ]
    return result_files.write(directory, "audit", data, intro, tables(data["measurements"]))
