"""Declares `console`: the pages that show a cluster in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epochmq.options import (
    BrokerGroupOption,
    NameserverOption,
    OptionalStateOption,
    ProfileOption,
    TimeoutOption,
    exit_with,
)
from epochmq.verbs.target import NameserverTarget

app = typer.Typer()


@app.command()
def console(
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where browsers reach the console.")
    ] = "127.0.0.1:9888",
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="Tokens, one a line: browsers ask for one. Needed to listen at another than a loopback "
            "address.",
        ),
    ] = None,
    allow_changes: Annotated[
        bool,
        typer.Option(
            "--allow-changes",
            help="Also create topics, reset consumer groups, resend dead letters, promote replicas and set "
            "passwords. Needs --token-file.",
        ),
    ] = False,
    state: OptionalStateOption = None,
    nameserver: NameserverOption = None,
    profile: ProfileOption = None,
    broker_group: BrokerGroupOption = None,
    timeout: TimeoutOption = 5,
) -> None:
    """Show a cluster in a browser: groups, brokers, topics, messages, consumer groups, users, audits.

    It runs until Ctrl-C. Without --allow-changes it changes nothing."""
    from epochmq.console import listener

    target = NameserverTarget(state, nameserver, broker_group, profile)
    exit_with(lambda: listener.run(target, listen, token_file, timeout, allows_changes=allow_changes))
