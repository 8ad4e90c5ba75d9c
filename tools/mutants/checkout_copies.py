"""Copies of the checkout in which mutants are tested, and runs commands in them with bounds."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tools.mutants.packages import ROOT, SOURCE_ROOTS

DATA_MAX_BYTES: Final = 3 << 30
"""Of anonymous memory for each process of a test: a mutant may allocate without end."""
FILE_MAX_BYTES: Final = 4 << 30
STALE_S: Final = 10
"""A mutated module is that much newer than its compiled form, so that Python does not use the latter."""


class CheckoutCopy:
    """One copy of the checkout, as it is on disk now (without what git ignores)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        """Makes the copy anew."""
        shutil.rmtree(self.folder, ignore_errors=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                target = self.folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
        self._compile()

    def copy(self, folder: Path) -> CheckoutCopy:
        """Another copy, with the compiled modules of this one."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder, symlinks=True)
        return CheckoutCopy(folder)

    def _compile(self) -> None:
        command = [sys.executable, "-m", "compileall", "-q", *SOURCE_ROOTS, "tests", "tools"]
        subprocess.run(command, cwd=self.folder, check=True)

    @contextmanager
    def changed(self, path: str, text: str) -> Iterator[None]:
        """The module with another text, as long as the block lasts."""
        target = self.folder / path
        original, stat = target.read_bytes(), target.stat()
        target.write_text(text, encoding="utf-8")
        os.utime(target, (stat.st_atime, stat.st_mtime + STALE_S))
        try:
            yield
        finally:
            target.write_bytes(original)
            os.utime(target, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    def run(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        output: Path,
        compiled: bool = False,
        extra: dict[str, str] | None = None,
    ) -> int | None:
        """Runs a command of this Python in the tree, its output in a file; the exit status, or None when it
        took too long and was killed with all it had started. `compiled`: it may write compiled modules."""
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(self.folder / root) for root in SOURCE_ROOTS),
            **(extra or {}),
        }
        if not compiled:
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _limit(process.pid)
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _kill_with_descendants(process)


def _limit(pid: int) -> None:
    """Bounds a process that has just been started, and all that it starts."""
    for what, most in (
        (resource.RLIMIT_DATA, DATA_MAX_BYTES),
        (resource.RLIMIT_FSIZE, FILE_MAX_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ProcessLookupError):
            resource.prlimit(pid, what, (most, most))


def _kill_with_descendants(process: subprocess.Popen[bytes]) -> None:
    """Tests give their processes sessions of their own, so the group alone is not enough."""
    for pid in [*descendants(process.pid), process.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def descendants(pid: int) -> list[int]:
    """Children of a process, their children, and so on."""
    found: list[int] = []
    todo = [pid]
    while todo:
        for path in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            with suppress(OSError):
                children = [int(one) for one in path.read_text().split()]
                found += children
                todo += children
    return found
