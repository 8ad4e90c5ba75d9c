"""`epochmq logs` prints the ends of the logs of pods, and follows several at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from epochmq.app import run
from epochmq.exits import ExitCode
from epochmq.verbs import logs
from epochmq_operator.local.process import current
from epochmq_operator.local.state_directory import PodRecord, PodsFile, StateDirectory
from epochmq_operator.pods import Component
from epochmq_operator.status_model import PodPhase


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    directory = StateDirectory(tmp_path / "run")
    directory.create()
    names = [
        ("orders", Component.NAMESERVER, 0),
        ("orders", Component.BROKER, 0),
        ("bills", Component.BROKER, 0),
    ]
    records = [
        PodRecord(
            pod=f"{group}-{component.value}-{number}",
            group=group,
            component=component,
            address="127.9.9.9",
            phase=PodPhase.STOPPED,
        )
        for group, component, number in names
    ]
    directory.write_pods(PodsFile(by=current(), applied="", pods=records))
    directory.log_path("x").parent.mkdir()
    for record in records:
        directory.log_path(record.pod).write_text("".join(f"{record.pod} {n}\n" for n in range(5)))
    return directory


def printed(state: StateDirectory, name: str | None, *, lines: int = 2) -> list[str]:
    found: list[bytes] = []
    assert logs.run(state.path, name, lines=lines, follow=False, write=found.append) == ExitCode.OK
    return b"".join(found).decode().splitlines()


def follow(state: StateDirectory, name: str | None, *steps: Callable[[], object]) -> list[str]:
    """What is printed while these steps happen, one after each look at the logs."""
    found: list[bytes] = []
    left = [*steps, lambda: None]

    def until() -> bool:
        if not left:
            return True
        left.pop(0)()
        return False

    logs.run(state.path, name, lines=0, follow=True, write=found.append, until=until)
    return b"".join(found).decode().splitlines()


def test_the_last_lines_of_one_pod_have_no_prefix(state: StateDirectory) -> None:
    expected = ["orders-broker-0 3", "orders-broker-0 4"]
    assert printed(state, "orders/0") == expected
    assert printed(state, "orders/orders-broker-0") == expected
    assert printed(state, "bills", lines=0) == []


def test_lines_of_several_pods_name_the_pod(state: StateDirectory) -> None:
    assert printed(state, "orders", lines=1) == [
        "orders-nameserver-0 | orders-nameserver-0 4",
        "orders-broker-0     | orders-broker-0 4",
    ]
    assert len(printed(state, None, lines=1)) == 3


def test_new_lines_are_followed_and_half_lines_wait_for_their_end(state: StateDirectory) -> None:
    path = state.log_path("orders-broker-0")

    def add(text: str) -> None:
        with path.open("a") as file:
            file.write(text)

    found = follow(state, "orders/0", lambda: add("one\ntw"), lambda: add("o\n"))
    assert found == ["one", "two"]


def test_a_rotated_log_is_followed(state: StateDirectory) -> None:
    path = state.log_path("orders-broker-0")
    assert follow(state, "orders/0", lambda: path.write_text("new\n")) == ["new"]


def test_a_log_that_appears_later_is_followed(state: StateDirectory) -> None:
    path = state.log_path("bills-broker-0")
    path.unlink()
    assert follow(state, "bills", lambda: path.write_text("first\n")) == ["first"]


def test_bytes_that_are_no_text_pass_unchanged(state: StateDirectory) -> None:
    state.log_path("bills-broker-0").write_bytes(b"\xff\xfe\n")
    found: list[bytes] = []
    logs.run(state.path, "bills", lines=9, follow=False, write=found.append)
    assert found == [b"\xff\xfe\n"]


@pytest.mark.parametrize("name", ["nothing", "orders/7", "orders/bills-broker-0", "/", ""])
def test_an_unknown_pod_is_an_error_that_names_the_known_ones(
    state: StateDirectory, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["logs", name, "--state", str(state.path)]) == ExitCode.USAGE
    output = capsys.readouterr()
    assert output.out == ""
    assert f"{name}: expected GROUP or GROUP/REPLICA; there are: orders/orders-nameserver-0" in output.err


def test_where_nothing_has_run_there_is_nothing_to_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["logs", "--state", str(tmp_path / "none")]) == ExitCode.NOTHING
    assert "no pod has run in" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
