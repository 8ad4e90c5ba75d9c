"""Declares `user` and `acl`: the verbs for the users of access control, and for what they may do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epochmq.options import BrokerOption, ClusterOption, YesOption, on_cluster
from epochmq.verbs.cluster_calls import ClusterVerb

if TYPE_CHECKING:
    from epochmq.verbs.user import Selection

app = typer.Typer()
user_app = typer.Typer(
    help="Create, show, change and delete the users of access control.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
acl_app = typer.Typer(
    help="Create, show, change and delete what users may do.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(user_app, name="user")
app.add_typer(acl_app, name="acl")

UserArgument = Annotated[str, typer.Argument(metavar="USER")]
PasswordFileOption = Annotated[
    Path | None,
    typer.Option(
        "--password-file", metavar="FILE", help="A file with the password; '-' is the standard input."
    ),
]
TypeOption = Annotated[
    str | None,
    typer.Option("--type", metavar="TYPE", help="Normal, or Super, who may do everything. [new: Normal]"),
]
ResourceOption = Annotated[
    list[str],
    typer.Option(
        "--resource",
        metavar="RESOURCE",
        help="Topic:NAME, Topic:PREFIX*, Topic:*, the same of Group and Cluster, or '*'. May be repeated.",
    ),
]
ActionOption = Annotated[
    list[str],
    typer.Option(
        "--action",
        metavar="ACTION,…",
        help="Pub, Sub, Create, Update, Delete, Get, List or All. May be repeated.",
    ),
]
SourceIpOption = Annotated[
    list[str] | None,
    typer.Option(
        "--source-ip", metavar="IP,…", help="Only from these addresses, or 10.0.0.0/8. May be repeated."
    ),
]
DecisionOption = Annotated[
    str | None, typer.Option("--decision", metavar="allow|deny", help="What the entry does. [default: Allow]")
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="custom|default",
        help="The default policy decides where the custom one has no matching entry. [default: Custom]",
    ),
]


@user_app.command("list")
@on_cluster
def list_users(
    call: ClusterVerb,
    part: Annotated[
        str | None, typer.Option("--filter", metavar="TEXT", help="Only users with this text in the name.")
    ] = None,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
) -> int:
    """List users. Their passwords are not shown."""
    from epochmq.verbs import user as verb

    return verb.list_users(call, part, _selection(cluster, broker))


@user_app.command("create")
@on_cluster
def create_user(
    call: ClusterVerb,
    user: UserArgument,
    user_type: TypeOption = None,
    password_file: PasswordFileOption = None,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
) -> int:
    """Create a user on all brokers, or on those that --cluster or --broker names.

    The password is asked for; where the input is no terminal, it is the input. The exit code is 1 if the user
    exists."""
    from epochmq.verbs import user as verb

    return verb.create(call, user, user_type, password_file, _selection(cluster, broker))


@user_app.command("update")
@on_cluster
def update_user(
    call: ClusterVerb,
    user: UserArgument,
    user_type: TypeOption = None,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="enable|disable", help="A disabled user is rejected."),
    ] = None,
    new_password: Annotated[
        bool,
        typer.Option("--new-password", help="Ask for a new password; where the input is no terminal, it is."),
    ] = False,
    password_file: PasswordFileOption = None,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
) -> int:
    """Change what the options name; the rest of the user stays."""
    from epochmq.verbs import user as verb

    selection = _selection(cluster, broker)
    return verb.update(call, user, user_type, status, password_file, selection, asks_password=new_password)


@user_app.command("delete")
@on_cluster
def delete_user(
    call: ClusterVerb,
    user: UserArgument,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    yes: YesOption = False,
) -> int:
    """Delete a user with its ACL."""
    from epochmq.verbs import user as verb

    return verb.delete(call, user, _selection(cluster, broker), yes=yes)


@acl_app.command("list")
@on_cluster
def list_acls(
    call: ClusterVerb,
    user: Annotated[
        str | None, typer.Option("--user", metavar="TEXT", help="Only users with this text in the name.")
    ] = None,
    resource: Annotated[
        str | None, typer.Option("--resource", metavar="TEXT", help="Only resources with this text.")
    ] = None,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
) -> int:
    """List the entries of users' ACLs."""
    from epochmq.verbs import acl as verb

    return verb.list_acls(call, user, resource, _selection(cluster, broker))


@acl_app.command("create")
@on_cluster
def create_acl(
    call: ClusterVerb,
    user: UserArgument,
    resource: ResourceOption,
    action: ActionOption,
    source_ip: SourceIpOption = None,
    decision: DecisionOption = None,
    policy: PolicyOption = None,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
) -> int:
    """Add an entry for each resource to a user's ACL.

    The exit code is 1 if there is an entry for the resource."""
    from epochmq.verbs import acl as verb

    entries = verb.parse_entries(resource, action, source_ip or [], decision)
    return verb.put(call, user, policy, entries, _selection(cluster, broker), is_new=True)


@acl_app.command("update")
@on_cluster
def update_acl(
    call: ClusterVerb,
    user: UserArgument,
    resource: ResourceOption,
    action: ActionOption,
    source_ip: SourceIpOption = None,
    decision: DecisionOption = None,
    policy: PolicyOption = None,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
) -> int:
    """Replace the entry for each resource in a user's ACL."""
    from epochmq.verbs import acl as verb

    entries = verb.parse_entries(resource, action, source_ip or [], decision)
    return verb.put(call, user, policy, entries, _selection(cluster, broker), is_new=False)


@acl_app.command("delete")
@on_cluster
def delete_acl(
    call: ClusterVerb,
    user: UserArgument,
    resource: Annotated[
        str | None,
        typer.Option("--resource", metavar="RESOURCE", help="Only the entry for this. [default: the ACL]"),
    ] = None,
    policy: PolicyOption = None,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    yes: YesOption = False,
) -> int:
    """Delete the entry for a resource, or a user's whole ACL."""
    from epochmq.verbs import acl as verb

    return verb.delete(call, user, resource, policy, _selection(cluster, broker), yes=yes)


def _selection(cluster: str | None, broker: list[str] | None) -> Selection:
    from epochmq.verbs.user import Selection

    return Selection(cluster, broker or [])
