"""The process `epochmq controller`: it starts from a Java file, stops cleanly, names invalid settings, and
locks its directory."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Settings, our_process, properties
from tests.support.net import free_port, loopback
from tests.support.process import wait_until
from tests.support.remoting import call, frame, read_frame, split_address

OCTET = 60
METADATA, APPLY_BROKER_ID, REPLICA_INFO, UPDATE_CONFIG, GET_CONFIG = 1005, 1013, 1004, 1009, 1010
IDLE_KIB_MAX = 43 * 1024
"""A fifth of the 215 MB that RocketMQ's controller takes when idle."""
APPLIED = {
    "clusterName": "c",
    "brokerName": "b",
    "appliedBrokerId": "1",
    "registerCheckCode": "127.0.0.1:1;t",
}


class Controller:
    """A quorum of one."""

    def __init__(self, directory: Path, more: Settings | None = None, *, name: str = "controller") -> None:
        host = loopback(OCTET)
        self.address = f"{host}:{free_port(host, beside=())}"
        self.config = directory / name / "controller.conf"
        self.config.parent.mkdir(exist_ok=True)
        settings: dict[str, str | int | bool] = {
            "controllerType": "DLedger",
            "controllerDLegerGroup": "g",
            "controllerDLegerPeers": f"n0-{self.address}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(directory / "store"),
            "mappedFileSize": 1 << 20,
            **(more or {}),
        }
        self.config.write_text(properties(settings))
        self.process = our_process("controller", self.config)

    def start(self) -> None:
        """Starts it and waits until it leads."""
        self.process.start()
        self.process.wait_until(self.leads, what="leading")

    def leads(self) -> bool:
        """Whether it says that it leads."""
        try:
            return call(self.address, METADATA, timeout_s=2).ext.get("isLeader") == "true"
        except OSError:
            return False


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    """A running one."""
    found = Controller(tmp_path)
    try:
        found.start()
        yield found
    finally:
        found.process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_cleanly_on_a_signal(controller: Controller, number: signal.Signals) -> None:
    with socket.create_connection(split_address(controller.address), timeout=60) as idle:
        idle.sendall(frame(METADATA))
        assert read_frame(idle)[0]["code"] == 0
        controller.process.signal(number)
        assert controller.process.wait() == 0
    assert "The Controller Server boot success." in controller.process.output()
    assert "event=stopped" in controller.process.output()


def test_an_idle_controller_takes_a_fifth_of_the_memory_of_rocketmqs(controller: Controller) -> None:
    status = Path(f"/proc/{controller.process.pid}/status")
    if not status.exists():
        pytest.skip("no /proc here")
    for _ in range(200):
        call(controller.address, METADATA)
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmRSS")]
    assert int(line.split()[1]) <= IDLE_KIB_MAX, line


def test_acknowledged_events_and_changed_settings_survive_a_kill(
    controller: Controller,
) -> None:
    assert call(controller.address, APPLY_BROKER_ID, APPLIED).code == 0
    written = controller.config.read_text()
    assert call(controller.address, UPDATE_CONFIG, body=b"enableElectUncleanMaster=true\n").code == 0
    controller.process.kill()
    controller.start()
    assert call(controller.address, REPLICA_INFO, {"brokerName": "b"}).code == 0
    assert b"\nenableElectUncleanMaster=true\n" in call(controller.address, GET_CONFIG).body
    assert controller.config.read_text() == written + "enableElectUncleanMaster=true\n"


def test_metadata_has_term_committed_index_and_the_names_of_groups(
    controller: Controller,
) -> None:
    before = call(controller.address, METADATA).ext
    for name in ("b", "a"):
        assert call(controller.address, APPLY_BROKER_ID, APPLIED | {"brokerName": name}).code == 0
    after = call(controller.address, METADATA).ext
    assert "brokerNames" not in after
    assert after["term"] == before["term"]
    assert int(after["term"]) >= 1
    assert int(after["committedIndex"]) == int(before["committedIndex"]) + 2
    for asked, names in (("", ["a", "b"]), ("a", ["b"]), ("b", [])):
        response = call(controller.address, METADATA, {"brokerNamesAfter": asked})
        assert json.loads(response.ext["brokerNames"]) == names


def test_bytes_that_are_no_frames_disturb_no_client(controller: Controller) -> None:
    for size in range(0, 4000, 80):
        with socket.create_connection(split_address(controller.address), timeout=60) as connection:
            try:
                connection.sendall(os.urandom(size))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
            except OSError:
                pass  # the peer may close while the bytes are being sent
    wait_until(controller.leads, what="it still leads")


def test_a_second_process_on_the_same_directory_does_not_start(
    controller: Controller, tmp_path: Path
) -> None:
    second = Controller(tmp_path, name="second")
    second.process.start()
    assert second.process.wait() == 1
    assert "in use by another process" in second.process.output()
    assert "Traceback" not in second.process.output()
    assert call(controller.address, APPLY_BROKER_ID, APPLIED).code == 0


def test_log_files_of_another_size_than_configured_are_rejected_and_unchanged(
    controller: Controller, tmp_path: Path
) -> None:
    controller.process.stop()
    before = {path: path.read_bytes() for path in (tmp_path / "store").rglob("0*")}
    other = Controller(tmp_path, {"mappedFileSize": 1 << 21}, name="other")
    other.process.start()
    assert other.process.wait() == 2
    assert "controllerStorePath=" in other.process.output()
    assert f"{1 << 20} bytes, expected {1 << 21} as configured" in other.process.output()
    assert {path: path.read_bytes() for path in (tmp_path / "store").rglob("0*")} == before


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"controllerType": "jRaft"}, "controllerType=jRaft: expected DLedger (jRaft is not implemented)"),
        ({"controllerDLegerSelfId": "n1"}, "controllerDLegerSelfId=n1: expected one of the ids in"),
        ({"scanInactiveMasterInterval": "soon"}, "scanInactiveMasterInterval=soon: expected a whole number"),
        ({"tls.server.mode": "enforcing"}, "tls.server.certPath=None: expected a PEM certificate"),
    ],
)
def test_an_invalid_setting_is_rejected_with_key_value_and_expectation(
    tmp_path: Path, settings: Settings, expected: str
) -> None:
    process = Controller(tmp_path, settings).process
    process.start()
    assert process.wait() == 2
    assert f"epochmq controller: {expected}" in process.output()
    assert "Traceback" not in process.output()


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    with socket.create_server(split_address(controller.address)):
        controller.process.start()
        assert controller.process.wait() == 1
    assert controller.address.split(":")[1] in controller.process.output()
    assert "Traceback" not in controller.process.output()


def test_a_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    process = Controller(tmp_path, {"controllerStorePath": str(tmp_path / "file")}).process
    process.start()
    assert process.wait() == 1
    assert str(tmp_path / "file") in process.output()
    assert "Traceback" not in process.output()


def test_settings_on_the_command_line_override_the_file(tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    controller.process._command += ["--set", "isProcessReadEvent=true"]
    try:
        controller.start()
        assert b"\nisProcessReadEvent=true\n" in call(controller.address, GET_CONFIG).body
        assert call(controller.address, REPLICA_INFO, {"brokerName": "b"}).code == 2008
        wait_until(controller.leads, what="still leading")
    finally:
        controller.process.kill()
