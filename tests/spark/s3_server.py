"""An S3 server for tests: moto's, as a process of its own. Its packages are those of
`requirements-s3-server.lock`. They contradict those of the operator, so they have a virtual environment of
their own under `.cache`, which is created on first use."""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyarrow import fs

from tests.support.process import ManagedProcess

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements-s3-server.lock"
CACHE = ROOT / ".cache" / "s3-server"
INSTALL_TIMEOUT_S = 1200
BUCKET = "stores"
_ADDRESS = re.compile(r"Running on http://([\d.]+:\d+)")
_REQUEST = re.compile(r'"(?:\x1b\[[\d;]*m)*(?P<method>[A-Z]+) (?P<path>\S+) HTTP/1\.1')


class S3MissingError(Exception):
    """The server cannot be installed on this machine."""


def _environment() -> Path:
    """The virtual environment with the server. Raises S3MissingError."""
    target = CACHE / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if (target / "complete").exists():
            return target
        shutil.rmtree(target, ignore_errors=True)
        pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--require-hashes"]
        for command in ([sys.executable, "-m", "venv", str(target)], [*pip, "-r", str(LOCK)]):
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
            )
            if done.returncode != 0:
                raise S3MissingError(f"missing: moto's S3 server: {done.stderr.strip()[-300:]}")
        (target / "complete").touch()
        return target


class S3Server:
    """A running server with one bucket."""

    def __init__(self, process: ManagedProcess, address: str) -> None:
        self._process = process
        self.address = address
        self.system = fs.S3FileSystem(
            access_key="key",
            secret_key="secret",
            endpoint_override=address,
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        self.system.create_dir(BUCKET)

    def location(self, path: str) -> str:
        """The URI of a directory of the bucket."""
        options = f"scheme=http&endpoint_override={self.address.replace(':', '%3A')}&region=us-east-1"
        return f"s3://key:secret@{BUCKET}/{path}?{options}"

    def upload(self, directory: Path, path: str) -> str:
        """Copies a directory into the bucket; returns its URI."""
        for source in sorted(directory.rglob("*")):
            if source.is_file():
                self.replace(f"{path}/{source.relative_to(directory)}", source.read_bytes())
        return self.location(path)

    def replace(self, path: str, data: bytes) -> None:
        """Writes one object."""
        with self.system.open_output_stream(f"{BUCKET}/{path}") as stream:
            stream.write(data)

    def requests(self) -> list[tuple[str, str]]:
        """(method, path with query) of all requests up to now."""
        text = self._process.output(1 << 30)
        return [(found["method"], found["path"]) for found in _REQUEST.finditer(text)]


def kinds(requests: list[tuple[str, str]]) -> Counter[str]:
    """The number of listings, of questions for the size of an object, and of reads."""
    return Counter(
        "listing" if "list-type=2" in path else {"HEAD": "head", "GET": "read"}.get(method, method)
        for method, path in requests
    )


@contextmanager
def running(directory: Path) -> Iterator[S3Server]:
    """A server for the length of the block. Raises S3MissingError."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [str(_environment() / "bin" / "moto_server"), "-H", "127.0.0.1", "-p", "0"]
    process = ManagedProcess(command, name="s3", directory=directory)
    process.start()
    try:
        process.wait_until(lambda: _ADDRESS.search(process.output()) is not None, what="its address")
        found = _ADDRESS.search(process.output())
        assert found is not None
        yield S3Server(process, found[1])
    finally:
        process.stop()
