"""Caches what is built once and used by every later cluster: programs and images. The cache is in
`.cache/kubernetes` of the checkout, or below the folder that EPOCHMQ_CACHE names, which several checkouts may
share."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
"""The checkout."""


def cache_folder() -> Path:
    """The folder of the cache."""
    return Path(os.environ.get("EPOCHMQ_CACHE") or ROOT / ".cache").resolve() / "kubernetes"


def say(text: str) -> None:
    """Prints one line of progress, for long steps."""
    print(f"testbed: {text}", file=sys.stderr, flush=True)


def digest_of(*parts: bytes | str) -> str:
    """Twelve digits that change with any of the parts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:12]


def cached(path: str, make: Callable[[Path], None]) -> Path:
    """The file or folder at `path` below the cache. If it does not exist, `make` writes it under a temporary
    name, and it is renamed when it is complete. Only one process at a time makes it; others wait and use it.
    """
    final = cache_folder() / path
    if final.exists():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(final):
        if final.exists():
            return final
        scratch = Path(tempfile.mkdtemp(dir=final.parent, prefix=".making-"))
        try:
            made = scratch / final.name
            make(made)
            made.rename(final)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return final


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Lets one process at a time work on `path`; others wait."""
    with path.with_name(f".{path.name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
