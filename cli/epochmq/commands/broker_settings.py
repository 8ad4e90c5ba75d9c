"""Declares `config`, `cluster`, and the verbs of `broker` and `controller` that show them."""

from __future__ import annotations

from typing import Annotated

import typer

from epochmq.options import BrokerOption, ClusterOption, DryRunOption, YesOption, on_cluster
from epochmq.verbs.cluster_calls import ClusterVerb, parse_pairs

app = typer.Typer()
config_app = typer.Typer(
    help="Show and change settings of running brokers.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(config_app, name="config")
cluster_app = typer.Typer(help="Show clusters.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(cluster_app, name="cluster")


@cluster_app.command("list")
@on_cluster
def list_clusters(call: ClusterVerb, cluster: ClusterOption = None) -> int:
    """List the clusters that the nameservers know: brokers, roles, versions, and messages per second."""
    from epochmq.verbs import cluster as verb

    return verb.list_clusters(call, cluster)


@on_cluster
def list_controllers(
    call: ClusterVerb,
    addresses: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ADDRESS]...", help="Controllers, HOST:PORT. [default: those of the brokers' settings]"
        ),
    ] = None,
) -> int:
    """List the members of a quorum of controllers, and the groups that it keeps.

    Which replicas are eligible or refused is shown for a run on this machine with `up --admin`."""
    from epochmq.verbs import controllers as verb

    return verb.list_controllers(call, addresses or [])


@on_cluster
def list_brokers(call: ClusterVerb) -> int:
    """List the brokers of a cluster."""
    from epochmq.verbs import broker_config as verb

    return verb.list_brokers(call)


@on_cluster
def describe_broker(
    call: ClusterVerb, broker: Annotated[str, typer.Argument(metavar="NAME", help="The broker group.")]
) -> int:
    """Show what the brokers of a group say of themselves."""
    from epochmq.verbs import broker_config as verb

    return verb.describe_broker(call, broker)


@config_app.command("get")
@on_cluster
def get(
    call: ClusterVerb,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="Only these settings. [default: all]")
    ] = None,
    broker: BrokerOption = None,
) -> int:
    """Show settings. Secrets are hidden."""
    from epochmq.verbs import broker_config as verb

    return verb.get(call, keys or [], broker or [])


@config_app.command("diff")
@on_cluster
def diff(call: ClusterVerb, broker: BrokerOption = None) -> int:
    """Show the settings that differ between brokers."""
    from epochmq.verbs import broker_config as verb

    return verb.diff(call, broker or [])


@config_app.command("set")
@on_cluster
def change(
    call: ClusterVerb,
    changes: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="The settings to change.")],
    broker: BrokerOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> int:
    """Change settings of running brokers.

    Prints the present and the new values first. A broker rejects keys that need a restart. A run of `up`, and
    the operator, write configuration files again from the resource: put lasting settings there."""
    from epochmq.verbs import broker_config as verb

    return verb.change(call, parse_pairs("KEY=VALUE", changes), broker or [], dry_run=dry_run, yes=yes)
