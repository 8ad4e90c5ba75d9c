"""`make bench`, first part: measures our broker and RocketMQ's under the same loads, in one run on this
machine.

Both brokers run all the time. Every round measures each cell on one broker and then on the other, so that
disturbances of the machine affect both. RocketMQ first gets time to compile its hot paths. See `--help`."""

from __future__ import annotations

import argparse
import datetime
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks import report, result_files
from tests.benchmarks.build import CACHE, ROOT, CompilerMissingError, load_program
from tests.benchmarks.cells import (
    CELLS,
    PULL_TOPIC,
    SEND_TOPIC,
    SQL_TOPIC,
    Cell,
    Kind,
    LoadFailedError,
    MeasuredSpan,
    check_pull,
    fill,
    measure,
)
from tests.benchmarks.machine import OccupiedMemory, describe_machine
from tests.benchmarks.peers import Peer
from tests.interop.java_env import JavaMissingError, java_library, rocketmq_version

RESULTS = ROOT / "docs" / "results"
MESSAGE_BYTES = 1400  # of a record, its consume queue unit and its index entry
STORED_PER_S = 150_000  # both brokers together, the average over the cells that send, at most
IDLE_S = 10
CLIENT_WARMUP_S = 10

SPECIAL: tuple[Kind, ...] = ("transaction", "sql", "pop", "timer", "delivery")
SPECIAL_ROUNDS = 3

FULL = {
    "rounds": 5,
    "span": MeasuredSpan(1.0, 5.0),
    "java_warmup_s": 40.0,
    "pull_messages": 400_000,
    "occupy": True,
}
QUICK = {
    "rounds": 1,
    "span": MeasuredSpan(0.5, 2.0),
    "java_warmup_s": 20.0,
    "pull_messages": 80_000,
    "occupy": False,
}

METHOD = (
    "Both brokers run all the time, with 1 KB bodies, asynchronous flush, commit log files of 1 GiB and"
    " one topic of 8 queues; the load and the brokers share the machine's cores; the disk is quiet"
    " before every measurement{occupied}. Java's broker has a heap of 2 GB and the G1 collector, and"
    " before the first measurement {warmup:g} s of the same sends and pulls, so that its JIT compiler"
    " has compiled the hot paths; ours gets a tenth of that. Every response is checked: code, unique and"
    " dense queue offsets, whole records in order, and once the CRC of each record."
)


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round only")
    parser.add_argument(
        "--only", metavar="TEXT", action="append", help="only cells whose name starts with TEXT (repeatable)"
    )
    parser.add_argument(
        "--special",
        action="store_true",
        help="only transactions, pulls with an SQL92 expression, POP and timer messages, in"
        f" {SPECIAL_ROUNDS} rounds; the results have a file of their own",
    )
    parser.add_argument("--peers", default="ours,java", help="ours, java, or ours,java (default)")
    parser.add_argument(
        "--beside",
        metavar="NAME=CHECKOUT",
        action="append",
        default=[],
        type=other_checkout,
        help="measure the EpochMQ of another checkout, too, which `make install` has prepared (repeatable)",
    )
    parser.add_argument(
        "--rounds", type=int, help=f"default {FULL['rounds']}, with --special {SPECIAL_ROUNDS}"
    )
    parser.add_argument("--seconds", type=float, help="length of one measurement")
    parser.add_argument(
        "--data", type=Path, help="folder of the stores (default: .cache/bench); deleted at the end"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of the results (default: docs/results; .cache/bench for a partial run)",
    )
    return parser.parse_args()


def other_checkout(text: str) -> tuple[str, Path]:
    """Parses NAME=CHECKOUT."""
    name, _, folder = text.partition("=")
    checkout = Path(folder).resolve()
    if not name or not folder or name in ("ours", "java"):
        raise argparse.ArgumentTypeError(f"{text!r}: NAME=CHECKOUT expected, with a name of its own")
    if not (checkout / ".venv" / "bin" / "python").exists():
        raise argparse.ArgumentTypeError(f"{checkout}: no .venv/bin/python; run `make install` there")
    return name, checkout


def chosen_cells(
    only: list[str] | None, program: Path | None, *, java: bool, special: bool = False
) -> list[Cell]:
    """The requested cells that this machine can run."""
    cells = [cell for cell in CELLS if not only or any(cell.name.startswith(text) for text in only)]
    if special:
        cells = [cell for cell in cells if cell.kind in SPECIAL]
    return [c for c in cells if (java if c.needs_java else program is not None)]


def warm_up(peer: Peer, program: Path, seconds: float, kinds: set[Kind]) -> None:
    """Runs the loads of the cells for this many seconds in total, and those of each other kind as long."""
    shapes: list[tuple[Kind, int, int]] = [
        ("send", 16, 16),
        ("send", 1, 64),
        ("send", 16, 1),
        ("pull", 1, 8),
        ("send", 1, 1),
    ]
    for kind, connections, depth in shapes:
        cell = Cell("warm-up", kind, connections, depth, 0)
        measure(cell, peer, program, CACHE, MeasuredSpan(0, seconds / len(shapes)))
    more: list[tuple[Kind, int, int]] = [("sql", 1, 8), ("pop", 16, 1), ("timer", 16, 16)]
    for kind, connections, depth in more:
        if kind in kinds:
            cell = Cell("warm-up", kind, connections, depth, 0)
            measure(cell, peer, program, CACHE, MeasuredSpan(0, seconds / 2))


def start(names: list[str], directory: Path, checkouts: dict[str, Path], kinds: set[Kind]) -> list[Peer]:
    """Starts the peers; stops all of them if one does not start."""
    peers: list[Peer] = []
    try:
        for name in names:
            print(f"starting {name} …", flush=True)
            peer = Peer(name, directory, checkouts.get(name), filters="sql" in kinds)
            peers.append(peer)
            peer.cluster.start()
    except BaseException:
        for peer in peers:
            peer.cluster.stop()
        raise
    return peers


def prepare(
    peers: list[Peer], program: Path | None, java_warmup_s: float, pull_messages: int, kinds: set[Kind]
) -> None:
    """Creates the topics, fills the topics for pulls, and warms up."""
    for peer in peers:
        for topic in (SEND_TOPIC, PULL_TOPIC, SQL_TOPIC):
            peer.create_topic(topic)
        if program is None:
            continue
        print(f"{peer.name}: filling {pull_messages:,} messages, warming up …", flush=True)
        fill(program, peer, PULL_TOPIC, pull_messages)
        if "sql" in kinds:
            fill(program, peer, SQL_TOPIC, pull_messages // 2, "digit=1")
        check_pull(program, peer, PULL_TOPIC, 1.0)
        warm_up(peer, program, java_warmup_s if peer.name == "java" else java_warmup_s / 10, kinds)


def run_rounds(
    peers: list[Peer],
    cells: list[Cell],
    program: Path | None,
    home: Path,
    rounds: int,
    span: MeasuredSpan,
    memory: OccupiedMemory | None,
) -> report.Rounds:
    """Runs all measurements and prints a line for each."""
    results: report.Rounds = {}
    lacking: set[tuple[str, str]] = set()  # cells that an older checkout does not support
    for number in range(rounds):
        if memory is not None:
            memory.occupy()
        for cell in cells:
            for peer in peers if number % 2 == 0 else peers[::-1]:
                cell_span = MeasuredSpan(CLIENT_WARMUP_S, span.measured_s) if cell.needs_java else span
                if (cell.name, peer.name) in lacking:
                    continue
                try:
                    result = measure(cell, peer, program, home, cell_span)
                except LoadFailedError as error:
                    if peer.name in ("ours", "java"):
                        raise
                    lacking.add((cell.name, peer.name))
                    print(f"{cell.name}: left out for {peer.name}, which failed: {str(error)[-200:]}")
                    continue
                results.setdefault(cell.name, {}).setdefault(peer.name, []).append(result)
                print(
                    f"round {number + 1}/{rounds}  {cell.name:24} {peer.name:8}"
                    f" {result['per_second']:>10,.0f} msg/s"
                    f"  p50 {result['p50_ms']:8.3f}  p99 {result['p99_ms']:8.3f} ms"
                    f"  CPU {result['broker_cpu_us']:6.1f} µs/msg",
                    flush=True,
                )
    return results


def available(wanted: list[str]) -> tuple[list[str], Path | None]:
    """The peers and the load program that this machine can run; prints what is missing."""
    program = None
    try:
        program = load_program()
    except CompilerMissingError as error:
        print(f"{error}: only the Java client can be measured", flush=True)
    try:
        java_library()
    except JavaMissingError as error:
        print(f"{error}: no RocketMQ to compare with", flush=True)
        wanted = [name for name in wanted if name != "java"]
    return wanted, program


def main() -> int:
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # runs the finally blocks, which stop the brokers
    options = arguments()
    plan: dict[str, Any] = {**(QUICK if options.quick else FULL)}
    if options.special and not options.quick:
        plan["rounds"] = SPECIAL_ROUNDS
    plan["rounds"] = options.rounds or plan["rounds"]
    if options.seconds:
        plan["span"] = MeasuredSpan(plan["span"].warmup_s, options.seconds)
    names, program = available(options.peers.split(","))
    cells = chosen_cells(options.only, program, java="java" in names, special=options.special)
    if not names or not cells:
        print("this machine can measure none of the requested cells")
        return 2
    partial = bool(options.quick or options.only or names != ["ours", "java"])
    checkouts = dict(options.beside)
    names += checkouts
    parent = options.data or CACHE
    parent.mkdir(parents=True, exist_ok=True)
    sending = sum(cell.kind != "pull" for cell in cells)
    needed = plan["rounds"] * sending * (plan["span"].measured_s + 1) * STORED_PER_S * MESSAGE_BYTES
    needed *= max(len(names) / 2, 1)
    if shutil.disk_usage(parent).free < needed:
        print(
            f"{parent}: less than {needed / 1e9:.0f} GB free, which a run may need; try --quick or --rounds"
        )
        return 2
    directory = Path(tempfile.mkdtemp(dir=parent, prefix="data-"))
    try:
        data = _measure_all(names, checkouts, cells, program, directory, plan)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    data["command"] = result_files.command_line("tests.benchmarks", sys.argv[1:])
    print(f"\n{report.plain(report.rows(data['medians']))}\n\nmemory without (with) pages of mapped files:")
    print(report.memory_text(data["memory"]))
    if lines := report.checkout_lines(data["measurements"]):
        print(f"\n{report.plain(lines, report.CHECKOUT_HEAD)}")
    print("\n".join(f"note: {note}" for note in report.notes(data["medians"])))
    name = "special-messages" if options.special else "benchmark"
    written = report.write(options.out or (CACHE / "results" if partial else RESULTS), data, name)
    print("written: " + ", ".join(str(path) for path in written))
    return 0


def _measure_all(
    names: list[str],
    checkouts: dict[str, Path],
    cells: list[Cell],
    program: Path | None,
    directory: Path,
    plan: dict[str, Any],
) -> dict[str, Any]:
    kinds = {cell.kind for cell in cells}
    peers = start(names, directory, checkouts, kinds)
    try:
        time.sleep(IDLE_S)  # memory that start-up has used is released first
        memory = {peer.name: {"idle": peer.memory()} for peer in peers}
        occupied = OccupiedMemory(directory) if plan["occupy"] else None
        if occupied is not None:
            print("touching all free memory …", flush=True)
            occupied.occupy()
        prepare(peers, program, plan["java_warmup_s"], plan["pull_messages"], kinds)
        rounds = run_rounds(peers, cells, program, directory, plan["rounds"], plan["span"], occupied)
        for peer in peers:
            memory[peer.name]["loaded"] = peer.memory()
    finally:
        for peer in peers:
            peer.cluster.abandon()
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "rocketmq": rocketmq_version(),
        "machine": describe_machine(),
        "rounds": plan["rounds"],
        "warmup_s": plan["span"].warmup_s,
        "measured_s": plan["span"].measured_s,
        "method": METHOD.format(
            warmup=plan["java_warmup_s"],
            occupied=" and no memory is untouched (`OccupiedMemory`)" if plan["occupy"] else "",
        ),
        "medians": report.medians(rounds),
        "memory": memory,
        "measurements": rounds,
    }


if __name__ == "__main__":
    sys.exit(main())
