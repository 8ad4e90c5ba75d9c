"""Declares `client`: the verb that shows who is connected."""

from __future__ import annotations

from typing import Annotated

import typer

from epochmq.options import on_cluster
from epochmq.verbs.cluster_calls import ClusterVerb

app = typer.Typer()
client_app = typer.Typer(
    help="Show the producers and consumers that are connected.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(client_app, name="client")


@client_app.command("list")
@on_cluster
def list_clients(
    call: ClusterVerb,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="Only the members of this group.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also the clients of brokers.")] = False,
) -> int:
    """List the producers and consumers that are connected with the brokers."""
    from epochmq.verbs import client as verb

    return verb.list_clients(call, group, everything=everything)
