"""Computes the medians of the measurements, and formats them for the terminal and for docs/results."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from tests.benchmarks.cells import CELLS, Cell, Result

FIELDS = (
    "per_second",
    "bytes_per_second",
    "p50_ms",
    "p99_ms",
    "broker_cpu_us",
    "broker_cpu_share",
    "load_cpu_share",
)
BUSY_LOAD = 0.9

Rounds = dict[str, dict[str, list[Result]]]  # cell name -> peer name -> one result a round


def medians(rounds: Rounds) -> dict[str, dict[str, dict[str, float]]]:
    """The medians over the rounds, by cell, peer and field, and the lowest and highest throughput."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for cell, peers in rounds.items():
        for peer, results in peers.items():
            row = {
                field: round(statistics.median(float(r[field]) for r in results), 4)
                for field in (*FIELDS, "foreign_cpu_share")
                if field in results[0]
            }
            row["per_second_min"] = min(float(r["per_second"]) for r in results)
            row["per_second_max"] = max(float(r["per_second"]) for r in results)
            table.setdefault(cell, {})[peer] = row
    return table


def _verdict(cell: Cell, ours: dict[str, float], java: dict[str, float]) -> str:
    missed = []
    ratio = ours["per_second"] / java["per_second"]
    if ratio < cell.goal:
        missed.append(f"{ratio:.2f} < {cell.goal:g} x")
    if cell.kind != "pull" and ours["p99_ms"] > java["p99_ms"]:
        missed.append("p99 worse")
    return ", ".join(missed) or "reached"


def rows(table: dict[str, dict[str, dict[str, float]]]) -> list[list[str]]:
    """The rows of the table: the cell, our results and Java's, the ratio, the goal."""
    lines = []
    for cell in CELLS:
        peers = table.get(cell.name)
        if not peers:
            continue
        line = [cell.name]
        for field, form in (
            ("per_second", ",.0f"),
            ("p50_ms", ".2f"),
            ("p99_ms", ".2f"),
            ("broker_cpu_us", ".1f"),
        ):
            line += [format(peers[p][field], form) if p in peers else "–" for p in ("ours", "java")]
        ours, java = peers.get("ours"), peers.get("java")
        if ours and java:
            line += [f"{ours['per_second'] / java['per_second']:.2f}", _verdict(cell, ours, java)]
        else:
            line += ["–", "–"]
        lines.append(line)
    return lines


HEAD = (
    "cell",
    "ours msg/s",
    "Java msg/s",
    "ours p50 ms",
    "Java p50",
    "ours p99",
    "Java p99",
    "ours CPU µs/msg",
    "Java CPU",
    "ratio",
    "goal",
)


CHECKOUT_HEAD = ("cell", "checkout", "msg/s", "ours msg/s", "ours / checkout", "p99 ms", "ours p99")


def checkout_lines(rounds: Rounds) -> list[list[str]]:
    """The rows of the comparison with other checkouts. The ratio is the median of the rounds' ratios."""
    lines = []
    for cell, peers in rounds.items():
        ours = peers.get("ours")
        for name, results in peers.items():
            if ours is None or name in ("ours", "java"):
                continue
            ratios = [
                float(mine["per_second"]) / float(other["per_second"])
                for mine, other in zip(ours, results, strict=True)
            ]
            line = [cell, name]
            line += [
                f"{statistics.median(float(r['per_second']) for r in of):,.0f}" for of in (results, ours)
            ]
            line.append(f"{statistics.median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f})")
            line += [f"{statistics.median(float(r['p99_ms']) for r in of):.2f}" for of in (results, ours)]
            lines.append(line)
    return lines


def _markdown(head: tuple[str, ...], lines: list[list[str]]) -> str:
    table = [" | ".join(head), " | ".join(["---"] + ["--:"] * (len(head) - 1))]
    table += [" | ".join(line) for line in lines]
    return "\n".join(f"| {line} |" for line in table)


def plain(lines: list[list[str]], head: tuple[str, ...] = HEAD) -> str:
    """The table for a terminal."""
    widths = [max(len(line[i]) for line in [list(head), *lines]) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in [list(head), *lines]
    )


def _memory_lines(memory: dict[str, dict[str, dict[str, dict[str, float]]]]) -> list[list[str]]:
    lines = []
    for process in ("broker", "nameserver"):
        for moment in ("idle", "loaded"):
            line = [f"{process}, {moment}"]
            for peer in ("ours", "java"):
                value = memory.get(peer, {}).get(moment, {}).get(process)
                line.append(f"{value['anonymous_mb']:.0f} ({value['rss_mb']:.0f})" if value else "–")
            lines.append(line)
    return lines


def memory_text(memory: dict[str, Any]) -> str:
    """The memory of all four processes, for a terminal."""
    return "\n".join(
        f"{line[0]:22} ours {line[1]:>14} MB   Java {line[2]:>14} MB" for line in _memory_lines(memory)
    )


def _pull_lines(table: dict[str, dict[str, dict[str, float]]]) -> list[list[str]]:
    return [
        [cell.name]
        + [
            f"{table[cell.name][p]['bytes_per_second'] / 1e6:,.0f}" if p in table[cell.name] else "–"
            for p in ("ours", "java")
        ]
        for cell in CELLS
        if cell.kind == "pull" and cell.name in table
    ]


def _pull_parts(table: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    lines = _pull_lines(table)
    title = "## Bytes a second on the wire, pulls (MB)"
    return [title, _markdown(("cell", "ours", "Java"), lines)] if lines else []


def notes(table: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Notes on cells whose results are less reliable."""
    found = []
    for cell in CELLS:
        for peer, row in table.get(cell.name, {}).items():
            if cell.kind != "client" and row["load_cpu_share"] > BUSY_LOAD:
                found.append(
                    f"{cell.name}, {peer}: the load program was busy for {row['load_cpu_share']:.0%} of the"
                    " time"
                )
            if row["foreign_cpu_share"] > 0.25:
                found.append(
                    f"{cell.name}, {peer}: other processes used {row['foreign_cpu_share']:.2f} of a core"
                )
    return found


def write(directory: Path, data: dict[str, Any], name: str = "benchmark") -> tuple[Path, Path]:
    """Writes `NAME-DATE.json` with everything measured and `NAME-DATE.md` with the tables."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{data['date'][:10]}"
    as_json, as_markdown = directory / f"{stem}.json", directory / f"{stem}.md"
    as_json.write_text(json.dumps(data, indent=1) + "\n")
    table = data["medians"]
    facts = "\n".join(f"- {key}: {value}" for key, value in data["machine"].items())
    parts = [
        f"# Ours compared with RocketMQ {data['rocketmq']}, {data['date']}",
        f"`{data['command']}`; medians of {data['rounds']} rounds, in every round each cell first with one"
        f" broker and then with the other (the order changes from round to round), {data['measured_s']:g} s a"
        f" measurement after {data['warmup_s']:g} s of the same load. {data['method']}",
        facts,
        "## Messages",
        _markdown(HEAD, rows(table)),
        "A cell is connections x requests in flight on each. CPU is that of the broker's process for one"
        " message. The goal is the ratio wanted, and a p99 no worse than Java's except for plain pulls. POP:"
        " a message counts when its acknowledgement is answered; latencies are those from a POP to the last"
        " acknowledgement of its messages. Timers due in one second: messages per second from the first"
        " delivery time to the last delivery; latencies tell how long after its delivery time a message was"
        " stored.",
        *_pull_parts(table),
        "## Memory: without pages of mapped files (with them), MB",
        _markdown(("process", "ours", "Java"), _memory_lines(data["memory"])),
    ]
    if lines := checkout_lines(data["measurements"]):
        parts += ["## Beside other checkouts of EpochMQ", _markdown(CHECKOUT_HEAD, lines)]
    if found := notes(table):
        parts += ["## To bear in mind", "\n".join(f"- {note}" for note in found)]
    as_markdown.write_text("\n\n".join(parts) + "\n")
    return as_markdown, as_json
