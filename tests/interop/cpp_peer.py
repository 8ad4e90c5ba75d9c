"""Runs `tests/interop/cpp_client.py` in processes of its own and reads their output."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.process import wait_until

PROGRAM = Path(__file__).with_name("cpp_client.py")
RUN_TIMEOUT_S = 180
Line = dict[str, Any]


def missing_cpp_client() -> str | None:
    """Names the binding when it is not installed (it exists for Linux only)."""
    if importlib.util.find_spec("rocketmq") is None:
        return "missing: the `rocketmq` package, the C++ client's binding"
    return None


class CppPeer:
    """One C++ client carrying out one plan; a context manager that leaves no process behind."""

    def __init__(self, nameserver: str, plan: Line, home: Path) -> None:
        self._command = [sys.executable, str(PROGRAM), nameserver, json.dumps(plan)]
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
            # The client writes its logs under HOME.
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

    @property
    def messages(self) -> list[Line]:
        """The lines that it printed so far, without its announcements."""
        return [line for line in list(self._lines) if "done" not in line]

    @property
    def bodies(self) -> list[str]:
        """The bodies, in the order in which they came."""
        return [line["body"] for line in self.messages]

    def wait_bodies(self, expected: set[str]) -> None:
        """Waits until all these bodies have come."""
        wait_until(
            lambda: expected <= set(self.bodies),
            what=f"the C++ consumer gets {len(expected)} messages",
        )

    def finish(self) -> list[Line]:
        """Waits for the plan's end and returns the printed lines."""
        self._process.wait(RUN_TIMEOUT_S)
        self._reader.join(60)
        assert any("done" in line for line in self._lines), f"ended early: {self._process.returncode}"
        return self.messages

    def kill(self) -> None:
        """Kills it (-9), because no other way is safe with this client."""
        self._process.kill()
        self._process.wait(60)
        self._reader.join(60)


def run_plan(nameserver: str, plan: Line, home: Path) -> list[Line]:
    """Runs a plan to its end and returns the printed lines."""
    with CppPeer(nameserver, plan, home) as peer:
        return peer.finish()
