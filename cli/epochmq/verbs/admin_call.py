"""Implements `epochmq admin-call`: calls a process on this machine over its admin socket, for the hooks and
probes of a pod and for people. It imports little, so that a probe starts fast."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from typing import Any

import msgspec

from epochmq.exits import ExitCode, UsageError, print_error
from epochmq_protocol.admin_api.messages import TIMEOUT_MAX_MS, AdminError, FaultKind
from epochmq_protocol.admin_api.operations import (
    AdminArguments,
    AdminOperation,
    ChangeConfigArguments,
    ChangeMembersArguments,
    HandoverArguments,
    LogLevelArguments,
    PromoteArguments,
    ReadinessLimits,
    ReloadConfigArguments,
)
from epochmq_protocol.transport.admin_socket import call_admin_socket

USAGE = """\
Usage: epochmq admin-call [--socket PATH] [--timeout SECONDS] OPERATION [KEY=VALUE…]

  Calls the broker, controller or nameserver behind an admin socket and prints its response as JSON. The exit
  code is 0 on success, 1 on failure.

  --socket PATH       the adminSocketPath of the process (default: /run/epochmq/admin.sock)
  --timeout SECONDS   the time limit (default: 5 s; 30 s for handover, promote and drain)

  live ready state epochs epoch-file sync-state-set lag lease config metrics
                      show the state. `ready` exits with 1 if the process is not ready, and prints why.
                      state, ready and metrics accept maxLagBytes=N maxLagMs=N
  handover            a master gives up its mastership, a leading controller its leadership; for all other
                      processes it does nothing. lingerMs=N: return only when clients with old routes have
                      stopped sending here, or after N ms
  promote             the called replica becomes master; with brokerId=N that replica
  change-members member=ID [address=HOST:PORT]
                      the leading controller adds this member to its quorum, or removes it if there is no
                      address
  fence unfence drain undrain
  adopt-store discard-store
                      a broker whose store the controllers refuse keeps its broker id with it, or gets
                      another one
  log-level level=DEBUG logger=NAME
  change-config KEY=VALUE…
  reload-config version=TEXT KEY=VALUE…
                      applies a whole configuration file; keys that are missing get their default values
"""

SOCKET_DEFAULT = "/run/epochmq/admin.sock"
TIMEOUT_S = 5.0
SWITCHOVER_TIMEOUT_S = 30.0
SWITCHOVER_OPERATIONS = (AdminOperation.HANDOVER, AdminOperation.PROMOTE, AdminOperation.DRAIN)
READY = "ready"

ARGUMENTS: dict[str, type[AdminArguments]] = {
    AdminOperation.STATE: ReadinessLimits,
    AdminOperation.METRICS: ReadinessLimits,
    AdminOperation.PROMOTE: PromoteArguments,
    AdminOperation.HANDOVER: HandoverArguments,
    AdminOperation.CHANGE_MEMBERS: ChangeMembersArguments,
    AdminOperation.LOG_LEVEL: LogLevelArguments,
}


@dataclass(slots=True)
class _AdminCall:
    socket: str = SOCKET_DEFAULT
    timeout_s: float | None = None
    operation: str = ""
    values: dict[str, str] = field(default_factory=dict)


def run(arguments: list[str]) -> int:
    """Runs the call; returns the exit code."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return ExitCode.OK
    try:
        call = _parse(arguments)
        operation, values = _arguments(call)
    except UsageError:
        print(USAGE, end="", file=sys.stderr)
        raise
    default_s = SWITCHOVER_TIMEOUT_S if operation in SWITCHOVER_OPERATIONS else TIMEOUT_S
    timeout_ms = int((call.timeout_s if call.timeout_s is not None else default_s) * 1000)
    try:
        result = asyncio.run(call_admin_socket(call.socket, operation, values, timeout_ms=timeout_ms))
    except AdminError as error:
        print_error(f"{operation}: {error.message}")
        return ExitCode.USAGE if error.kind in (FaultKind.UNKNOWN, FaultKind.INVALID) else ExitCode.FAILED
    if call.operation == READY:
        return _ready(msgspec.json.decode(result))
    if operation == AdminOperation.EPOCH_FILE:
        sys.stdout.buffer.write(msgspec.json.decode(result, type=_EpochFile).content)
        return ExitCode.OK
    print(msgspec.json.format(result, indent=2).decode())
    return ExitCode.OK


class _EpochFile(msgspec.Struct):
    content: bytes


def _ready(state: dict[str, Any]) -> int:
    for reason in state["notReady"]:
        print_error(f"not ready: {reason}")
    return ExitCode.OK if state["ready"] else ExitCode.FAILED


def _parse(arguments: list[str]) -> _AdminCall:
    call = _AdminCall()
    rest = iter(arguments)
    for argument in rest:
        name, assigned, value = argument.partition("=")
        if name in ("--socket", "--timeout"):
            value = value if assigned else next(rest, "")
            if not value:
                raise UsageError(f"{name} needs a value")
            if name == "--socket":
                call.socket = value
            else:
                call.timeout_s = _seconds(value)
        elif argument.startswith("-"):
            raise UsageError(f"unknown option {argument!r}")
        elif not call.operation:
            call.operation = argument
        elif assigned:
            call.values[name] = value
        else:
            raise UsageError(f"{argument}: expected KEY=VALUE")
    if not call.operation:
        raise UsageError("no operation given")
    return call


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0.001 <= seconds <= TIMEOUT_MAX_MS / 1000:
        raise UsageError(f"--timeout {text}: expected seconds, at most {TIMEOUT_MAX_MS // 1000}")
    return seconds


def _arguments(call: _AdminCall) -> tuple[str, AdminArguments]:
    """The operation and its arguments. Raises UsageError for unknown or invalid ones."""
    operation = AdminOperation.STATE if call.operation == READY else call.operation
    if operation == AdminOperation.CHANGE_CONFIG:
        if not call.values:
            raise UsageError(f"{operation}: expected KEY=VALUE")
        return operation, ChangeConfigArguments(changes=call.values)
    if operation == AdminOperation.RELOAD_CONFIG:
        config = {key: value for key, value in call.values.items() if key != "version"}
        version = call.values.get("version", "")
        if not version or not config:
            raise UsageError(f"{operation}: expected version=TEXT and KEY=VALUE")
        return operation, ReloadConfigArguments(config=config, version=version)
    kind = ARGUMENTS.get(operation, AdminArguments)
    try:
        return operation, msgspec.convert(call.values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{call.operation}: {_expectation(call.values, kind, str(error))}") from None


def _expectation(values: dict[str, str], kind: type[AdminArguments], problem: str) -> str:
    """Which argument is wrong, its value, and what was expected."""
    _, _, name = problem.partition("`$.")
    name = name.rstrip("`")
    if name in values:
        expected = "a whole number" if "`int" in problem else "another value"
        return f"{name}={values[name]}: expected {expected}"
    known = [field.encode_name for field in msgspec.structs.fields(kind)]
    return f"{problem.partition(' - at')[0]}; it accepts {', '.join(known) or 'no arguments'}"
