"""Starts and signals the processes of a cluster through its init process, which alone knows them, and runs
commands in its namespaces."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.kubernetes.testbed.cache import ROOT
from tests.kubernetes.testbed.cleanup import claimed, hierarchies
from tests.kubernetes.testbed.init_process import SOCKET
from tests.kubernetes.testbed.layout import Layout

START_TIMEOUT_S = 120
END_TIMEOUT_S = 900  # a slow disk takes minutes to remove the unpacked images
COMMAND_TIMEOUT_S = 300
POLL_S = 0.05
PROCESS_HIERARCHIES = ("pids", "freezer", "systemd")
"""The hierarchies of control groups version 1 to look for; they only count processes, and the cluster's
processes have their groups there."""


class TestbedError(Exception):
    """An operation of the cluster failed; the message contains its output."""

    __test__ = False  # pytest collects classes by their name


def wait_for(condition: Callable[[], Any], *, timeout_s: float, what: str, poll_s: float = POLL_S) -> Any:
    """The first value of `condition` that is true; TestbedError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TestbedError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(poll_s)
    return value


def process_hierarchy() -> Path:
    """The hierarchy whose control groups tell which cluster a process belongs to."""
    found = {path.name: path for path in hierarchies()}
    return next((found[name] for name in PROCESS_HIERARCHIES if name in found), hierarchies()[0])


class Processes:
    """The processes of a cluster."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._unshare: subprocess.Popen[bytes] | None = None

    def begin(self, *, leashed: bool) -> None:
        """Starts the init process. If leashed, it ends with this process, else on request."""
        folder = self._layout.folder
        command = [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *(sys.executable, "-m", "tests.kubernetes.testbed.init_process"),
            *(str(folder), self._layout.cgroup, *(["leash"] if leashed else [])),
        ]
        self._layout.logs.mkdir(parents=True, exist_ok=True)
        with claimed(folder) as lock, (self._layout.logs / "init.log").open("ab") as output:
            self._unshare = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE if leashed else subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(lock,),
                start_new_session=True,
            )
            wait_for(self._answers, timeout_s=START_TIMEOUT_S, what="the init process responds")

    def _answers(self) -> bool:
        assert self._unshare is not None
        if self._unshare.poll() is not None:
            printed = (self._layout.logs / "init.log").read_text(errors="replace")
            raise TestbedError(f"the init process ended with {self._unshare.returncode}: {printed[-2000:]}")
        return (self._layout.folder / SOCKET).exists() and "error" not in self._ask(do="status", name="")

    def end(self) -> None:
        """Ends all processes and removes the cluster's files."""
        if self._layout.folder.exists():
            self._ask(do="end")
        if self._unshare is not None:
            if self._unshare.stdin is not None:
                self._unshare.stdin.close()
            try:
                self._unshare.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._unshare.kill()  # and, by --kill-child, all processes of the cluster
                self._unshare.wait()
        wait_for(lambda: not self._layout.folder.exists(), timeout_s=END_TIMEOUT_S, what="its folder is gone")

    def _ask(self, **request: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(START_TIMEOUT_S)
            try:
                connection.connect(str(self._layout.folder / SOCKET))
                with connection.makefile("rwb") as stream:
                    stream.write(json.dumps(request).encode() + b"\n")
                    stream.flush()
                    line = stream.readline()
            except OSError as error:
                return {"error": f"the init process of cluster {self._layout.name} does not respond: {error}"}
        return dict(json.loads(line)) if line else {"error": "the init process sent no response"}

    def _request(self, **request: Any) -> dict[str, Any]:
        response = self._ask(**request)
        if "error" in response:
            raise TestbedError(response["error"])
        return response

    @property
    def init_pid(self) -> int:
        """The id of the cluster's process 1 outside its namespace, by the credentials of its socket."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self._layout.folder / SOCKET))
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", peer)[0])

    def namespace(self, node: str) -> Path:
        """The file of a node's network namespace for `nsenter --net=` outside."""
        return Path(f"/proc/{self.init_pid}/root/run/netns/{node}")

    def start(self, name: str, command: Sequence[str | Path], *, node: str | None, cgroup: str) -> None:
        """Starts a process of the cluster in a node's network (None: the machine's)."""
        folder = process_hierarchy() / cgroup.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        enter = [] if node is None else ["nsenter", f"--net=/run/netns/{node}", "--"]
        self._request(
            do="start",
            name=name,
            command=[*enter, *map(str, command)],
            log=str(self.log(name)),
            cgroup=str(folder),
        )

    def log(self, name: str) -> Path:
        """The log of a process."""
        return self._layout.logs / f"{name}.log"

    def runs(self, name: str) -> bool:
        """Whether a started process still runs."""
        return bool(self._request(do="status", name=name)["runs"])

    def signal(self, name: str, number: signal.Signals) -> bool:
        """Sends a signal; False if the process does not run."""
        return bool(self._request(do="signal", name=name, number=int(number))["sent"])

    def stop(self, name: str, *, timeout_s: float = 30) -> None:
        """Ends a process by SIGTERM, then by SIGKILL, and waits for its end."""
        if not self.signal(name, signal.SIGTERM):
            return
        try:
            wait_for(lambda: not self.runs(name), timeout_s=timeout_s, what=f"{name} ends")
        except TestbedError:
            self.kill(name)

    def kill(self, name: str) -> None:
        """Kills a process and waits for its end."""
        if self.signal(name, signal.SIGKILL):
            wait_for(lambda: not self.runs(name), timeout_s=START_TIMEOUT_S, what=f"{name} is gone")

    def kill_group(self, cgroup: str) -> int:
        """Kills every process in a control group and those below it until none is left; returns their
        number."""
        top = process_hierarchy() / cgroup.strip("/")
        killed: set[int] = set()

        def none_left() -> bool:
            left = pids_below(top)
            for pid in left:
                # The id was read from the group just now; it stays taken until the parent reaps the process.
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                killed.add(pid)
            return not left

        wait_for(none_left, timeout_s=START_TIMEOUT_S, what=f"control group {cgroup} is empty")
        return len(killed)

    def signal_in(self, cgroup: str, pid: int, number: signal.Signals) -> None:
        """Sends a signal to one process of a control group; TestbedError if the group does not contain it."""
        handle = os.pidfd_open(pid)
        try:
            # The handle refers to one process from here on; check that the group contains it.
            if pid not in pids_below(process_hierarchy() / cgroup.strip("/")):
                raise TestbedError(f"process {pid} is none of {cgroup}")
            signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)

    def inside(
        self,
        script: str,
        *,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> str:
        """Runs a shell script with the cluster's mounts and processes in the machine's network; returns its
        output. TestbedError if a line fails."""
        command = ["nsenter", "--target", str(self.init_pid), "--mount", "--pid", "--"]
        return run([*command, "sh", "-euc", script], environment=environment, timeout_s=timeout_s)


def pids_below(cgroup: Path) -> list[int]:
    """The ids, outside the cluster, of the processes in a control group and those below it."""
    pids = []
    for folder, _, files in os.walk(cgroup):
        if "cgroup.procs" in files:
            try:
                pids += [int(pid) for pid in Path(folder, "cgroup.procs").read_text().split()]
            except OSError:
                continue  # removed meanwhile
    return [pid for pid in pids if pid > 0]


def run(
    command: Sequence[str | Path],
    *,
    timeout_s: float = COMMAND_TIMEOUT_S,
    stdin: str | None = None,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Runs a command; returns its output. TestbedError if it fails or takes too long."""
    shown = " ".join(map(str, command))[:300]
    try:
        done = subprocess.run(
            [str(part) for part in command],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**os.environ, **(environment or {})},
            cwd=cwd,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TestbedError(f"not within {timeout_s:.0f} s: {shown}") from None
    if done.returncode != 0:
        raise TestbedError(
            f"{shown} ended with {done.returncode}: {(done.stderr + done.stdout).strip()[-3000:]}"
        )
    return done.stdout
