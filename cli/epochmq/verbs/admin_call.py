"""`epochmq admin-call`: asks a process of this machine over its local socket. For a pod's hooks and probes,
and for people; nothing is imported that a probe would have to wait for."""

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
    HandoverArguments,
    LogLevelArguments,
    PromoteArguments,
    ReadinessLimits,
)
from epochmq_protocol.transport.admin_socket import call_admin_socket

USAGE = """\
Usage: epochmq admin-call [--socket PATH] [--timeout SECONDS] OPERATION [KEY=VALUE…]

  Asks the broker, controller or nameserver behind a local socket and prints its answer as JSON. Ends with 0
  when it was done, 1 when not.

  --socket PATH       the process's adminSocketPath; /run/epochmq/admin.sock without it
  --timeout SECONDS   how long it may take; 5 s, for switches and drain 30 s

  live ready state epochs epoch-file sync-state-set lag lease config metrics
                      look; `ready` ends with 1 when the process is not, and says why. state, ready and
                      metrics take maxLagBytes=N maxLagMs=N
  handover            a master gives its mastership away, a leading controller its leadership; done at
                      once by everybody else. lingerMs=N: goes on for up to so long while clients with
                      old routes still send here
  promote             the replica that is asked becomes master; promote brokerId=N: that one
  fence unfence drain undrain
  log-level level=DEBUG logger=NAME
  change-config KEY=VALUE…
"""

SOCKET_DEFAULT = "/run/epochmq/admin.sock"
TIMEOUT_S = 5.0
SWITCH_TIMEOUT_S = 30.0
SWITCHES = (AdminOperation.HANDOVER, AdminOperation.PROMOTE, AdminOperation.DRAIN)
READY = "ready"

ARGUMENTS: dict[str, type[AdminArguments]] = {
    AdminOperation.STATE: ReadinessLimits,
    AdminOperation.METRICS: ReadinessLimits,
    AdminOperation.PROMOTE: PromoteArguments,
    AdminOperation.HANDOVER: HandoverArguments,
    AdminOperation.LOG_LEVEL: LogLevelArguments,
}


@dataclass(slots=True)
class _Wanted:
    socket: str = SOCKET_DEFAULT
    timeout_s: float | None = None
    operation: str = ""
    values: dict[str, str] = field(default_factory=dict)


def run(arguments: list[str]) -> int:
    """The exit code."""
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return ExitCode.OK
    try:
        wanted = _parse(arguments)
        operation, values = _arguments(wanted)
    except UsageError:
        print(USAGE, end="", file=sys.stderr)
        raise
    default_s = SWITCH_TIMEOUT_S if operation in SWITCHES else TIMEOUT_S
    timeout_ms = int((wanted.timeout_s if wanted.timeout_s is not None else default_s) * 1000)
    try:
        answer = asyncio.run(call_admin_socket(wanted.socket, operation, values, timeout_ms=timeout_ms))
    except AdminError as error:
        print_error(f"{operation}: {error.message}")
        return ExitCode.USAGE if error.kind in (FaultKind.UNKNOWN, FaultKind.INVALID) else ExitCode.FAILED
    if wanted.operation == READY:
        return _ready(msgspec.json.decode(answer))
    if operation == AdminOperation.EPOCH_FILE:
        sys.stdout.buffer.write(msgspec.json.decode(answer, type=_File).content)
        return ExitCode.OK
    print(msgspec.json.format(answer, indent=2).decode())
    return ExitCode.OK


class _File(msgspec.Struct):
    content: bytes


def _ready(state: dict[str, Any]) -> int:
    for reason in state["notReady"]:
        print_error(f"not ready: {reason}")
    return ExitCode.OK if state["ready"] else ExitCode.FAILED


def _parse(arguments: list[str]) -> _Wanted:
    wanted = _Wanted()
    rest = iter(arguments)
    for argument in rest:
        name, assigned, value = argument.partition("=")
        if name in ("--socket", "--timeout"):
            value = value if assigned else next(rest, "")
            if not value:
                raise UsageError(f"{name} takes a value")
            if name == "--socket":
                wanted.socket = value
            else:
                wanted.timeout_s = _seconds(value)
        elif argument.startswith("-"):
            raise UsageError(f"what is {argument!r}?")
        elif not wanted.operation:
            wanted.operation = argument
        elif assigned:
            wanted.values[name] = value
        else:
            raise UsageError(f"{argument}: expected KEY=VALUE")
    if not wanted.operation:
        raise UsageError("which operation?")
    return wanted


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0.001 <= seconds <= TIMEOUT_MAX_MS / 1000:
        raise UsageError(f"--timeout {text}: expected seconds, at most {TIMEOUT_MAX_MS // 1000}")
    return seconds


def _arguments(wanted: _Wanted) -> tuple[str, AdminArguments]:
    """(the operation, what it takes). UsageError for what it does not."""
    operation = AdminOperation.STATE if wanted.operation == READY else wanted.operation
    if operation == AdminOperation.CHANGE_CONFIG:
        if not wanted.values:
            raise UsageError(f"{operation}: expected KEY=VALUE")
        return operation, ChangeConfigArguments(changes=wanted.values)
    kind = ARGUMENTS.get(operation, AdminArguments)
    try:
        return operation, msgspec.convert(wanted.values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"{wanted.operation}: {error}") from None
