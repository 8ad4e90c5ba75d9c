"""Compiles the load programs in C into `.cache/bench`, once for each version of their source."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "bench"
SOURCE = Path(__file__).resolve().parent / "load.c"
FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")


class CompilerMissingError(Exception):
    """There is no C compiler on this machine. The message names the ones that were tried."""


def load_program(source: Path = SOURCE) -> Path:
    """The path of the compiled load program. Raises `CompilerMissingError`, or `CalledProcessError` if it
    does not compile."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise CompilerMissingError("missing: a C compiler (`cc`, `gcc` or `clang`)")
    digest = hashlib.sha256(" ".join(FLAGS).encode() + source.read_bytes()).hexdigest()[:12]
    program = CACHE / f"{source.stem}-{digest}"
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=CACHE, prefix="compiling-")
        os.close(handle)
        try:
            subprocess.run([compiler, *FLAGS, "-o", scratch, str(source)], check=True)
            Path(scratch).rename(program)
        finally:
            Path(scratch).unlink(missing_ok=True)
    return program
