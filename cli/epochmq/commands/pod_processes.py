"""Declares the processes of pods, for `--help` only: `epochmq.processes` runs them."""

from __future__ import annotations

from typing import Annotated

import typer

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


@app.command()
def controller(config: ConfigOption = None, overrides: OverridesOption = None) -> None:
    """Run a controller."""
    raise AssertionError("main() starts it before this module is imported")


@app.command()
def broker(config: ConfigOption = None, overrides: OverridesOption = None) -> None:
    """Run a broker."""
    raise AssertionError("main() starts it before this module is imported")


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
