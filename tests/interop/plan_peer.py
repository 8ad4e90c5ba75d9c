"""Runs a client of another language as a process of its own, which carries out one plan and prints JSON
lines."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.cluster import Cluster, access_of
from tests.support.process import wait_until

RUN_TIMEOUT_S = 180
Line = dict[str, Any]


class PlanPeer:
    """One client carrying out one plan; a context manager that leaves no process behind."""

    def __init__(self, cluster: Cluster | str, program: Sequence[str], plan: Line, home: Path) -> None:
        """`cluster` may be the address of a nameserver. If the cluster has users, the client is one, unless
        the plan names another."""
        access = cluster.inner_access if isinstance(cluster, Cluster) else access_of(cluster)
        if access.user is not None:
            plan = {"user": access.user[0], "secret": access.user[1], **plan}
        self._command = [*program, access.nameserver, json.dumps(plan)]
        self._home = home
        self._lines: list[Line] = []

    def __enter__(self) -> Self:
        self._home.mkdir(parents=True, exist_ok=True)
        self._errors = (self._home / "stderr").open("ab")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # Clients write logs and offsets under HOME.
            env={**os.environ, "HOME": str(self._home)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()
        if error is not None:
            error.add_note((self._home / "stderr").read_text(errors="replace")[-2000:])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"{"):
                self._lines.append(json.loads(line))

    def _said(self, word: str) -> bool:
        return any(word in line for line in list(self._lines))

    @property
    def messages(self) -> list[Line]:
        """The lines that it printed so far, without its announcements."""
        return [line for line in list(self._lines) if not line.keys() & {"done", "ready"}]

    @property
    def bodies(self) -> list[str]:
        """The bodies, in the order in which they came."""
        return [line["body"] for line in self.messages if "body" in line]

    def wait_bodies(self, expected: set[str]) -> None:
        """Waits until all these bodies have come."""
        wait_until(lambda: expected <= set(self.bodies), what=f"the client gets {len(expected)} messages")

    def wait_ready(self) -> None:
        """Waits until it says that it runs."""
        wait_until(lambda: self._said("ready") or self._process.poll() is not None, what="the client runs")
        assert self._said("ready"), f"ended early: {self._lines}"

    def close(self) -> list[Line]:
        """Ends its input, which lets it shut down in order, and returns the printed lines."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.finish()

    def finish(self) -> list[Line]:
        """Waits for the plan's end and returns the printed lines."""
        self._process.wait(RUN_TIMEOUT_S)
        self._reader.join(60)
        assert self._said("done"), f"ended early: {self._process.returncode} {self._lines[-3:]}"
        return self.messages

    def kill(self) -> None:
        """Kills it (-9)."""
        self._process.kill()
        self._process.wait(60)
        self._reader.join(60)
