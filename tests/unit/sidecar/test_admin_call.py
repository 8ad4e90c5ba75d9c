"""`epochmq admin-call`: its calls, its output, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from epochmq.exits import ExitCode
from epochmq.processes import run_process
from epochmq_protocol.admin_api.messages import AdminError, FaultKind
from epochmq_protocol.admin_api.operations import (
    AdminArguments,
    AdminOperation,
    ChangeConfigArguments,
    HandoverArguments,
    PromoteArguments,
    ReadinessLimits,
    ReloadConfigArguments,
)
from epochmq_protocol.admin_api.results import BrokerState, EpochFileContent
from epochmq_protocol.transport.admin_socket import AdminOperationHandler, AdminSocketServer
from epochmq_sidecar.openapi import MASTER


class Process:
    """Serves an admin socket on its own thread."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.asked: list[tuple[str, AdminArguments]] = []
        self.state: BrokerState = MASTER
        self._up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        assert self._up.wait(60)

    async def _serve(self) -> None:
        def operation(name: str, kind: type[AdminArguments]) -> AdminOperationHandler:
            async def run(arguments: AdminArguments, timeout_ms: float) -> object:
                return self._answer(name, arguments)

            return AdminOperationHandler(kind, run)

        kinds = {
            AdminOperation.STATE: ReadinessLimits,
            AdminOperation.PROMOTE: PromoteArguments,
            AdminOperation.HANDOVER: HandoverArguments,
            AdminOperation.CHANGE_CONFIG: ChangeConfigArguments,
            AdminOperation.RELOAD_CONFIG: ReloadConfigArguments,
        }
        names = (
            AdminOperation.STATE,
            AdminOperation.PROMOTE,
            AdminOperation.HANDOVER,
            AdminOperation.CHANGE_CONFIG,
            AdminOperation.RELOAD_CONFIG,
            AdminOperation.EPOCH_FILE,
        )
        operations = {name: operation(name, kinds.get(name, AdminArguments)) for name in names}
        server = AdminSocketServer(self.path, operations)
        await server.start()
        self._up.set()
        await self._over.wait()
        await server.stop()

    def _answer(self, name: str, arguments: AdminArguments) -> object:
        self.asked.append((name, arguments))
        if name == AdminOperation.STATE:
            return self.state
        if name == AdminOperation.EPOCH_FILE:
            return EpochFileContent(path="x", content=b"\x00raw")
        if name == AdminOperation.PROMOTE:
            raise AdminError(FaultKind.REFUSED, "broker 2 is not in sync")
        return {"moved": False}

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(60)
        self._loop.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(str(tmp_path / "s"))
    yield made
    made.stop()


def call(process: Process, *arguments: str) -> int:
    patience = [] if any(one.startswith("--timeout") for one in arguments) else ["--timeout", "60"]
    return run_process("admin-call", ["--socket", process.path, *patience, *arguments])


def test_the_result_is_printed(process: Process, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(process, "state", "maxLagBytes=5") == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == msgspec.to_builtins(MASTER)
    assert call(process, "--timeout=90", "handover") == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == {"moved": False}
    assert call(process, "change-config", "a=b=c", "d=") == ExitCode.OK
    assert call(process, "reload-config", "version=v1", "a=b") == ExitCode.OK
    assert process.asked == [
        (AdminOperation.STATE, ReadinessLimits(max_lag_bytes=5)),
        (AdminOperation.HANDOVER, HandoverArguments()),
        (AdminOperation.CHANGE_CONFIG, ChangeConfigArguments(changes={"a": "b=c", "d": ""})),
        (AdminOperation.RELOAD_CONFIG, ReloadConfigArguments(config={"a": "b"}, version="v1")),
    ]


def test_the_epoch_file_is_printed_unchanged(
    process: Process, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert call(process, "epoch-file") == ExitCode.OK
    assert capfdbinary.readouterr().out == b"\x00raw"


def test_ready_exits_with_1_and_prints_the_reasons(
    process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(process, "ready") == ExitCode.OK
    process.state = msgspec.structs.replace(MASTER, ready=False, not_ready=["the disk is full"])
    assert call(process, "ready") == ExitCode.FAILED
    assert capsys.readouterr().err == "epochmq: not ready: the disk is full\n"


def test_a_rejected_operation_exits_with_1(process: Process, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(process, "promote", "brokerId=2") == ExitCode.FAILED
    assert process.asked == [(AdminOperation.PROMOTE, PromoteArguments(broker_id=2))]
    assert capsys.readouterr().err == "epochmq: promote: broker 2 is not in sync\n"


def test_a_socket_without_a_process_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_process("admin-call", ["--socket", str(tmp_path / "none"), "state"]) == ExitCode.FAILED
    assert "no process listens at" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no operation given"),
        (["--socket"], "--socket needs a value"),
        (["--timeout", "soon", "state"], "--timeout soon: expected seconds, at most 120"),
        (["--timeout", "121", "state"], "--timeout 121: expected seconds"),
        (["--odd", "state"], "unknown option '--odd'"),
        (["state", "now"], "now: expected KEY=VALUE"),
        (["state", "maxLagBytes=many"], "state: maxLagBytes=many: expected a whole number"),
        (["handover", "now=1"], "handover: Object contains unknown field `now`"),
        (["change-config"], "change-config: expected KEY=VALUE"),
        (["reload-config", "a=b"], "reload-config: expected version=TEXT and KEY=VALUE"),
    ],
)
def test_a_usage_error_exits_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_process("admin-call", arguments) == ExitCode.USAGE
    shown = capsys.readouterr().err
    assert message in shown
    assert "Usage: epochmq admin-call" in shown


def test_an_operation_unknown_to_the_process_exits_with_2(
    process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(process, "fence") == ExitCode.USAGE
    assert "operation=fence: expected one of" in capsys.readouterr().err


def test_help_names_every_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_process("admin-call", ["--help"]) == ExitCode.OK
    text = capsys.readouterr().out
    assert [name for name in AdminOperation if name not in text.split()] == []
