"""Runs commands of RocketMQ's own `mqadmin` against a cluster, in one JVM, and removes from their output what
must differ between two clusters (addresses, times, ids, rates).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tests.interop.java_env import JavaFailedError, compile_java, java_command
from tests.support.cluster import ClientAccess

MARK = "@@ "
STOP_TIMEOUT_S = 60
UNTIL_TIMEOUT_S = 120
UNTIL_PAUSE_S = 1
TRIES = 12
BUSY = re.compile(
    r"RemotingTimeoutException|RemotingConnectException|RemotingTooMuchRequestException|TIMEOUT_CLEAN_QUEUE"
)
"""Errors of a command that timed out on a busy machine; it is repeated."""


class Step(NamedTuple):
    """One command of the scenario and how its output is compared.

    `until`: repeated until the output matches, for what is sampled every ten seconds. `only`: just the lines
    that match. `rates`: numbers with a decimal point are rates or times and differ. `hidden`: patterns that
    differ for a reason of their own. `any_order`: the lines come in the order of a hash table. `is_json`: the
    output ends with a JSON document, whose keys come in that order.
    """

    command: str
    until: str | None = None
    only: str | None = None
    rates: bool = False
    hidden: tuple[str, ...] = ()
    dropped: str | None = None
    any_order: bool = False
    is_json: bool = False

    @property
    def is_actor(self) -> bool:
        """Whether this step only creates something for the commands to show."""
        return self.command.startswith("@")


class CommandOutput(NamedTuple):
    """The output of a command, and the exception that it ended with ("" for none)."""

    out: str
    error: str


class AdministeredCluster(Protocol):
    """What `MqAdmin` has to know of a cluster."""

    @property
    def directory(self) -> Path: ...
    @property
    def cluster_name(self) -> str: ...
    @property
    def broker_name(self) -> str: ...
    @property
    def broker_address(self) -> str: ...
    @property
    def nameserver_address(self) -> str: ...
    @property
    def inner_access(self) -> ClientAccess: ...


class MqAdmin:
    """A JVM that runs `mqadmin` commands against one cluster. Words in braces stand for what differs between
    clusters: {broker}, {nameserver}, {cluster}, {name}, {dir}, {id0} and {key0} (offset message id and unique
    key of the first message made)."""

    def __init__(self, cluster: AdministeredCluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.words = {
            "broker": cluster.broker_address,
            "nameserver": cluster.nameserver_address,
            "cluster": cluster.cluster_name,
            "name": cluster.broker_name,
            "dir": str(directory),
        }
        access = cluster.inner_access
        if access.administrator is not None:
            name, password = access.administrator
            (directory / "conf").mkdir()
            (directory / "conf" / "tools.yml").write_text(f"accessKey: {name}\nsecretKey: {password}\n")
        self._process = subprocess.Popen(
            java_command(
                "epochmq.interop.AdminDriver",
                [access.nameserver],
                home=directory,
                classes=compile_java("AdminDriver.java"),
                heap_mb=256,
                jvm=access.jvm,
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=directory,
            env={**os.environ, "ROCKETMQ_HOME": str(directory)},
        )

    def run(self, batch: Iterable[Step]) -> list[CommandOutput]:
        """Runs a batch in parallel, repeats commands that wait for something, and returns their outputs in
        order."""
        steps = list(batch)
        outcomes = self._send([step.command for step in steps])
        for at, step in enumerate(steps):
            for _ in range(1, TRIES):
                if step.is_actor or not BUSY.search("".join(outcomes[at])):
                    break
                outcomes[at] = self._send([step.command])[0]
            if step.until is not None:
                outcomes[at] = self._repeat(step, outcomes[at])
            if step.is_actor and outcomes[at].error:
                raise JavaFailedError(f"{step.command}: {outcomes[at].error}\n{outcomes[at].out}")
            if step.command.startswith("@produce") and "id0" not in self.words:
                self.words["id0"], self.words["key0"] = outcomes[at].out.split("\n")[0].split()
        return outcomes

    def _repeat(self, step: Step, outcome: CommandOutput) -> CommandOutput:
        assert step.until is not None
        deadline = time.monotonic() + UNTIL_TIMEOUT_S
        while re.search(step.until, outcome.out, re.M) is None and time.monotonic() < deadline:
            time.sleep(UNTIL_PAUSE_S)
            outcome = self._send([step.command])[0]
        return outcome

    def _send(self, commands: Sequence[str]) -> list[CommandOutput]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words = [[word.format(**self.words) for word in command.split()] for command in commands]
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(MARK):
                rows: list[dict[str, Any]] = json.loads(line.removeprefix(MARK))
                return [CommandOutput(row["out"], row.get("error", "")) for row in rows]
        raise JavaFailedError(f"the mqadmin JVM ended with {self._process.wait()}")

    def close(self) -> None:
        """Ends the JVM."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def comparable(self, step: Step, outcome: CommandOutput) -> list[str]:
        """The lines of an output without everything that two clusters cannot have in common."""
        cluster = self.cluster
        text = f"{outcome.error}\n{outcome.out}"
        if step.is_json and "{" in text:
            title, document = text.split("{", 1)
            text = title + json.dumps(json.loads("{" + document), indent=1, sort_keys=True)
        for own, name in (
            (str(self.directory), "DIR"),
            (str(cluster.directory), "DIR"),
            (cluster.broker_address, "BROKER"),
            (cluster.nameserver_address, "NAMESERVER"),
        ):
            text = text.replace(own, name)
        masks = [
            (r"\b127\.0\.0\.1:\d+", "CLIENT"),
            (r"\b[0-9A-F]{32}\b", "ID"),
            (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(,\d+)?", "DATE"),
            (r"\b\d{13}\b", "MILLISECONDS"),
            (r"\$\$Lambda\$\S+", "LAMBDA"),
            (r"@[0-9a-f]{5,8}\b", "@HASH"),
            *((pattern, "HIDDEN") for pattern in step.hidden),
        ]
        if step.rates:
            masks.append((r"\b\d+\.\d+\b", "RATE"))
            # The timer column of clusterList: how many seconds RocketMQ's timer thread lags.
            masks.append((r"\b\d+-\d+\(", "BEHIND("))
        for pattern, word in masks:
            text = re.sub(pattern, word, text, flags=re.M)
        lines = [re.sub(r"[ \t]+", " ", line).strip() for line in text.split("\n")]
        if step.only is not None:
            lines = [line for line in lines if re.search(step.only, line)]
        if step.dropped is not None:
            lines = [line for line in lines if not re.search(step.dropped, line)]
        lines = [line for line in lines if line]
        return sorted(lines) if step.any_order else lines
