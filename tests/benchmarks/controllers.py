"""`make bench`, second part: measures Raft groups and controllers, ours and RocketMQ's, under the same loads,
in one run on this machine. See `--help`."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks import controllers_report as report
from tests.benchmarks.build import CACHE, SOURCE, CompilerMissingError, load_program
from tests.benchmarks.machine import describe_machine
from tests.benchmarks.quorums import Quorum, QuorumFailedError, SimulatedBrokers
from tests.benchmarks.raft_groups import DEPTHS, KINDS, RaftGroup
from tests.interop.java_env import JavaMissingError, java_library, rocketmq_version

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
PARTS = ("appends", "elections", "groups", "leases")
ROUND_ATTEMPTS = 3
FULL: dict[str, Any] = {
    "rounds": 5,
    "seconds": 5.0,
    "warmup_s": 1.0,
    "java_warmup_s": 20.0,
    "elections": {"ours": 50, "java": 20},
    "groups": 1000,
}
QUICK: dict[str, Any] = {
    "rounds": 1,
    "seconds": 2.0,
    "warmup_s": 0.5,
    "java_warmup_s": 10.0,
    "elections": {"ours": 5, "java": 3},
    "groups": 1000,
}


def arguments() -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.controllers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round only")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part (repeatable)")
    parser.add_argument("--peers", default="ours,java", help="ours, java, or ours,java (default)")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of the results (default: docs/results; .cache/bench for a partial run)",
    )
    return parser.parse_args()


def measure_appends(names: list[str], folder: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Results by depth and kind, one for each round. Only one group runs at a time. Every round starts new
    groups, in another order."""
    program = load_program(SOURCE.with_name("appends.c"))
    kinds = [kind for kind in KINDS if kind.split(",")[0] in names]
    found: dict[str, dict[str, list[Any]]] = {}
    for number in range(plan["rounds"]):
        for kind in kinds if number % 2 == 0 else kinds[::-1]:
            group = RaftGroup(kind, Path(tempfile.mkdtemp(dir=folder)))
            try:
                group.start()
                warmup_s = plan["java_warmup_s"] if kind == "java" else plan["java_warmup_s"] / 10
                group.appends(program, 64, 0, warmup_s)
                for depth in DEPTHS:
                    result = group.appends(program, depth, plan["warmup_s"], plan["seconds"])
                    found.setdefault(str(depth), {}).setdefault(kind, []).append(result)
                    print(
                        f"round {number + 1}/{plan['rounds']}  appends, {depth:3} in flight  {kind:24}"
                        f" {result['per_second']:>9,.0f}/s  p50 {result['p50_ms']:8.3f}"
                        f"  p99 {result['p99_ms']:8.3f} ms  CPU {result['cpu_us']:7.1f} µs",
                        flush=True,
                    )
            finally:
                group.kill()
                shutil.rmtree(group.folder, ignore_errors=True)
    return found


def measure_elections(names: list[str], folder: Path, plan: dict[str, Any]) -> dict[str, list[float]]:
    """The seconds of each election, by kind."""
    found: dict[str, list[float]] = {}
    for name in names:
        quorum = Quorum(name, folder / f"elections-{name}")
        try:
            quorum.start()
            for number in range(plan["elections"][name]):
                took = quorum.election_s()
                found.setdefault(name, []).append(round(took, 4))
                print(f"election {number + 1}  {name:5} {took:7.3f} s", flush=True)
        finally:
            quorum.kill()
    return found


async def _leases(quorum: Quorum, plan: dict[str, Any]) -> dict[str, Any]:
    async with SimulatedBrokers(quorum, plan["groups"]).connected() as brokers:
        await brokers.register()
        return await brokers.renew(plan["warmup_s"] * 3, plan["seconds"] * 2)


def measure_leases(names: list[str], folder: Path, plan: dict[str, Any]) -> dict[str, list[Any]]:
    """One result for each round. RocketMQ's controllers have no leases."""
    found: dict[str, list[Any]] = {}
    for number in range(plan["rounds"] if "ours" in names else 0):
        quorum = Quorum("ours", folder / f"leases-{number}")
        try:
            quorum.start()
            result = asyncio.run(_leases(quorum, plan))
        finally:
            quorum.kill()
        found.setdefault("ours", []).append(result)
        print(
            f"round {number + 1}/{plan['rounds']}  leases of {result['groups']:,} groups "
            f" {result['per_second']:,} of {result['asked_per_second']:,}/s,"
            f" {result['granted_share']:.1%} granted "
            f" p50 {result['p50_ms']:.2f}  p99 {result['p99_ms']:.2f} ms "
            f" leader {result['leader_cores']:.2f} cores, {result['cpu_us']:.0f} µs a renewal",
            flush=True,
        )
    return found


async def _groups(quorum: Quorum, count: int) -> dict[str, Any]:
    async with SimulatedBrokers(quorum, count).connected() as brokers:
        register_s = await brokers.register()
        memory = quorum.memory()
        lost_s, left = await brokers.lose_masters()
        return {
            "register_s": round(register_s, 3),
            "memory": memory,
            "lost_masters": len(brokers.masters_to_lose),
            "fail_over_s": round(lost_s, 3),
            "not_replaced": left,
        }


def groups_round(name: str, folder: Path, groups: int) -> dict[str, Any]:
    """Runs one round with a new quorum. It is repeated if the quorum changes its leader, for example because
    the machine paused."""
    for attempt in range(1, ROUND_ATTEMPTS + 1):
        quorum = Quorum(name, folder / str(attempt))
        try:
            quorum.start()
            return {"idle_memory": quorum.memory(), **asyncio.run(_groups(quorum, groups))}
        except QuorumFailedError as error:
            if attempt == ROUND_ATTEMPTS:
                raise
            print(f"{name}: repeating the round: {str(error).splitlines()[0]}", flush=True)
        finally:
            quorum.kill()
    raise AssertionError


def measure_groups(names: list[str], folder: Path, plan: dict[str, Any]) -> dict[str, list[Any]]:
    """Results by kind, one for each round, each with a new quorum."""
    found: dict[str, list[Any]] = {}
    for number in range(plan["rounds"]):
        for name in names if number % 2 == 0 else names[::-1]:
            result = groups_round(name, folder / f"groups-{name}-{number}", plan["groups"])
            found.setdefault(name, []).append(result)
            print(
                f"round {number + 1}/{plan['rounds']}  {plan['groups']:,} groups  {name:5}"
                f" registered in {result['register_s']:.1f} s, {result['lost_masters']} masters lost,"
                f" replaced within {result['fail_over_s']:.3f} s ({result['not_replaced']} not);"
                " leader's memory"
                f" {result['idle_memory']['leader'][0]['rss_mb']:.0f}"
                f" -> {result['memory']['leader'][0]['rss_mb']:.0f} MB",
                flush=True,
            )
    return found


def summary(data: dict[str, Any]) -> dict[str, Any]:
    """The medians of all measurements, and the worst times, by part."""
    found: dict[str, Any] = {}
    fields = ("per_second", "p50_ms", "p99_ms", "cpu_us", "load_cpu_share")
    for depth, kinds in data.get("appends", {}).items():
        for kind, results in kinds.items():
            row = {field: round(statistics.median(r[field] for r in results), 3) for field in fields}
            found.setdefault("appends", {}).setdefault(depth, {})[kind] = row
    for name, times in data.get("elections", {}).items():
        row = {"count": len(times), "median_s": round(statistics.median(times), 3), "worst_s": max(times)}
        found.setdefault("elections", {})[name] = row
    for name, results in data.get("groups", {}).items():
        row = {
            "register_s": statistics.median(r["register_s"] for r in results),
            "fail_over_s": statistics.median(r["fail_over_s"] for r in results),
            "fail_over_worst_s": max(r["fail_over_s"] for r in results),
            "lost_masters": results[0]["lost_masters"],
            "not_replaced": max(r["not_replaced"] for r in results),
        }
        for moment, key in (("idle", "idle_memory"), ("with_groups", "memory")):
            for which in ("rss_mb", "anonymous_mb"):
                values = [r[key]["leader"][0][which] for r in results]
                row[f"{moment}_{which}"] = statistics.median(values)
        found.setdefault("groups", {})[name] = row
    for name, results in data.get("leases", {}).items():
        measures = ["groups", "per_second", "asked_per_second", "granted_share", "p50_ms", "p99_ms"]
        measures += ["leader_cores", "cpu_us"]
        row = {field: statistics.median(r[field] for r in results) for field in measures}
        found.setdefault("leases", {})[name] = row
    return found


def main() -> int:
    options = arguments()
    plan: dict[str, Any] = QUICK if options.quick else FULL
    parts, names = list(options.only or PARTS), options.peers.split(",")
    try:
        java_library()
    except JavaMissingError as error:
        print(f"{error}: no RocketMQ to compare with", flush=True)
        names = [name for name in names if name != "java"]
    try:
        load_program(SOURCE.with_name("appends.c"))
    except CompilerMissingError as error:
        print(f"{error}: appends cannot be measured", flush=True)
        parts = [part for part in parts if part != "appends"]
    if not names or not parts:
        print("this machine can measure none of the requested cells")
        return 2
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=CACHE, prefix="controllers-"))
    work = {
        "appends": measure_appends,
        "elections": measure_elections,
        "groups": measure_groups,
        "leases": measure_leases,
    }
    try:
        measured = {part: work[part](names, folder, plan) for part in PARTS if part in parts}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    data: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "rocketmq": rocketmq_version(),
        "machine": describe_machine(),
        "command": " ".join(
            ["python -m tests.benchmarks.controllers", *(["--quick"] if options.quick else [])]
        ),
        "plan": plan,
        "summary": summary(measured),
        "measurements": measured,
    }
    partial = options.quick or options.only or names != ["ours", "java"]
    written = report.write(options.out or (CACHE / "results" if partial else RESULTS), data)
    print("\n" + report.tables(data["summary"], plan))
    print("written: " + ", ".join(str(path) for path in written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
