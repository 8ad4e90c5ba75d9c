"""Runs scenarios of the Java client (`tests/interop/java/Driver.java`) against a cluster, all of a test run
in one JVM, and gives each test the report of its own scenario."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interop.java_env import compile_java, java_command
from tests.support.cluster import ClientAccess, Cluster, access_of

SOURCES = (
    "Driver.java",
    "Access.java",
    "Clients.java",
    "Kit.java",
    "SendScenarios.java",
    "ConsumeScenarios.java",
    "RetryScenarios.java",
    "GroupScenarios.java",
    "LookupScenarios.java",
    "ChannelScenarios.java",
    "ControlScenarios.java",
    "TransactionScenarios.java",
    "TimerScenarios.java",
    "FilterScenarios.java",
    "PopScenarios.java",
    "PriorityScenarios.java",
    "StaticTopicScenarios.java",
    "BatchTopicScenarios.java",
    "CompactionScenarios.java",
)
# Scenarios that measure time run by themselves, after the others.
ALONE = frozenset({"long_poll"})
# Scenarios that mostly wait start first.
PATIENT = frozenset(
    {"retry", "dead_letter", "orderly_dead_letter", "delay", "request_reply", "takeover_kill"}
    | {"pop_push", "pop_switch", "pop_requests"}
    | {"transaction_end", "transaction_check", "transaction_discard", "transaction_immunity"}
    | {"timer", "timer_recall", "timer_delete", "timer_many"}
)
RUN_TIMEOUT_S = 480
READY = b'{"ready"'

ScenarioReport = dict[str, Any]


@dataclass
class DriverRun:
    """The reports of one JVM: facts and errors by scenario, and the end of its error output."""

    facts: dict[str, ScenarioReport] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    complaints: str = ""

    def of(self, scenario: str) -> ScenarioReport:
        """The report of a scenario; an assertion error when it failed or never reported."""
        assert scenario not in self.errors, f"{scenario}: {self.errors[scenario]}"
        assert scenario in self.facts, f"{scenario} never reported; the JVM said:\n{self.complaints}"
        return self.facts[scenario]


def run_scenarios(
    cluster: Cluster | ClientAccess | str,
    names: Sequence[str],
    home: Path,
    *,
    jvm: Sequence[str] = (),
    on_ready: Callable[[], None] | None = None,
) -> DriverRun:
    """Runs the scenarios against a cluster, or that of a nameserver's address, and collects their reports; if
    the JVM hangs, those so far count.

    A scenario that announces itself ready gets a line when `on_ready` has been called."""
    together = sorted((n for n in names if n not in ALONE), key=lambda n: (n not in PATIENT, n))
    alone = sorted(n for n in names if n in ALONE)
    access = access_of(cluster)
    args = [access.nameserver, *together, "--", *alone]
    home.mkdir(parents=True, exist_ok=True)
    command = java_command(
        "epochmq.interop.Driver",
        args,
        home=home,
        classes=compile_java(*SOURCES),
        heap_mb=768,
        jvm=[*jvm, *access.jvm],
    )
    run = DriverRun()
    with (
        (home / "stderr").open("wb") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        deadline = threading.Timer(RUN_TIMEOUT_S, process.kill)
        deadline.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            for line in process.stdout:
                _take(run, line)
                if line.startswith(READY) and on_ready is not None:
                    on_ready()
                    process.stdin.write(b"\n")
                    process.stdin.flush()
        finally:
            deadline.cancel()
            process.kill()
    run.complaints = (home / "stderr").read_text(errors="replace")[-4000:]
    return run


def _take(run: DriverRun, line: bytes) -> None:
    """Reads one line of the driver; lines of libraries are ignored."""
    if not line.startswith(b'{"scenario"'):
        return
    report_line = json.loads(line)
    name = report_line["scenario"]
    run.facts[name] = report_line["facts"]
    run.seconds[name] = report_line["seconds"]
    if "error" in report_line:
        run.errors[name] = report_line["error"] + "\nfacts so far: " + json.dumps(report_line["facts"])[:2000]
