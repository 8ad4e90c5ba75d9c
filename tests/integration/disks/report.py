"""Writes the results of power cuts and disk faults as Markdown and JSON into docs/results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import result_files
from tests.benchmarks.result_files import table
from tests.integration.chaos.journals import SEND_OK
from tests.integration.disks.power_cuts import ALL, FLUSH, ONE, PowerCut

NAMES = {
    ALL: "all three brokers and three controllers at once",
    ONE: "one broker; the others stop in order, then all start together",
}


def summary_of(cuts: Sequence[PowerCut]) -> dict[str, Any]:
    """The summary of a run of power cuts, as JSON values."""
    return {
        "cuts": len(cuts),
        "acknowledged": sum(cut.loss_report.acknowledged for cut in cuts),
        "lost": sum(len(cut.loss_report.lost) for cut in cuts),
        "divergent": sum(bool(cut.loss_report.divergent) for cut in cuts),
        "audits": sum(cut.audited for cut in cuts),
        "audits_with_findings": sum(bool(cut.findings) for cut in cuts),
        "not_healed": sum(cut.error is not None for cut in cuts),
        "in_sync_median_s": statistics.median(cut.healed_s for cut in cuts),
        "in_sync_worst_s": max(cut.healed_s for cut in cuts),
        "frozen_worst_s": max(cut.froze_s for cut in cuts),
        "rounds": [str(cut) for cut in cuts],
    }


def _cuts(found: dict[str, Any]) -> str:
    head = [
        "power cut",
        "flush",
        "cuts",
        "acknowledged",
        "lost",
        "replicas differ",
        "audits",
        "with findings",
    ]
    head += ["not whole again", "in sync again, median s", "worst s"]
    lines = []
    for scope, row in found.items():
        numbers = [row[key] for key in ("cuts", "acknowledged", "lost", "divergent", "audits")]
        numbers += [row["audits_with_findings"], row["not_healed"]]
        times = [f"{row['in_sync_median_s']:.1f}", f"{row['in_sync_worst_s']:.1f}"]
        lines.append([NAMES[scope], FLUSH[scope], *(f"{number:,}" for number in numbers), *times])
    return table(head, lines)


def _faults(rows: list[dict[str, Any]]) -> str:
    head = ["fault at the member", "lasted s", "longest time without an acknowledgement, s", "acknowledged"]
    head += ["lost", "failed sends, after the producer's retries", "healed after s", "what changed"]
    return table(head, [_fault(row) for row in rows])


def _fault(row: dict[str, Any]) -> list[str]:
    failed = {name: count for name, count in row["outcomes"].items() if name != SEND_OK}
    changed = [
        text
        for text, holds in (
            ("another master", row["new_master"]),
            ("another leading controller", row["new_leader"]),
            (f"the process ended with {row['ended']}", row["ended"] is not None),
        )
        if holds
    ]
    return [
        f"{row['fault']}, {row['role']}",
        f"{row['fault_s']:.1f}",
        f"{row['silence_s']:.2f}",
        f"{row['acknowledged']:,}",
        str(row["lost"]),
        ", ".join(f"{name} {count}" for name, count in sorted(failed.items())) or "none",
        f"{row['healed_s']:.1f}",
        ", ".join(changed) or "–",
    ]


def write(directory: Path, data: dict[str, Any]) -> tuple[Path, Path]:
    """Writes both files, and returns their paths."""
    intro = [
        f"# Power cuts and disk faults under RocketMQ's clients, {data['date']}",
        f"`{data['command']}`, at commit {data['commit']}. A group of three brokers and three controllers, "
        "with `allAckInSyncStateSet=true` and `minInSyncReplicas=2`, on one machine with a JVM of RocketMQ's "
        "producer (16 threads, synchronous sends, two retries).",
    ]
    parts = []
    if data["cuts"]:
        parts += [
            "## Power cuts",
            _cuts(data["cuts"]),
            "Each member has a file system of its own, ext4 or XFS as drawn, on a loop device with direct "
            "I/O. At a cut the processes are stopped, the images cloned, the processes killed. They start "
            "again on the clones, in an order that is drawn. *Lost*: messages with SEND_OK that consumers do "
            "not get, byte for byte, at the offset of the acknowledgement. Replicas are compared byte for "
            "byte after every cut, epoch files too.",
        ]
    if data["faults"]:
        parts += [
            "## Disk faults",
            _faults(data["faults"]),
            "EIO: every write, sync and allocation of the member's file system fails, and the member is "
            "restarted afterwards. ENOSPC: its files may take 64 KiB more (a controller's nothing), then no "
            "space. Slow fsync: each takes 0.5 s longer. EMFILE: the process may open no descriptor more, "
            "while 20 clients connect. While the leading controller's disk has the fault, a change of the "
            "master is asked for, since a controller writes only when something changes. In the end both "
            "consumers (push and pull) had seen every acknowledged message, and nothing else.",
        ]
    return result_files.write(directory, "disk-faults", data, intro, "\n\n".join(parts))
