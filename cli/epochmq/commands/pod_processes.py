"""Declares the processes of pods, for `--help` only: `epochmq.processes` runs them."""

from __future__ import annotations

from typing import Annotated

import typer

from epochmq.commands.broker_settings import describe_broker, list_brokers, list_controllers

app = typer.Typer()


ConfigOption = Annotated[
    str | None, typer.Option("--config", "-c", metavar="FILE", help="The configuration file.")
]
OverridesOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A configuration key; overrides the file."),
]


@app.command()
def nameserver(config: ConfigOption = None, overrides: OverridesOption = None) -> None:
    """Run a nameserver."""
    raise AssertionError("main() starts it before this module is imported")


controller_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
app.add_typer(controller_app, name="controller")
controller_app.command("list")(list_controllers)


@controller_app.callback()
def controller(config: ConfigOption = None, overrides: OverridesOption = None) -> None:
    """Run a controller; or, with `list`, show the controllers of a quorum, and their groups."""


broker_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
app.add_typer(broker_app, name="broker")
broker_app.command("list")(list_brokers)
broker_app.command("describe")(describe_broker)


@broker_app.callback()
def broker(config: ConfigOption = None, overrides: OverridesOption = None) -> None:
    """Run a broker; or, with `list` or `describe`, show the brokers of a cluster."""


@app.command()
def operator(config: ConfigOption = None, overrides: OverridesOption = None) -> None:
    """Run the operator, which manages groups on Kubernetes."""
    raise AssertionError("main() starts it before this module is imported")


@app.command()
def admin(config: ConfigOption = None, overrides: OverridesOption = None) -> None:
    """Run the admin sidecar of a broker, controller or nameserver."""
    raise AssertionError("main() starts it before this module is imported")


@app.command("admin-call")
def admin_call() -> None:
    """Call a process on this machine over its admin socket."""
    raise AssertionError("main() starts it before this module is imported")
