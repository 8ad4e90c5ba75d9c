"""Tests the command line: its arguments, its errors, its exit codes and its tables."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from epochmq import exits
from epochmq.app import run
from epochmq.exits import ExitCode, UsageError, exit_code_of
from epochmq.main import is_process
from epochmq.processes import run_process
from epochmq.verbs.next_steps import next_steps, typed_command
from epochmq.verbs.pod_tables import (
    PodRow,
    broker_groups_table,
    duration,
    master_slave_table,
    pod_table,
    row_of_record,
    row_of_status,
)
from epochmq.verbs.target import NameserverTarget
from epochmq_operator.local.readiness import Readiness
from epochmq_operator.local.state_directory import PodRecord
from epochmq_operator.pods import Component
from epochmq_operator.resources import GroupMode, load_resources
from epochmq_operator.status_model import (
    ActingMasterStatus,
    BrokerGroupStatus,
    GroupPhase,
    ListedReplicaGroup,
    PodPhase,
    ReplicaStatus,
)
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import ConfigError, ConnectError, RequestError

ROOT = Path(__file__).resolve().parents[3]
GROUP = "apiVersion: epochmq.io/v1alpha1\nkind: BrokerGroup\nmetadata: {name: %s}\nspec: {replicas: 1}\n"


# processes of pods


@pytest.mark.parametrize("verb", ["broker", "nameserver"])
def test_the_processes_of_pods_import_no_interactive_verb(verb: str) -> None:
    module = {"broker": "epochmq_broker.main", "nameserver": "epochmq_controller.nameserver.main"}[verb]
    code = (
        f"import sys, epochmq.main, epochmq.processes, {module}; "
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"typer", "pydantic", "yaml", "epochmq_operator"} & set(found.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--config"], "--config needs a value"),
        (["--config="], "--config needs a value"),
        (["--set", "x"], "--set x: expected KEY=VALUE"),
        (["--set", "=x"], "--set =x: expected KEY=VALUE"),
        (["--port", "1"], "unknown argument '--port'"),
        (["file"], "unknown argument 'file'"),
    ],
)
def test_an_invalid_argument_of_a_process_verb_is_an_error_with_the_usage(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_process("broker", arguments) == ExitCode.USAGE
    output = capsys.readouterr().err
    assert output.startswith(f"epochmq: broker: {problem}\n")
    assert "Usage: epochmq broker" in output


def test_the_options_of_a_process_verb_reach_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(
        "epochmq_broker.main.run", lambda path, overrides: seen.append((path, overrides)) or 7
    )
    assert run_process("broker", ["-c", "a.conf", "--set", "k=v=w", "--set=brokerId=1"]) == 7
    assert seen == [("a.conf", {"k": "v=w", "brokerId": "1"})]


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    output = capsys.readouterr().out
    assert all(
        f"\n  {verb} " in output
        for verb in ("up", "down", "status", "produce", "consume", "nameserver", "broker", "version")
    )


@pytest.mark.parametrize(
    "arguments", [["-h"], ["status", "-h"], ["replica", "-h"], ["replica", "adopt", "-h"]]
)
def test_the_short_option_of_help_is_accepted_everywhere(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 0
    assert capsys.readouterr().out.startswith("Usage: epochmq ")


def test_the_version_is_an_option_and_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == run(["version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["up"], ["consume"], ["consume", "t", "--count", "0"], ["status", "-o", "xml"]],
)
def test_a_wrong_command_line_has_the_exit_code_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == ExitCode.USAGE
    assert "Usage:" in capsys.readouterr().err


# exit codes


def fails_with(error: BaseException) -> int:
    def action() -> int:
        raise error

    return exit_code_of(action)


@pytest.mark.parametrize(
    ("error", "code", "output"),
    [
        (
            ConfigError("brokerId", "x", "a number"),
            ExitCode.USAGE,
            "epochmq: brokerId=x: expected a number\n",
        ),
        (UsageError("no such file"), ExitCode.USAGE, "epochmq: no such file\n"),
        (ConnectError("no broker"), ExitCode.FAILED, "epochmq: no broker\n"),
        (RequestError(ResponseCode.SYSTEM_BUSY, "later"), ExitCode.FAILED, "epochmq: SYSTEM_BUSY: later\n"),
        (RequestError(4711, "odd"), ExitCode.FAILED, "epochmq: code 4711: odd\n"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, ""),
        (
            ZeroDivisionError("oops"),
            ExitCode.INTERNAL,
            "epochmq: internal error: ZeroDivisionError: oops (set EPOCHMQ_TRACEBACK=1 for a traceback)\n",
        ),
    ],
)
def test_an_error_prints_one_message_and_has_its_exit_code(
    error: BaseException, code: ExitCode, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails_with(error) == code
    assert capsys.readouterr().err == output


def test_an_internal_error_has_a_traceback_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(exits.TRACEBACK, "1")
    assert fails_with(ZeroDivisionError("oops")) == ExitCode.INTERNAL
    assert "Traceback" in capsys.readouterr().err


# nameservers


@pytest.mark.parametrize("text", ["host", ":1", "host:", "host:x", "host:0", "host:65536", ";", ""])
def test_an_invalid_address_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        NameserverTarget(None, text, None).nameservers()


def test_several_addresses_are_accepted() -> None:
    assert NameserverTarget(None, "a:1; b:2,[::1]:3", None).nameservers() == ["a:1", "b:2", "[::1]:3"]


def test_a_state_directory_and_an_address_together_are_rejected() -> None:
    with pytest.raises(UsageError, match="not both"):
        NameserverTarget(Path("x"), "a:1", None).nameservers()


def test_a_damaged_state_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pods.json").write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        NameserverTarget(tmp_path, None, None).nameservers()


def test_a_run_of_controllers_alone_has_no_nameservers_to_send_to(tmp_path: Path) -> None:
    def pod(group: str, component: str) -> dict[str, object]:
        name = f"{group}-{component}-0"
        nameservers = [f"{group}:9876"] if component == "broker" else []
        return {
            "pod": name,
            "group": group,
            "component": component,
            "phase": "Ready",
            "nameservers": nameservers,
        }

    pods = [pod("quorum", "nameserver"), pod("quorum", "controller")]
    (tmp_path / "pods.json").write_text(json.dumps({"pods": pods}))
    with pytest.raises(UsageError, match="no broker group runs in"):
        NameserverTarget(tmp_path, None, None).nameservers()
    pods += [pod("orders", "nameserver"), pod("orders", "broker")]
    (tmp_path / "pods.json").write_text(json.dumps({"pods": pods}))
    assert NameserverTarget(tmp_path, None, None).nameservers() == ["orders:9876"]


# tables and texts


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (3599, "59m"),
        (3600, "1h00m"),
        (11100, "3h05m"),
        (187_200, "2d04h"),
        (-5, "0s"),
    ],
)
def test_a_duration_is_short(seconds: float, text: str) -> None:
    assert duration(int(seconds * 1000)) == text


def row(phase: PodPhase, reason: str = "", statistics: dict[str, str] | None = None) -> PodRow:
    return PodRow(
        "a-broker-0",
        Component.BROKER,
        "127.1.2.3:10911",
        42,
        phase,
        reason,
        1,
        1000,
        "master",
        statistics or {},
    )


def drawn(rows: list[PodRow], width: int) -> str:
    output = StringIO()
    Console(file=output, width=width).print(pod_table(rows, width, now_ms=61_000))
    return output.getvalue()


def test_the_table_shows_the_statistics_of_a_broker_if_there_is_room() -> None:
    statistics = {
        "putTps": "12.7 3.0 1.0",
        "getTransferredTps": "",
        "msgPutTotalTodayNow": "110",
        "msgPutTotalTodayMorning": "10",
    }
    wide = drawn([row(PodPhase.READY, statistics=statistics)], 160).splitlines()[1].split()
    assert wide == ["a-broker-0", "master", "127.1.2.3:10911", "42", "Ready", "1m", "1", "13", "100"]
    narrow = drawn([row(PodPhase.READY, statistics=statistics)], 80).splitlines()[1].split()
    assert narrow == ["a-broker-0", "master", "127.1.2.3:10911", "42", "Ready", "1"]


def test_the_table_shows_why_a_pod_is_not_ready() -> None:
    assert "BackOff (exit status 2)" in drawn([row(PodPhase.BACK_OFF, "exit status 2")], 160)
    assert all(len(line) <= 80 for line in drawn([row(PodPhase.BACK_OFF, "why " * 50)], 80).splitlines())


def replica(number: int, role: str | None, end: int | None, **fields: bool) -> ReplicaStatus:
    flags = {"in_sync": True, "fenced": False, "drained": False} | fields
    return ReplicaStatus(
        pod=f"a-broker-{number}",
        address=f"127.1.2.{number}:10911",
        pid=1,
        admin_address=None,
        data_dir="/x",
        ready=True,
        phase=PodPhase.READY,
        reason="",
        restarts=0,
        broker_id=number + 1,
        role=role,
        epoch=None if end is None else 4,
        max_offset=end,
        confirm_offset=end,
        ha_address="x",
        **flags,
    )


def test_every_replica_has_a_row_with_its_lag() -> None:
    replicas = [
        replica(0, "slave", 900),
        replica(1, "master", 1000, fenced=True),
        replica(2, "slave", 400, in_sync=False, drained=True),
        replica(3, None, None, in_sync=False),
    ]
    group = BrokerGroupStatus(
        name="a",
        broker_name="a",
        cluster="c",
        controller_group="a",
        phase=GroupPhase.READY,
        nameservers=[],
        replicas=replicas,
    )
    alone = msgspec.structs.replace(group, controller_group=None)
    output = StringIO()
    Console(file=output, width=160).print(broker_groups_table([group, alone]))
    assert [line.split() for line in output.getvalue().splitlines()[1:]] == [
        ["a-broker-0", "1", "slave", "4", "yes", "900", "900", "100"],
        ["a-broker-1", "2", "master", "4", "yes", "(fenced)", "1000", "1000", "0"],
        ["a-broker-2", "3", "slave", "4", "no", "(drained)", "400", "400", "600"],
        ["a-broker-3", "4", "-", "-", "no", "-", "-", "-"],
    ]


def test_the_table_of_a_master_and_its_slaves_says_which_one_acts_and_what_escaped() -> None:
    down = msgspec.structs.replace(replica(0, None, None), broker_id=0)
    acting = msgspec.structs.replace(replica(1, "acting", 900), broker_id=1, escaped=12, escape_waiting=3)
    group = BrokerGroupStatus(
        name="a",
        broker_name="a",
        cluster="c",
        controller_group=None,
        phase=GroupPhase.DEGRADED,
        nameservers=[],
        mode=GroupMode.MASTER_SLAVE,
        acting_master=ActingMasterStatus(pod="a-broker-1", since_ms=1_000, escaped=12, escape_waiting=3),
        replicas=[down, acting],
    )
    elected = msgspec.structs.replace(group, mode=GroupMode.CONTROLLER, controller_group="a")
    output = StringIO()
    Console(file=output, width=160).print(master_slave_table([group, elected], now_ms=421_000))
    assert [line.split() for line in output.getvalue().splitlines()[1:]] == [
        ["a-broker-0", "0", "-", "-", "-", "-", "-"],
        ["a-broker-1", "1", "acting", "7m", "12", "3", "900"],
    ]
    assert broker_groups_table([group]).row_count == 0


def test_the_role_of_a_replica_is_that_of_the_controllers() -> None:
    kept = ListedReplicaGroup(
        broker_name="a",
        master_id=1,
        master_address="127.1.2.3:10911",
        master_epoch=2,
        sync_state_set_epoch=2,
        sync_state_set=[1],
        replicas=[],
    )
    for address, registered, role in (("127.1.2.3", 2, "master"), ("127.1.2.4", 0, "slave")):
        record = PodRecord(
            pod="a-broker-0",
            group="a",
            component=Component.BROKER,
            address=address,
            phase=PodPhase.READY,
            reason="",
            since_ms=1000,
        )
        shown = row_of_record(record, Readiness(True, broker_id=registered, group=kept))
        assert drawn([shown], 80).splitlines()[1].split()[1] == role


def test_the_role_of_a_pod_on_a_cluster_is_that_of_its_status() -> None:
    peer = msgspec.structs.replace(
        replica(0, "master", 900), dledger_address="127.1.2.0:10900", ha_address=None
    )
    roles = [
        row_of_status(pod, Component.BROKER).role
        for pod in (peer, replica(1, "acting", 9), replica(2, None, None))
    ]
    assert roles == ["master (term 4)", "acting", "broker"]


def test_the_next_steps_can_be_typed_as_they_stand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bin_directory = tmp_path / ".venv" / "bin"
    bin_directory.mkdir(parents=True)
    command = bin_directory / "epochmq"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(command), "up"])
    resources = load_resources([("f", GROUP % "orders")])
    monkeypatch.setenv("PATH", "/usr/bin")
    output = next_steps(Path(".epochmq"), resources, ["127.1.2.3:9876"], detached=False)
    assert output.splitlines()[1:4] == [
        "  .venv/bin/epochmq topic create greetings",
        "  .venv/bin/epochmq produce greetings 'hello'",
        "  .venv/bin/epochmq consume greetings",
    ]
    assert "after `source .venv/bin/activate`: epochmq topic create greetings\n" in output
    assert "namesrvAddr to 127.1.2.3:9876" in output
    assert output.endswith("Press Ctrl-C to stop; the data is kept.")

    monkeypatch.setenv("PATH", str(bin_directory))
    assert typed_command() == "epochmq"
    two = load_resources([("f", GROUP % "orders"), ("g", GROUP % "other")])
    output = next_steps(Path("/a b"), two, ["127.1.2.3:9876"], detached=True)
    assert "  epochmq produce greetings 'hello' --state '/a b' --broker-group orders\n" in output
    assert "  epochmq topic create greetings --state '/a b' --broker-group orders\n" in output
    assert output.endswith("Stop with: epochmq down --state '/a b'")


def test_kubectl_runs_the_same_program() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kubectl-epochmq"] == scripts["epochmq"] == "epochmq.main:main"


def test_a_broker_runs_and_brokers_are_shown_by_the_same_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert is_process(["broker"])
    assert is_process(["broker", "--config", "x"])
    assert is_process(["broker", "members"])
    assert not is_process(["broker", "list"])
    assert not is_process(["broker", "describe", "a"])
    assert not is_process(["topic", "list"])
    assert not is_process([])
    assert run(["broker", "describe"]) == ExitCode.USAGE
    assert "NAME" in capsys.readouterr().err


def test_resources_are_validated_without_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(GROUP % "orders")
    bad.write_text((GROUP % "orders").replace("replicas: 1", "replicas: 1, config: {maxMessageSize: much}"))
    assert run(["validate", str(good)]) == 0
    assert capsys.readouterr().out == "BrokerGroup orders: valid\n"
    assert run(["validate", str(good), str(bad)]) == ExitCode.USAGE
    assert run(["validate", str(bad)]) == ExitCode.USAGE
    assert 'spec.config.maxMessageSize: "much", expected' in capsys.readouterr().err
    assert run(["validate", "/dev/zero"]) == ExitCode.USAGE
    assert run(["up", "-f", str(bad), "--dry-run"]) == ExitCode.USAGE
    capsys.readouterr()
    assert run(["up", "-f", str(good), "--dry-run"]) == 0
    assert capsys.readouterr().out == "orders: new\n"
    assert sorted(tmp_path.iterdir()) == [bad, good], "nothing is created"
