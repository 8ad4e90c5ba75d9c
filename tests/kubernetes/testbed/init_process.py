"""The first process of a cluster: process 1 of a PID namespace with its own mounts. It or its children start
every process of the cluster, so when it ends, for whatever reason, the kernel ends all of them and drops
their mounts and network namespaces. A killed cluster leaves only files and empty control groups.

It serves requests on a Unix socket in the cluster's folder, one line of JSON for each connection. It ends on
request, on SIGTERM, or when the pipe it was given is closed, that is when the tests that started it are gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kubernetes.testbed.cleanup import remove_cgroups, remove_folder

SOCKET = "init.sock"
REQUEST_BYTES_MAX = 1 << 20
REQUEST_TIMEOUT_S = 10
ENTER = 'echo 0 >"$0" && exec "$@"'
"""A shell moves itself into a control group and then executes the command."""
ENDED_MAX = 1000
"""The number of ended processes that it remembers."""


class InitProcess:
    """Starts, signals and reaps."""

    def __init__(self, folder: Path, cgroup: str, leash: int | None) -> None:
        self._folder = folder
        self._cgroup = cgroup
        self._leash = leash
        self._children: dict[int, str] = {}
        self._ended: dict[str, int] = {}
        self._wanted = True

    def run(self) -> None:
        """Serves until it is to end; then ends all processes and removes what is left of the cluster."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        with socket.socket(socket.AF_UNIX) as server, selectors.DefaultSelector() as ready:
            server.bind(str(self._folder / SOCKET))
            server.listen(64)
            ready.register(wake_read, selectors.EVENT_READ, lambda: os.read(wake_read, 512))
            ready.register(server, selectors.EVENT_READ, lambda: self._serve(server))
            if self._leash is not None:
                ready.register(self._leash, selectors.EVENT_READ, self._on_leash)
            while self._wanted:
                for key, _ in ready.select():
                    key.data()
                self._reap()
        self._end()

    def _on_signal(self, number: int, _frame: Any) -> None:
        if number != signal.SIGCHLD:
            self._wanted = False

    def _on_leash(self) -> None:
        assert self._leash is not None
        if not os.read(self._leash, 512):
            self._wanted = False

    def _serve(self, server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.settimeout(REQUEST_TIMEOUT_S)
            with connection.makefile("rwb") as stream:
                line = stream.readline(REQUEST_BYTES_MAX)
                if line:
                    stream.write(json.dumps(self._answer(line)).encode() + b"\n")

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            match request["do"]:
                case "start":
                    self._start(request["name"], request["command"], request["log"], request["cgroup"])
                case "signal":
                    return {"sent": self._signal(request["name"], request["number"])}
                case "status":
                    return self._status(request["name"])
                case "end":
                    self._wanted = False
                case other:
                    return {"error": f"what is {other!r}?"}
        except (OSError, ValueError, KeyError, TypeError) as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {}

    def _start(self, name: str, command: Sequence[str], log: str, cgroup: str) -> None:
        """Starts a process in a session of its own and in this control group; its output goes to `log`."""
        if name in self._children.values():
            raise ValueError(f"{name} runs already")

        with Path(log).open("ab") as output:
            process = subprocess.Popen(
                ["sh", "-c", ENTER, f"{cgroup}/cgroup.procs", *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process.returncode = 0  # this process reaps it, like everything else that process 1 inherits
        self._ended.pop(name, None)
        self._children[process.pid] = name

    def _signal(self, name: str, number: int) -> bool:
        for pid, known in self._children.items():
            if known == name:
                os.kill(pid, number)  # not reaped yet, so the id is still its own
                return True
        return False

    def _status(self, name: str) -> dict[str, Any]:
        return {"runs": name in self._children.values(), "status": self._ended.get(name)}

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            name = self._children.pop(pid, None)
            if name is not None:
                self._ended[name] = os.waitstatus_to_exitcode(status)
                if len(self._ended) > ENDED_MAX:
                    del self._ended[next(iter(self._ended))]

    def _end(self) -> None:
        """Ends all other processes of the PID namespace: that is what -1 means for its process 1."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
        _unmount_below(self._folder)
        remove_cgroups(self._cgroup)
        remove_folder(self._folder)


def _unmount_below(folder: Path) -> None:
    """Unmounts in reverse order, because later mounts may be on earlier ones."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    below = [place for place in reversed(mounted) if place.startswith(f"{folder}/")]
    for start in range(0, len(below), 100):
        subprocess.run(
            ["umount", "--lazy", *below[start : start + 100]],
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _private_places() -> None:
    """Gives the cluster its own copies of directories whose paths programs do not let us choose. Unmounts its
    copies of file systems of other tests, whose devices would stay in use."""
    _unmount_below(Path(tempfile.gettempdir()))
    for command in (
        ["mount", "--make-rshared", "/"],  # kubelets propagate mounts to containers
        *(
            ["mount", "-t", "tmpfs", "-o", "mode=755", "testbed", place]
            for place in ("/run", "/var/lib/cni", "/var/lib/kubelet", "/var/log/containers")
        ),
        ["mkdir", "/run/netns"],
    ):
        if command[0] == "mount" and command[1] == "-t":
            Path(command[-1]).mkdir(parents=True, exist_ok=True)
        subprocess.run(command, check=True)


def main() -> None:
    """`init_process FOLDER CGROUP [leash]`. With `leash` it ends when standard input is closed."""
    folder, cgroup = Path(sys.argv[1]), sys.argv[2]
    if os.getpid() != 1:
        raise SystemExit("the init process must be process 1 of its own PID namespace")
    _private_places()
    InitProcess(folder, cgroup, sys.stdin.fileno() if sys.argv[3:] == ["leash"] else None).run()


if __name__ == "__main__":
    main()
