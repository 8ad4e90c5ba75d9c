"""The command `epochmq`: collects the verbs that `commands` declares, and runs a command line.

What the verbs do is in `verbs/` and is imported on use. `main` starts the processes, such as `broker`,
itself: these verbs are declared for `--help` only."""

from __future__ import annotations

import logging
import os
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from epochmq.bad_values import bad_value_text
from epochmq.commands import (
    access,
    audits,
    backups,
    broker_settings,
    clients,
    groups,
    local_run,
    measurements,
    messages,
    pod_processes,
    repairs,
    stored_messages,
    topics,
    web_console,
)

COMPLETE_VARIABLE = "_EPOCHMQ_COMPLETE"
"""The shell's completion function sets it."""


class _EpochmqGroup(TyperGroup):
    """The root command. It says what is wrong with the value of an option in words of its own, in place of
    those of the libraries that convert it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = bad_value_text(error)
            raise


app = typer.Typer(
    name="epochmq",
    cls=_EpochmqGroup,
    help="Run RocketMQ broker groups and controllers, show their state, and send and receive messages.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for family in (
    local_run,
    topics,
    groups,
    clients,
    stored_messages,
    broker_settings,
    access,
    messages,
    measurements,
    repairs,
    audits,
    backups,
    web_console,
    pod_processes,
):
    app.registered_commands += family.app.registered_commands
    app.registered_groups += family.app.registered_groups


def run(arguments: list[str]) -> int:
    """Runs the command line; returns the exit code. Log records of libraries are for processes: what a person
    has to know is in the error."""
    logging.getLogger().addHandler(logging.NullHandler())
    if COMPLETE_VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined] # not in its __all__

        completion_init()
    try:
        app(arguments, prog_name="epochmq")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Run RocketMQ broker groups and controllers, show their state, and send and receive messages."""


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as version_of

    typer.echo(version_of("epochmq"))


class Shell(StrEnum):
    """The shells that complete the command."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish")]) -> None:
    """Print the script with which a shell completes verbs and options.

    For bash: `source <(epochmq completion bash)`."""
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="epochmq", complete_var=COMPLETE_VARIABLE, shell=shell.value))
