"""An HDFS cluster for tests: Hadoop's MiniDFSCluster, a process with a NameNode and a DataNode. Maven fetches
it once, in the version of the Hadoop client that PySpark contains."""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from tests.interop.java_env import CACHE, DEPENDENCY_PLUGIN
from tests.support.process import wait_until

SOURCE = Path(__file__).resolve().parent / "java" / "HdfsCluster.java"
FETCH_TIMEOUT_S = 500
COMPILE_TIMEOUT_S = 300
COPY_TIMEOUT_S = 1200
HEAP_MB = 400
_ADDRESS = re.compile(r"listening on (\d+)")
_COUNTED = {"listings": "GetListingOps", "block lookups": "GetBlockLocations", "file statuses": "FileInfoOps"}


class HdfsMissingError(Exception):
    """The cluster cannot be started on this machine; the message names what is missing."""


def _client_jars() -> list[Path]:
    import pyspark

    folder = Path(pyspark.__file__).parent / "jars"
    names = (
        "hadoop-client-api-*",
        "hadoop-client-runtime-*",
        "slf4j-*",
        "jcl-*",
        "log4j-*",
        "commons-logging*",
    )
    return sorted(path for name in names for path in folder.glob(f"{name}.jar"))


def _jars() -> list[Path]:
    """The class path of the cluster. Raises HdfsMissingError."""
    client = _client_jars()
    version = next(
        (path.stem.rpartition("-")[2] for path in client if path.name.startswith("hadoop-client-api-")), None
    )
    if version is None:
        raise HdfsMissingError("missing: the Hadoop client of PySpark")
    folder = CACHE / "hdfs" / version
    jar = folder / f"hadoop-client-minicluster-{version}.jar"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not jar.exists():
            artifact = f"-Dartifact=org.apache.hadoop:hadoop-client-minicluster:{version}"
            command = [
                "mvn",
                "-q",
                "-B",
                f"{DEPENDENCY_PLUGIN}:copy",
                artifact,
                f"-DoutputDirectory={folder}",
            ]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise HdfsMissingError(f"missing: Hadoop's MiniDFSCluster from Maven: {error}") from None
            if done.returncode != 0 or not jar.exists():
                raise HdfsMissingError(f"missing: Hadoop's MiniDFSCluster from Maven: {done.stdout[-300:]}")
    return [jar, *client]


class HdfsCluster:
    """A running cluster."""

    def __init__(self, process: subprocess.Popen[str], output: Path, port: int) -> None:
        self._process, self._output = process, output
        self.address = f"127.0.0.1:{port}"

    def location(self, path: str) -> str:
        """The URI of a directory, whose names are not escaped yet."""
        return f"webhdfs://{self.address}/{quote(path)}"

    def upload(self, source: Path, path: str) -> str:
        """Copies a file or directory into the cluster, instead of what was there; returns its URI."""
        self._ask(f"{source}\t/{path}", "copied /")
        return self.location(path)

    def _ask(self, line: str, answer: str) -> str:
        """Passes a line to the process, and returns the line of its answer, which begins with this text."""
        before = len(self._answers(answer))
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        wait_until(
            lambda: len(self._answers(answer)) > before or self._process.poll() is not None,
            timeout_s=COPY_TIMEOUT_S,
            what=answer,
        )
        assert len(self._answers(answer)) > before, self._output.read_text()[-2000:]
        return self._answers(answer)[-1]

    def _answers(self, answer: str) -> list[str]:
        lines = self._output.read_text().splitlines(keepends=True)
        return [line for line in lines if line.startswith(answer) and line.endswith("\n")]

    def operations(self) -> dict[str, int]:
        """How many operations of each kind the NameNode has done."""
        counters = dict(word.split("=") for word in self._ask("operations", "operations ").split()[1:])
        return {name: int(counters[counter]) for name, counter in _COUNTED.items()}


@contextmanager
def running(directory: Path) -> Iterator[HdfsCluster]:
    """A cluster for the length of the block. Raises HdfsMissingError."""
    if shutil.which("java") is None or shutil.which("javac") is None:
        raise HdfsMissingError("missing: `java` and `javac` 17 or newer")
    jars = ":".join(map(str, _jars()))
    classes, output = directory / "classes", directory / "output"
    classes.mkdir(parents=True)
    subprocess.run(
        ["javac", "-proc:none", "-nowarn", "-Xlint:none", "-d", str(classes), "-cp", jars, str(SOURCE)],
        check=True,
        timeout=COMPILE_TIMEOUT_S,
    )
    options = [f"-Xmx{HEAP_MB}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
    command = ["java", *options, "-cp", f"{classes}:{jars}", "HdfsCluster", str(directory / "data")]
    with output.open("w") as written:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=written, stderr=subprocess.STDOUT, text=True, cwd=directory
        )
    try:
        wait_until(
            lambda: _ADDRESS.search(output.read_text()) is not None or process.poll() is not None,
            timeout_s=300,
            what="the address of the NameNode",
        )
        found = _ADDRESS.search(output.read_text())
        assert found is not None, output.read_text()[-2000:]
        yield HdfsCluster(process, output, int(found[1]))
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
