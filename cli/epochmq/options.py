"""Declares the options that several verbs have, and runs what a verb does."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from epochmq.exits import exit_code_of
from epochmq.verbs.cluster_calls import ClusterVerb
from epochmq.verbs.output import ResultFormat
from epochmq.verbs.target import NameserverTarget

STATE_DEFAULT = Path(".epochmq")


class OutputFormat(StrEnum):
    """The format of the output."""

    TEXT = "text"
    TABLE = "table"
    JSON = "json"


class StatusFormat(StrEnum):
    """The format of a status: the formats of results and, as other verbs of runs have it, `text`."""

    TEXT = "text"
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"

    @property
    def result(self) -> ResultFormat:
        """The format of results that is meant."""
        return ResultFormat.TABLE if self is StatusFormat.TEXT else ResultFormat(self.value)


NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-N", metavar="NAME", help="On Kubernetes: the namespace of the groups."),
]
ContextOption = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="On Kubernetes: the context in the kubeconfig."),
]
KubeconfigOption = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig", metavar="FILE", help="On Kubernetes: the kubeconfig to use, instead of kubectl's."
    ),
]
StateOption = Annotated[
    Path,
    typer.Option(
        "--state", metavar="DIR", help="The state directory: configuration, processes and data of the run."
    ),
]
OptionalStateOption = Annotated[
    Path | None,
    typer.Option(
        "--state", metavar="DIR", help="The state directory of the run to connect to. [default: .epochmq]"
    ),
]
NameserverOption = Annotated[
    str | None,
    typer.Option(
        "--nameserver",
        "-n",
        metavar="ADDR",
        help="Nameservers to connect to instead: host:port, separated by ';'.",
    ),
]
BrokerGroupOption = Annotated[
    str | None,
    typer.Option(
        "--broker-group", metavar="NAME", help="The group whose nameservers to use, if the run has several."
    ),
]
OutputOption = Annotated[OutputFormat, typer.Option("--output", "-o", help="The format of the output.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="The time limit for a response.")
]
SwitchoverTimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="The time limit.")
]


def exit_with(action: Callable[[], int]) -> None:
    """Runs an action and ends the command with its exit code. The reporter of errors prints what fails."""
    raise typer.Exit(exit_code_of(action))


ResultOption = Annotated[ResultFormat, typer.Option("--output", "-o", help="The format of the output.")]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="A profile of the file with profiles (docs/command.md)."),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print what the command would do, and change nothing.")
]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Do not ask; needed where the input is no terminal.")
]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Only the brokers of this cluster.")
]
BrokerOption = Annotated[
    list[str] | None,
    typer.Option("--broker", metavar="NAME", help="Only the brokers of this group. May be repeated."),
]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC")]
GroupArgument = Annotated[str, typer.Argument(metavar="GROUP")]


def on_cluster(verb: Callable[..., int]) -> Callable[..., None]:
    """Declares a verb that administers a cluster. Adds the options that select the cluster and the format of
    the output; the verb gets them as its first argument, a `ClusterVerb`, and returns the exit code."""
    hints = get_type_hints(verb, include_extras=True)
    first, *own = inspect.signature(verb).parameters.values()
    assert hints[first.name] is ClusterVerb
    common = inspect.signature(_common, eval_str=True).parameters.values()
    parameters = [*(one.replace(annotation=hints[one.name]) for one in own), *common]

    @functools.wraps(verb)
    def run(**given: Any) -> None:
        call = _common(**{one.name: given.pop(one.name) for one in common})
        exit_with(lambda: verb(call, **given))

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # typer reads it
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _common(
    state: OptionalStateOption = None,
    nameserver: NameserverOption = None,
    profile: ProfileOption = None,
    broker_group: BrokerGroupOption = None,
    output: ResultOption = ResultFormat.TABLE,
    timeout: TimeoutOption = 5,
) -> ClusterVerb:
    return ClusterVerb(NameserverTarget(state, nameserver, broker_group, profile), output, timeout)
