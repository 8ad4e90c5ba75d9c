"""Copies the checkout for the test of mutants, and runs commands in the copies with limits."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tools.mutants.packages import ROOT, SOURCE_ROOTS

DATA_MAX_BYTES: Final = 3 << 30
"""The limit of anonymous memory for each process of a test: a mutant may allocate endlessly."""
FILE_MAX_BYTES: Final = 4 << 30
STALE_S: Final = 10
"""A mutated module is this much newer than its compiled form, so that Python does not use the compiled
form."""


class CheckoutCopy:
    """One copy of the checkout, with uncommitted changes and without ignored files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        """Creates the copy, replacing an older one."""
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
        """Creates another copy, with the compiled modules of this one."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder, symlinks=True)
        return CheckoutCopy(folder)

    def _compile(self) -> None:
        command = [sys.executable, "-m", "compileall", "-q", *SOURCE_ROOTS, "tests", "tools"]
        subprocess.run(command, cwd=self.folder, check=True)

    def test_files_with(self, text: str) -> set[str]:
        """The paths of the tests that contain this text."""
        files = (self.folder / "tests").rglob("test_*.py")
        return {str(file.relative_to(self.folder)) for file in files if text in file.read_text("utf-8")}

    @contextmanager
    def changed(self, path: str, text: str) -> Iterator[None]:
        """Replaces the text of a module for the length of the block."""
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
        """Runs a Python command in the copy, with its output in a file. Returns the exit status, or None
        after a time-out, when the command and all its descendants were killed. `compiled`: it may write
        compiled modules."""
        with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as temporary:
            # Runs of pytest that share a directory may delete each other's files.
            extra = {"PYTEST_DEBUG_TEMPROOT": temporary, **(extra or {})}
            return self._run(command, timeout_s, output, compiled=compiled, extra=extra)

    def _run(
        self,
        command: Sequence[str],
        timeout_s: float,
        output: Path,
        *,
        compiled: bool,
        extra: dict[str, str],
    ) -> int | None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(self.folder / root) for root in SOURCE_ROOTS),
            **extra,
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
    """Limits a process that was just started, and its descendants."""
    for what, most in (
        (resource.RLIMIT_DATA, DATA_MAX_BYTES),
        (resource.RLIMIT_FSIZE, FILE_MAX_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ProcessLookupError):
            resource.prlimit(pid, what, (most, most))


def _kill_with_descendants(process: subprocess.Popen[bytes]) -> None:
    """Kills a process and its descendants. Killing the process group is not enough, because tests start
    sessions."""
    for pid in [*descendants(process.pid), process.pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def descendants(pid: int) -> list[int]:
    """The ids of all descendants of a process."""
    found: list[int] = []
    todo = [pid]
    while todo:
        for path in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            with suppress(OSError):
                children = [int(one) for one in path.read_text().split()]
                found += children
                todo += children
    return found
