"""The programs that docs/clients.md shows send a message that arrives."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.cpp_peer import missing_cpp_client
from tests.interop.go_peer import BUILD_TIMEOUT_S, SOURCES, GoMissingError, go_client
from tests.interop.java_env import JavaProcess, compile_java
from tests.support.admin import create_topic
from tests.support.cluster import Cluster, OurCluster
from tests.support.command import EpochmqCommand

pytestmark = pytest.mark.timeout(600)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clients.md"
TIMEOUT_S = 180


def sample(language: str) -> str:
    """The program on the page."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return str(found)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Cluster]:
    with OurCluster(tmp_path / "cluster", octet=94) as started:
        create_topic(started.nameserver_address, started.broker_address, "orders", 1)
        yield started


def check_arrived(cluster: Cluster, home: Path) -> None:
    (stored,) = EpochmqCommand(cluster.nameserver_address, home).json("message", "peek", "orders")
    assert stored["body"] == "hello"


def run(command: list[str], cluster: Cluster, home: Path) -> str:
    done = subprocess.run(
        [*command, cluster.nameserver_address],
        capture_output=True,
        text=True,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.java
def test_the_java_program_sends(running: Cluster, tmp_path: Path) -> None:
    source = tmp_path / "Send.java"
    source.write_text(sample("java"), encoding="utf-8")
    program = JavaProcess(
        "Send", [running.nameserver_address], home=tmp_path, classes=compile_java(source), heap_mb=128
    )
    program.start()
    assert program.wait(TIMEOUT_S) == 0, program.output()
    assert "SEND_OK" in program.output()
    check_arrived(running, tmp_path)


@pytest.mark.skipif(missing_cpp_client() is not None, reason=str(missing_cpp_client()))
def test_the_python_program_sends(running: Cluster, tmp_path: Path) -> None:
    source = tmp_path / "send.py"
    source.write_text(sample("python"), encoding="utf-8")
    assert "OK" in run([sys.executable, str(source)], running, tmp_path)
    check_arrived(running, tmp_path)


def test_the_go_program_sends(running: Cluster, tmp_path: Path) -> None:
    try:
        go_client()  # fetches the modules
    except GoMissingError as missing:
        pytest.skip(str(missing))
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "main.go").write_text(sample("go"), encoding="utf-8")
    for name in ("go.mod", "go.sum"):
        (sources / name).write_bytes((SOURCES / name).read_bytes())
    program = tmp_path / "send"
    built = subprocess.run(
        ["go", "build", "-trimpath", "-mod=readonly", "-o", str(program), "."],
        cwd=sources,
        env={**os.environ, "CGO_ENABLED": "0"},  # as the client of the other tests, whose packages are built
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    run([str(program)], running, tmp_path)
    check_arrived(running, tmp_path)
