"""Runs the verbs that are long-lived processes: the containers of pods, the operator and the supervisor.

This module parses the arguments of these verbs itself, without typer, so that each process imports only what
it needs. It also runs `admin-call`, which a probe calls every few seconds (`epochmq.verbs.admin_call`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from epochmq.exits import ExitCode, exit_code_of, print_error

USAGE = {
    "broker": """\
Usage: epochmq broker [--config FILE] [--set KEY=VALUE]…

  Runs a broker in the foreground until SIGTERM or SIGINT.

  -c, --config FILE   a broker.conf with RocketMQ's keys
  --set KEY=VALUE     a key that overrides the file; may be repeated

       epochmq broker members --help

  Shows and changes the members of a DLedger group.
""",
    "controller": """\
Usage: epochmq controller [--config FILE] [--set KEY=VALUE]…

  Runs a controller in the foreground until SIGTERM or SIGINT.

  -c, --config FILE   a controller.conf with RocketMQ's keys
  --set KEY=VALUE     a key that overrides the file; may be repeated

       epochmq controller members --help

  Shows and changes the members of a quorum.
""",
    "nameserver": """\
Usage: epochmq nameserver [--config FILE] [--set KEY=VALUE]…

  Runs a nameserver in the foreground until SIGTERM or SIGINT.

  -c, --config FILE   a namesrv.conf with RocketMQ's keys
  --set KEY=VALUE     a key that overrides the file; may be repeated
""",
    "admin": """\
Usage: epochmq admin [--config FILE] [--set KEY=VALUE]…

  Runs the admin sidecar of a broker, controller or nameserver in the foreground until SIGTERM or SIGINT.

  -c, --config FILE   an admin.conf with the keys of docs/admin.md
  --set KEY=VALUE     a key that overrides the file; may be repeated
""",
    "operator": """\
Usage: epochmq operator [--config FILE] [--set KEY=VALUE]… [--release]

  Runs the operator in the foreground until SIGTERM or SIGINT.

  -c, --config FILE   YAML or KEY=VALUE lines with the keys of docs/operator.md
  --set KEY=VALUE     a key that overrides the file; may be repeated
  --release           removes the deletion guard (the operator's finalizer) from every group and exits. Use it
                      before you uninstall the operator: no other program removes it, and a guarded group
                      cannot be deleted
""",
    "supervise": """\
Usage: epochmq supervise --state DIR

  Runs the resources that `epochmq up` wrote to a state directory. `epochmq up --detach` starts it.
""",
}


@dataclass(slots=True)
class _ProcessOptions:
    config: str | None = None
    state: str | None = None
    removes_deletion_guards: bool = False
    overrides: dict[str, str] = field(default_factory=dict)


def run_process(verb: str, arguments: list[str]) -> int:
    """Runs the verb with these arguments until it ends; returns the exit code."""
    if verb == "controller" and arguments[:1] == ["members"]:
        from epochmq_controller.controller.members_command import COMMAND as CONTROLLER_MEMBERS

        return exit_code_of(lambda: CONTROLLER_MEMBERS.run(arguments[1:]))
    if verb == "controller" and arguments[:1] and arguments[0] in ("elect", "forget", "configure"):
        from epochmq_controller.controller.orders_command import run as run_order

        return exit_code_of(lambda: run_order(arguments))
    if verb == "broker" and arguments[:1] == ["members"]:
        from epochmq_broker.membership.dledger.members_command import COMMAND as BROKER_MEMBERS

        return exit_code_of(lambda: BROKER_MEMBERS.run(arguments[1:]))
    if verb == "admin-call":
        from epochmq.verbs.admin_call import run as run_call

        return exit_code_of(lambda: run_call(arguments))
    removes_deletion_guards = verb == "operator" and "--release" in arguments
    if removes_deletion_guards:
        arguments = [one for one in arguments if one != "--release"]
    if "--help" in arguments or "-h" in arguments:
        print(USAGE[verb], end="")
        return ExitCode.OK
    try:
        options = _parse(verb, arguments)
    except ValueError as error:
        print_error(f"{verb}: {error}")
        print(USAGE[verb], end="", file=sys.stderr)
        return ExitCode.USAGE
    options.removes_deletion_guards = removes_deletion_guards
    return exit_code_of(lambda: _run(verb, options))


def _parse(verb: str, arguments: list[str]) -> _ProcessOptions:
    """Parses the arguments. Raises ValueError for unknown options and missing values."""
    options = _ProcessOptions()
    rest = iter(arguments)
    for argument in rest:
        name, separator, value = argument.partition("=")
        if name not in (("--state",) if verb == "supervise" else ("--config", "-c", "--set")):
            raise ValueError(f"unknown argument {argument!r}")
        if not separator:
            value = next(rest, "")
        if not value:
            raise ValueError(f"{name} needs a value")
        if name == "--state":
            options.state = value
        elif name == "--set":
            key, separator, text = value.partition("=")
            if not key or not separator:
                raise ValueError(f"--set {value}: expected KEY=VALUE")
            options.overrides[key.strip()] = text
        else:
            options.config = value
    if verb == "supervise" and options.state is None:
        raise ValueError("--state is missing")
    return options


def _run(verb: str, options: _ProcessOptions) -> int:
    if verb == "broker":
        from epochmq_broker.main import run

        return run(options.config, options.overrides)
    if verb == "operator":
        from epochmq_operator.kube.main import remove_deletion_guards
        from epochmq_operator.kube.main import run as run_operator

        run_once = remove_deletion_guards if options.removes_deletion_guards else run_operator
        return run_once(options.config, options.overrides)
    if verb == "admin":
        from epochmq_sidecar.main import run as run_admin

        return run_admin(options.config, options.overrides)
    if verb == "nameserver":
        from epochmq_controller.nameserver.main import run as run_nameserver

        return run_nameserver(options.config, options.overrides)
    if verb == "controller":
        from epochmq_controller.controller.main import run as run_controller

        return run_controller(options.config, options.overrides)
    from epochmq.verbs.supervise import run as run_supervisor

    assert options.state is not None, "_parse requires it"
    return run_supervisor(options.state)
