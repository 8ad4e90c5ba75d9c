"""The common part of the benchmarks that fill the disk: command line, check of disk space, report."""

from __future__ import annotations

import argparse
import datetime
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks import result_files
from tests.benchmarks.build import CACHE, ROOT, CompilerMissingError, load_program
from tests.benchmarks.machine import describe_machine
from tests.interop.java_env import JavaMissingError, java_library, rocketmq_version

RESULTS = ROOT / "docs" / "results"
RECORD_BYTES = 1230
"""Bytes of one message of the load in the log."""
STORED_BYTES = 1300
"""The same with its consume queue unit and its index entry."""
SPARE_BYTES = 6 << 30

Plan = dict[str, Any]
Measure = Callable[[Path, list[str], Path, Plan], dict[str, Any]]
"""(load program, peers, folder, plan) -> measured values."""


def parser(module: str, about: str | None) -> argparse.ArgumentParser:
    """A parser with the common options."""
    common = argparse.ArgumentParser(prog=f"python -m tests.benchmarks.{module}", description=about)
    common.add_argument("--quick", action="store_true", help="one small round only")
    common.add_argument("--peers", default="ours,java", help="ours, java, or ours,java (default)")
    common.add_argument(
        "--data", type=Path, help="folder of the stores (default: .cache/bench); deleted at the end"
    )
    common.add_argument(
        "--out",
        type=Path,
        help="folder of the results (default: docs/results; .cache/bench for a partial run)",
    )
    return common


def main(
    module: str,
    options: argparse.Namespace,
    plan: Plan,
    *,
    needed_bytes: float,
    whole: bool,
    measure: Measure,
    summarise: Callable[[dict[str, Any]], dict[str, Any]],
    describe: Callable[[dict[str, Any], Plan], tuple[str, str]],
) -> int:
    """Measures, prints and writes the results. `describe` returns the introduction and the tables of a
    summary. Results of a `whole` run of both peers are written to docs/results."""
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # runs the finally blocks, which stop processes
    names = options.peers.split(",")
    try:
        program = load_program()
    except CompilerMissingError as error:
        print(f"{error}: cannot produce the load")
        return 2
    try:
        java_library()
    except JavaMissingError as error:
        print(f"{error}: no RocketMQ to compare with", flush=True)
        names = [name for name in names if name != "java"]
    parent = options.data or CACHE
    parent.mkdir(parents=True, exist_ok=True)
    needed = needed_bytes + SPARE_BYTES
    if shutil.disk_usage(parent).free < needed:
        print(f"{parent}: less than {needed / 1e9:.0f} GB free, which this run may need; see --help")
        return 2
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=f"{module}-"))
    try:
        measured = measure(program, names, folder, plan)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    data: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "rocketmq": rocketmq_version(),
        "machine": describe_machine(),
        "command": result_files.command_line(f"tests.benchmarks.{module}", sys.argv[1:]),
        "plan": plan,
        "summary": summarise(measured),
        "measurements": measured,
    }
    about, tables = describe(data["summary"], plan)
    intro = [
        f"# {about.partition(chr(10))[0]}, {data['date']}",
        f"`{data['command']}`, RocketMQ {data['rocketmq']}. {about.partition(chr(10))[2]}",
    ]
    partial = options.quick or not whole or names != ["ours", "java"]
    directory = options.out or (CACHE / "results" if partial else RESULTS)
    written = result_files.write(directory, module.replace("_", "-"), data, intro, tables)
    print(f"\n{tables}\n\nwritten: {', '.join(map(str, written))}")
    return 0


def fresh_folder(folder: Path) -> Path:
    """A new folder for one cluster."""
    return Path(tempfile.mkdtemp(dir=folder))
