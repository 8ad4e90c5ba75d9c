"""The process `epochmq nameserver`: it starts from a Java file, stops cleanly, and names invalid settings."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.net import free_port, loopback
from tests.support.process import ManagedProcess
from tests.support.remoting import call, frame

IDLE_KIB_MAX = 41 * 1024
"""A fifth of the 205 MB that RocketMQ's nameserver takes when idle."""


class Process(ManagedProcess):
    """A nameserver process and its address."""

    def __init__(
        self, directory: Path, settings: Mapping[str, object] | None = None, *arguments: str
    ) -> None:
        host = loopback(51)
        self.port = free_port(host, beside=())
        self.address = f"{host}:{self.port}"
        self.config = directory / "namesrv.conf"
        values: dict[str, object] = {
            "bindAddress": host,
            "listenPort": self.port,
            "kvConfigPath": directory / "kvConfig.json",
            **(settings or {}),
        }
        self.config.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        command = [sys.executable, "-m", "epochmq", "nameserver", "--config", str(self.config), *arguments]
        super().__init__(command, name="nameserver", directory=directory)

    def run(self) -> None:
        """Starts it and waits until it answers."""
        self.start()
        self.wait_until(self.answers, what="answering")

    def answers(self) -> bool:
        try:
            return call(self.address, 106, timeout_s=2).code == 0
        except OSError:
            return False


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    started = Process(tmp_path)
    try:
        started.run()
        yield started
    finally:
        started.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_cleanly_on_a_signal(process: Process, number: signal.Signals) -> None:
    with socket.create_connection(process.address.split(":"), timeout=60) as idle:  # type: ignore[arg-type]
        idle.sendall(frame(106))
        process.signal(number)
        assert process.wait() == 0
    assert "The Name Server boot success." in process.output()
    assert "event=stopped" in process.output()


def test_an_idle_nameserver_takes_a_fifth_of_the_memory_of_rocketmqs(process: Process) -> None:
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        pytest.skip("no /proc here")
    for _ in range(200):
        call(process.address, 206)
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmRSS")]
    assert int(line.split()[1]) <= IDLE_KIB_MAX, line


def test_changed_settings_survive_a_restart(process: Process) -> None:
    assert call(process.address, 100, {"namespace": "n", "key": "k", "value": "v"}).code == 0
    assert call(process.address, 318, body=b"orderMessageEnable=true\n").code == 0
    process.kill()
    process.run()
    assert call(process.address, 101, {"namespace": "n", "key": "k"}).ext == {"value": "v"}
    assert b"\norderMessageEnable=true\n" in call(process.address, 319).body
    assert f"configStorePath={process.config}\n".encode() in call(process.address, 319).body


def test_bytes_that_are_no_frames_disturb_no_client(process: Process) -> None:
    host, port = process.address.split(":")
    for size in range(0, 4000, 40):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            try:
                connection.sendall(os.urandom(size))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
            except OSError:
                pass  # the peer may close while the bytes are being sent
    process.wait_until(process.answers, what="answering")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"listenPort": "http"}, "listenPort=http: expected a whole number from 0 to 65535"),
        ({"supportActingMaster": "1"}, "supportActingMaster=1: expected true or false"),
        ({"tls.server.mode": "enforcing"}, "tls.server.certPath=None: expected a PEM certificate"),
    ],
)
def test_an_invalid_setting_is_rejected_with_key_value_and_expectation(
    tmp_path: Path, settings: dict[str, object], expected: str
) -> None:
    process = Process(tmp_path, settings)
    process.start()
    assert process.wait() == 2
    assert expected in process.output()
    assert "Traceback" not in process.output()


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    process = Process(tmp_path)
    host, port = process.address.split(":")
    with socket.create_server((host, int(port))):
        process.start()
        assert process.wait() == 1
    assert process.address.split(":")[1] in process.output()
    assert "Traceback" not in process.output()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.config.unlink()
    process.start()
    assert process.wait() == 2
    assert "namesrv.conf: expected a readable file" in process.output()


def test_settings_on_the_command_line_override_the_file(tmp_path: Path) -> None:
    process = Process(tmp_path, {}, "--set", "supportActingMaster=true")
    try:
        process.run()
        assert b"\nsupportActingMaster=true\n" in call(process.address, 319).body
        process.wait_until(process.answers, what="still answering")
    finally:
        process.kill()
