"""Writes the results of power cuts and disk faults as Markdown and JSON into docs/results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import result_files
from tests.benchmarks.result_files import table
from tests.integration.chaos.journals import SEND_OK
from tests.integration.disks.disk_faults import CONNECTIONS
from tests.integration.disks.group import SIZE
from tests.integration.disks.power_cuts import ALL, FLUSH, ONE

NAMES = {
    ALL: "all three brokers and three controllers at once",
    ONE: "one broker; the others stop in order, then all start together",
}


def summary_of(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The summary of power cuts (`PowerCut.plain`), as JSON values."""
    in_sync_s = [cut["in_sync_s"] for cut in rounds if cut["healed"]] or [0.0]
    return {
        "cuts": len(rounds),
        "acknowledged": sum(cut["acknowledged"] for cut in rounds),
        "lost": sum(cut["lost"] for cut in rounds),
        "divergent": sum(cut["divergent"] for cut in rounds),
        "audits": sum(cut["audited"] for cut in rounds),
        "audits_with_findings": sum(cut["findings"] > 0 for cut in rounds),
        "not_healed": sum(not cut["healed"] for cut in rounds),
        "in_sync_median_s": statistics.median(in_sync_s),
        "in_sync_worst_s": max(in_sync_s),
        "frozen_worst_s": max(cut["frozen_s"] for cut in rounds),
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
    for scope, rounds in found.items():
        row = summary_of(rounds)
        numbers = [row[key] for key in ("cuts", "acknowledged", "lost", "divergent", "audits")]
        numbers += [row["audits_with_findings"], row["not_healed"]]
        times = [f"{row['in_sync_median_s']:.1f}", f"{row['in_sync_worst_s']:.1f}"]
        lines.append([NAMES[scope], FLUSH[scope], *(f"{number:,}" for number in numbers), *times])
    return table(head, lines)


def _faults(rows: list[dict[str, Any]]) -> str:
    head = [
        "fault at the member",
        "felt by",
        "lasted s",
        "longest time without an acknowledgement, s",
        "acknowledged",
    ]
    head += ["lost", "failed sends, after the producer's retries", "healed after s", "what changed"]
    return table(head, [_fault(row) for row in rows])


def _felt(row: dict[str, Any]) -> str:
    if row["fault"] == "EMFILE":
        return f"{row['felt']} of {CONNECTIONS} new clients"
    return f"{row['felt']} call{'' if row['felt'] == 1 else 's'}"


def _fault(row: dict[str, Any]) -> list[str]:
    failed = {name: count for name, count in row["outcomes"].items() if name != SEND_OK}
    changed = [
        text
        for text, holds in (
            ("another master", row["new_master"]),
            ("another leading controller", row["new_leader"]),
            (f"the process ended with {row['ended']}", row["ended"] is not None),
            (f"{SIZE - row['in_sync_min']} left the SyncStateSet meanwhile", row["in_sync_min"] < SIZE),
        )
        if holds
    ]
    return [
        f"{row['fault']}, {row['role']}",
        _felt(row),
        f"{row['fault_s']:.1f}",
        f"{row['silence_s']:.2f}",
        f"{row['acknowledged']:,}",
        str(row["lost"]),
        ", ".join(f"{name} {count}" for name, count in sorted(failed.items())) or "none",
        f"{row['healed_s']:.1f}",
        ", ".join(changed) or "–",
    ]


def _runs(runs: Sequence[dict[str, Any]]) -> str:
    return "; ".join(
        f"`{run['command']}` at commit {run['commit']} (load average at the start"
        f" {run['load_average_at_start']})"
        for run in runs
    )


def write(directory: Path, data: dict[str, Any]) -> tuple[Path, Path]:
    """Writes both files, and returns their paths."""
    intro = [
        f"# Power cuts and disk faults under RocketMQ's clients, {data['date']}",
        f"{_runs(data['runs'])}. A group of three brokers and three controllers, "
        "with `allAckInSyncStateSet=true` and `minInSyncReplicas=2`, on one machine with a JVM of RocketMQ's "
        "producer (16 threads, synchronous sends, two retries).",
    ]
    parts = []
    if any(data["cuts"].values()):
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
            "space. This fault lasts until it is noticed (the master rejects a send, a replica leaves the "
            "SyncStateSet), and then for the time of the others. Slow fsync: each takes 0.5 s longer. "
            f"EMFILE: the process may open no descriptor more, while {CONNECTIONS} clients connect and send "
            "a request each. *Felt by*: calls of the file system that failed or were delayed; with EMFILE "
            "new clients without a response until the fault ended. While the leading controller's disk has "
            "the fault, a change of the master is asked for, since a controller writes only when something "
            "changes. In the end both consumers (push and pull) had seen every acknowledged message, and "
            "nothing else.",
        ]
    return result_files.write(directory, "disk-faults", data, intro, "\n\n".join(parts))
