"""Builds the program with RocketMQ's Go client (`tests/interop/go`) once for each content of its sources, and
runs it. `go/go.mod` has the versions of the modules, `go/go.sum` their hashes. The program is kept under
`.cache/go`. What is missing raises `GoMissingError` with its name."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.interop.plan_peer import Line, PlanPeer
from tests.support.cluster import Cluster

SOURCES = Path(__file__).resolve().parent / "go"
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "go"
BUILD_TIMEOUT_S = 480


class GoMissingError(Exception):
    """This machine lacks something that the Go client needs; the message names it."""


class GoFailedError(Exception):
    """The program does not compile; the message has the end of the compiler's output."""


def go_client() -> Path:
    """The program, built on first use; GoMissingError if there is no Go, or the modules cannot be fetched."""
    found = _program_or_reason()
    if isinstance(found, GoMissingError):
        raise found
    return found


@functools.cache
def _program_or_reason() -> Path | GoMissingError:
    """The program, or why it is missing. Tried once in each process."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    program = CACHE / f"client-{digest.hexdigest()[:16]}"
    if program.is_file():
        return program
    if shutil.which("go") is None:
        return GoMissingError("missing: `go`, to build RocketMQ's Go client")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "client.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program.is_file():
            return program
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="building-") as scratch:
            return _build(Path(scratch) / program.name, program)


def _build(scratch: Path, program: Path) -> Path | GoMissingError:
    """Fetches the modules, builds the program at `scratch`, and renames it to its final name."""
    try:
        fetched = _go("mod", "download")
    except subprocess.TimeoutExpired:
        return GoMissingError(f"missing: the modules of the Go client; no answer within {BUILD_TIMEOUT_S} s")
    if fetched.returncode != 0:
        return GoMissingError(f"missing: the modules of the Go client; Go said: {fetched.stderr[-600:]}")
    built = _go("build", "-trimpath", "-mod=readonly", "-o", str(scratch), ".")
    if built.returncode != 0:
        raise GoFailedError(f"go build failed:\n{built.stderr[-4000:]}")
    scratch.rename(program)
    return program


def _go(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["go", *arguments],
        cwd=SOURCES,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        env={**os.environ, "CGO_ENABLED": "0"},
        check=False,
    )


class GoPeer(PlanPeer):
    """One Go client carrying out one plan."""

    def __init__(self, cluster: Cluster | str, plan: Line, home: Path) -> None:
        super().__init__(cluster, [str(go_client())], plan, home)
