"""Declares the options that several verbs have, and runs what a verb does."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from epochmq.exits import exit_code_of

STATE_DEFAULT = Path(".epochmq")


class OutputFormat(StrEnum):
    """The format of the output."""

    TEXT = "text"
    TABLE = "table"
    JSON = "json"


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
