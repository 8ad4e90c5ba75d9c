"""The verbs of `epochmq` on a state directory and a resource file, as people type them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.support.cluster import NEVER_BUSY, NEVER_BUSY_YAML
from tests.support.command import patience
from tests.support.process import wait_until

COMMAND = [sys.executable, "-m", "epochmq"]
UP_S = 200
"""How long a group may take to be ready."""
TIMEOUT_S = 240
"""How long a command may take."""
ONE_BROKER = """\
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata:
  name: {name}
spec:
  replicas: 1
  brokerName: {name}-a
  config:
    mappedFileSizeCommitLog: 33554432
{config}
"""
THREE_REPLICAS = f"""\
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata: {{name: orders}}
spec:
  replicas: 3
  brokerName: orders-a
  config: {{mappedFileSizeCommitLog: 33554432, {NEVER_BUSY_YAML}}}
"""


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


class UpRun:
    """A state directory and a resource file of a test."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.state = directory / "state"
        self.file = directory / f"{name}.yaml"

    def call(
        self, *arguments: str, stdin: str | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs the command to its end, with these variables of the environment, too."""
        return subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={**os.environ, **environment},
        )

    def here(self, verb: str, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a verb on the state directory to its end."""
        return self.call(
            verb, *arguments, *patience([verb, *arguments]), "--state", str(self.state), stdin=stdin
        )

    def ok(self, verb: str, *arguments: str, stdin: str | None = None) -> str:
        """The output of a verb, which must succeed."""
        done = self.here(verb, *arguments, stdin=stdin)
        ended = f"{verb} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, f"{ended}\n{self.logs()}"
        assert "Traceback" not in done.stderr
        return done.stdout

    def logs(self) -> str:
        """The end of every pod's log."""
        paths = sorted((self.state / "logs").glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text()[-4000:]}" for path in paths)

    def try_up(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Runs `up` detached, to its end."""
        return self.here("up", "-f", str(self.file), "--detach", "--timeout", str(UP_S), *options)

    def up(self) -> str:
        """The output of `up`, detached, which must succeed."""
        return self.ok("up", "-f", str(self.file), "--detach", "--timeout", str(UP_S))

    def receive(
        self, expected: Iterable[str], group: str, topic: str = "orders", *, broker_group: str | None = None
    ) -> None:
        """Reads as this consumer group until it has every expected body. It must get nothing else, and one
        call must get no stored message twice. A message may be stored twice: a producer without a response
        sends again after 3 s."""
        missing = set(expected)
        sent = frozenset(missing)
        while missing:
            options = ["--group", group, "--count", str(len(missing)), "--timeout", "120", "-o", "json"]
            if broker_group is not None:
                options += ["--broker-group", broker_group]
            messages = [json.loads(line) for line in self.ok("consume", topic, *options).splitlines()]
            places = [(one["brokerName"], one["queueId"], one["queueOffset"]) for one in messages]
            assert len(set(places)) == len(places), "a stored message was delivered twice"
            bodies = {one["body"] for one in messages}
            assert bodies <= sent, sorted(bodies - sent)
            missing -= bodies

    def status(self) -> Any:
        """The status as JSON."""
        return json.loads(self.ok("status", "-o", "json"))


class OneBrokerRun(UpRun):
    """A run of a group of one broker and its nameserver."""

    def __init__(self, directory: Path, name: str = "orders") -> None:
        super().__init__(directory, name)
        self.name = name
        self.write()

    def write(self, **config: object) -> None:
        """Writes the resource with these configuration keys."""
        entries = {**NEVER_BUSY, **config}
        lines = "\n".join(f"    {key}: {json.dumps(value)}" for key, value in entries.items())
        self.file.write_text(ONE_BROKER.format(name=self.name, config=lines))

    def pids(self) -> tuple[int, int]:
        """The process ids of the nameserver and the broker."""
        found = self.status()
        return found["nameserverPods"][0]["pid"], found["brokerGroups"][0]["replicas"][0]["pid"]

    def consume(self, *arguments: str) -> list[str]:
        """The bodies that `consume` reads of the topic `orders`."""
        return self.ok("consume", "orders", "--timeout", "120", *arguments).splitlines()


class GroupRun(UpRun):
    """A run of a group of three replicas."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "orders")
        self.file.write_text(THREE_REPLICAS)

    def group(self) -> Any:
        """The group's status as JSON."""
        (group,) = self.status()["brokerGroups"]
        return group

    def master(self) -> Any:
        """The replica that is the master; None unless exactly one serves."""
        masters = [one for one in self.group()["replicas"] if one["role"] == "master"]
        return masters[0] if len(masters) == 1 and masters[0]["pid"] is not None else None

    def wait_master(self) -> Any:
        """`master`, once there is one."""
        found: list[Any] = []

        def there() -> bool:
            found[:] = [self.master()]
            return found[0] is not None

        self.until(there, "a replica is the master")
        return found[0]

    def wait_slaves(self) -> list[Any]:
        """The status of every replica but the master, once all of them are slaves. A replica that is late to
        answer the status has no role in it."""
        found: list[Any] = []

        def there() -> bool:
            replicas = self.group()["replicas"]
            found[:] = [one for one in replicas if one["role"] == "slave"]
            return sum(one["role"] == "master" for one in replicas) == 1 and len(found) == len(replicas) - 1

        self.until(there, "one replica is the master, the others are slaves")
        return found

    def is_master(self, pod: str) -> bool:
        """Whether this pod is the only master."""
        master = self.master()
        return master is not None and master["pod"] == pod

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for a condition; a failure shows the pods' logs."""
        try:
            wait_until(condition, what=what)
        except AssertionError as error:
            error.add_note(self.logs())
            raise

    def whole(self) -> bool:
        """Whether every replica is in the SyncStateSet."""
        return bool(self.group()["phase"] == "Ready")

    def bodies(self, group: str, count: int, topic: str = "orders") -> list[str]:
        """The bodies of `count` messages that this consumer group reads."""
        output = self.ok("consume", topic, "--group", group, "--count", str(count), "--timeout", "120")
        return sorted(output.splitlines())


def wait_healed(run: OneBrokerRun, killed: int) -> None:
    """Waits until a new broker process is ready."""

    def healed() -> bool:
        (replica,) = run.status()["brokerGroups"][0]["replicas"]
        return bool(replica["ready"] and replica["pid"] != killed and replica["restarts"])

    try:
        wait_until(healed, what="the broker started again and ready")
    except AssertionError as error:
        for path in (run.state / "supervisor.log", run.state / "logs" / "orders-broker-0.log"):
            if path.exists():
                error.add_note(f"{path.name}:\n{path.read_text()[-4000:]}")
        raise


def spoil(run: OneBrokerRun) -> None:
    """Makes the place of the broker's store unwritable."""
    store = run.state / "volumes" / "orders-broker-0"
    run.state.mkdir()
    (run.state / "lock").touch()
    store.mkdir(parents=True)
    (store / "store").mkdir()
    (store / "store" / "commitlog").write_text("a file in the place of a directory")


def kill_supervisor(run: OneBrokerRun) -> None:
    """Kills the supervisor; returns when it is gone."""
    pid = run.status()["supervisorPid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid), what="the supervisor is gone")
