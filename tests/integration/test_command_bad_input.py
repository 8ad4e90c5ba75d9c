"""The command with empty, closed, endless and wrong inputs: one message, an exit code, no traceback."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import OurCluster
from tests.support.command import EpochmqCommand
from tests.support.net import free_port, loopback
from tests.support.process import PATIENCE_S

OCTET = 99


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurCluster]:
    with OurCluster(tmp_path_factory.mktemp("cluster"), octet=OCTET) as started:
        yield started


@pytest.fixture(scope="module")
def command(cluster: OurCluster, tmp_path_factory: pytest.TempPathFactory) -> EpochmqCommand:
    made = EpochmqCommand(cluster.nameserver_address, tmp_path_factory.mktemp("home"))
    made.run("topic", "create", "orders", "--queues", "1")
    return made


def shell(command: EpochmqCommand, line: str) -> subprocess.CompletedProcess[str]:
    """Runs `epochmq` in a shell, as `$E`."""
    return subprocess.run(
        ["sh", "-c", line],
        check=False,
        capture_output=True,
        text=True,
        env={**command.environment, "E": f"{sys.executable} -m epochmq"},
        cwd=command.home,
        timeout=2 * PATIENCE_S,
    )


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("$E produce orders </dev/null", 0, "the input is empty; nothing was sent"),
        ("$E produce orders <&-", 0, "the input is empty; nothing was sent"),
        ("printf '' | $E produce orders", 0, "the input is empty; nothing was sent"),
        ("$E produce orders </dev/zero", 2, "line 1 of the input is longer than 16777216 bytes"),
        ("head -c 99999999 /dev/zero | $E produce orders", 2, "line 1 of the input is longer than"),
        ("$E produce orders --file /dev/zero", 2, "--file /dev/zero: more than 16777216 bytes"),
        ("$E produce orders --file /dev/null", 2, "--file /dev/null is empty"),
        ("$E produce orders --file /nowhere", 2, "--file /nowhere cannot be read: No such file"),
        ("$E produce orders x --file /dev/null", 2, "not both"),
        ("$E produce orders x --group 'a b'", 2, "--group a b: expected at most 255 letters"),
        ("$E produce orders x --tag 'a|b'", 2, "--tag a|b: expected one tag"),
        ("$E produce orders x --property TAGS=a", 2, "--property TAGS: RocketMQ uses this name"),
        ("$E produce orders x --property a", 2, "--property a: expected KEY=VALUE"),
        ("$E produce orders x --delay soon", 2, "--delay soon: expected a span"),
        ("$E produce orders x --delay 1s --at now", 2, "give --delay or --at, not both"),
        ("$E produce orders x --delay 1s --priority 2", 2, "a delayed message has no priority"),
        ("$E produce orders x --priority -1", 2, "'--priority': '-1', expected at least 0"),
        ("$E consume orders --tags 'a ||'", 2, "--tags a ||: expected '*', or tags"),
        ("$E up -f - </dev/zero", 2, "more than 16777216 bytes"),
        ("$E up -f - <&-", 2, "these resources cannot be run"),
        ("$E topic list >&-", 0, ""),
        ("$E topic list >/dev/full", 1, "No space left on device"),
        ("$E admin-call promote brokerId=abc", 2, "promote: brokerId=abc: expected a whole number"),
        ("$E operator --set foo=bar", 2, "foo=bar: expected one of the keys"),
        ("$E status -N x --kubeconfig /nowhere", 1, "name one with --kubeconfig FILE"),
        ("$E broker --set storePathRootDir=/proc/x", 1, "the broker cannot run: /proc/x: No such file"),
    ],
)
def test_every_input_has_an_end_and_every_error_a_message(
    command: EpochmqCommand, line: str, code: int, message: str
) -> None:
    done = shell(command, line)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert message in done.stderr


def test_each_stored_line_is_reported_although_another_one_fails(command: EpochmqCommand) -> None:
    line = "(echo small; head -c 5000000 /dev/zero | tr '\\0' x; echo; echo after) | $E produce orders"
    done = shell(command, line)
    assert done.returncode == 1
    assert "line 2 of the input (5000000 bytes): MESSAGE_ILLEGAL" in done.stderr
    stored = command.json("message", "peek", "orders", "--offset", "0", "-c", "100")
    sent = [one["msgId"] for one in stored if one["body"] in ("small", "after")]
    reported = [row.split()[-1] for row in done.stdout.splitlines()]
    assert sorted(reported) == sorted(sent)


def test_a_file_is_one_message_with_its_properties(command: EpochmqCommand, tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(b"two\nlines\n")
    command.run("topic", "create", "files", "--queues", "1")
    command.run(
        "produce", "files", "--file", str(file), "--tag", "t", "--key", "k", "--property", "color=red"
    )
    (stored,) = command.json("message", "peek", "files")
    assert (stored["body"], stored["tags"], stored["keys"]) == ("two\nlines\n", "t", "k")
    assert stored["properties"]["color"] == "red"


def test_a_message_may_be_delivered_later(command: EpochmqCommand) -> None:
    command.run("topic", "create", "later", "--queues", "1")
    command.run("produce", "later", "now")
    command.run("produce", "later", "then", "--delay", "1s")
    found = command.run("consume", "later", "--count", "2", "--timeout", str(PATIENCE_S))
    assert found.stdout == b"now\nthen\n"


def test_a_server_of_another_protocol_is_called_that(command: EpochmqCommand) -> None:
    host = loopback(OCTET)
    with socket.create_server((host, free_port(host))) as server:

        def answer() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                client.recv(4096)
                client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                client.close()

        threading.Thread(target=answer, daemon=True).start()
        address = f"{host}:{server.getsockname()[1]}"
        error = command.failure("topic", "list", "--nameserver", address)
        server.shutdown(socket.SHUT_RDWR)
    assert "speaks HTTP" in error


def test_a_taken_port_is_named(command: EpochmqCommand, cluster: OurCluster, tmp_path: Path) -> None:
    host, _, port = cluster.broker_address.rpartition(":")
    settings = {"bindAddress": host, "listenPort": port, "storePathRootDir": tmp_path, "namesrvAddr": "h:1"}
    options = "".join(f" --set {key}={value}" for key, value in settings.items())
    done = shell(command, f"$E broker{options}")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    assert "ddress already in use" in done.stderr
