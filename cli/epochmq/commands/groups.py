"""Declares `group`: the verbs for consumer groups."""

from __future__ import annotations

from typing import Annotated

import typer

from epochmq.options import DryRunOption, GroupArgument, YesOption, on_cluster
from epochmq.verbs.cluster_calls import ClusterVerb, parse_queue

app = typer.Typer()
group_app = typer.Typer(
    help="Show, reset and delete consumer groups.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(group_app, name="group")


@group_app.command("list")
@on_cluster
def list_groups(
    call: ClusterVerb,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also the groups of brokers.")] = False,
) -> int:
    """List consumer groups, with their members and how far behind they are."""
    from epochmq.verbs import group as verb

    return verb.list_groups(call, everything=everything)


@group_app.command()
@on_cluster
def describe(call: ClusterVerb, group: GroupArgument) -> int:
    """Show the settings, the members, the subscriptions and the progress of a group."""
    from epochmq.verbs import group as verb

    return verb.describe(call, group)


@group_app.command()
@on_cluster
def lag(
    call: ClusterVerb,
    group: GroupArgument,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic. [default: all]")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again every 2 s, until Ctrl-C.")] = False,
) -> int:
    """Show for each queue how many messages the group has not consumed, and why."""
    from epochmq.verbs import group as verb

    return verb.lag(call, group, topic, watch=watch)


@group_app.command()
@on_cluster
def reset(
    call: ClusterVerb,
    group: GroupArgument,
    topic: Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic to reset.")],
    to: Annotated[
        str | None, typer.Option("--to", metavar="earliest|latest", help="An end of each queue.")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="TIME",
            help="The first message since then: 2030-01-31T14:00, 'yesterday 14:00', 15m, 3h, 2d.",
        ),
    ] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", metavar="N", min=0, help="This offset in each queue.")
    ] = None,
    delta: Annotated[
        int | None,
        typer.Option("--delta", metavar="N", help="So many messages forward; back if negative."),
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="BROKER:N", help="Only this queue. [default: all]")
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> int:
    """Set where a group continues to read a topic.

    Prints the present and the new offset of each queue first. Offsets beyond an end of the queue become that
    end. Members need not be stopped."""
    from epochmq.verbs import offset_reset as verb

    point = verb.parse_point(to, time, offset, delta)
    return verb.reset(call, group, topic, point, queue=parse_queue(queue), dry_run=dry_run, yes=yes)


@group_app.command()
@on_cluster
def delete(
    call: ClusterVerb,
    group: GroupArgument,
    keep_offsets: Annotated[
        bool, typer.Option("--keep-offsets", help="Keep where the group has read to.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Although the group has members.")] = False,
    yes: YesOption = False,
) -> int:
    """Delete a group with its offsets, retries and dead letters."""
    from epochmq.verbs import group as verb

    return verb.delete(call, group, keep_offsets=keep_offsets, force=force, yes=yes)
