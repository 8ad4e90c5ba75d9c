"""Declares `topic`: the verbs for topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from epochmq.options import (
    BrokerOption,
    ClusterOption,
    DryRunOption,
    TopicArgument,
    YesOption,
    on_cluster,
)
from epochmq.verbs.cluster_calls import ClusterVerb

if TYPE_CHECKING:
    from epochmq.verbs.topic import TopicChange

app = typer.Typer()
topic_app = typer.Typer(
    help="Create, show, change and delete topics.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(topic_app, name="topic")

QueuesOption = Annotated[
    int | None,
    typer.Option(
        "--queues", metavar="N", min=1, max=65535, help="Read and write queues on each broker. [new: 8]"
    ),
]
ReadQueuesOption = Annotated[
    int | None, typer.Option("--read-queues", metavar="N", min=1, max=65535, help="Only the read queues.")
]
WriteQueuesOption = Annotated[
    int | None, typer.Option("--write-queues", metavar="N", min=1, max=65535, help="Only the write queues.")
]
PermOption = Annotated[
    str | None, typer.Option("--perm", metavar="r|w|rw", help="What clients may do. [new: rw]")
]
OrderOption = Annotated[
    bool | None, typer.Option("--order/--no-order", help="A topic of globally ordered messages.")
]
AttributeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute",
        metavar="KEY=VALUE",
        help="For example message.type=FIFO or cleanup.policy=COMPACTION. May be repeated.",
    ),
]
TypeOption = Annotated[
    str | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY or MIXED: attribute message.type.",
    ),
]


@topic_app.command("list")
@on_cluster
def list_topics(
    call: ClusterVerb,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also system topics, and those for retries and dead letters.")
    ] = False,
) -> int:
    """List topics."""
    from epochmq.verbs import topic as verb

    return verb.list_topics(call, everything=everything)


@topic_app.command()
@on_cluster
def describe(
    call: ClusterVerb,
    topic: TopicArgument,
) -> int:
    """Show the settings and the queues of a topic."""
    from epochmq.verbs import topic as verb

    return verb.describe(call, topic)


@topic_app.command()
@on_cluster
def create(
    call: ClusterVerb,
    topic: TopicArgument,
    queues: QueuesOption = None,
    read_queues: ReadQueuesOption = None,
    write_queues: WriteQueuesOption = None,
    perm: PermOption = None,
    order: OrderOption = None,
    message_type: TypeOption = None,
    attribute: AttributeOption = None,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    dry_run: DryRunOption = False,
) -> int:
    """Create a topic on every broker group, or on those that --cluster or --broker names.

    The exit code is 1 if the topic exists."""
    from epochmq.verbs import topic as verb

    return verb.create(
        call,
        topic,
        _change(queues, read_queues, write_queues, perm, order, message_type, attribute, []),
        cluster=cluster,
        broker_names=broker or [],
        dry_run=dry_run,
    )


@topic_app.command()
@on_cluster
def alter(
    call: ClusterVerb,
    topic: TopicArgument,
    queues: QueuesOption = None,
    read_queues: ReadQueuesOption = None,
    write_queues: WriteQueuesOption = None,
    perm: PermOption = None,
    order: OrderOption = None,
    message_type: TypeOption = None,
    attribute: AttributeOption = None,
    remove_attribute: Annotated[
        list[str] | None,
        typer.Option("--remove-attribute", metavar="KEY", help="An attribute to remove. May be repeated."),
    ] = None,
    dry_run: DryRunOption = False,
) -> int:
    """Change the settings that the options name; the others stay."""
    from epochmq.verbs import topic as verb

    return verb.alter(
        call,
        topic,
        _change(
            queues,
            read_queues,
            write_queues,
            perm,
            order,
            message_type,
            attribute,
            remove_attribute or [],
        ),
        dry_run=dry_run,
    )


@topic_app.command()
@on_cluster
def delete(
    call: ClusterVerb,
    topic: TopicArgument,
    yes: YesOption = False,
) -> int:
    """Delete a topic with its messages."""
    from epochmq.verbs import topic as verb

    return verb.delete(call, topic, yes=yes)


def _change(
    queues: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: str | None,
    order: bool | None,
    message_type: str | None,
    attribute: list[str] | None,
    removed: list[str],
) -> TopicChange:
    from epochmq.verbs.cluster_calls import parse_pairs
    from epochmq.verbs.topic import TopicChange, parse_perm

    attributes: dict[str, str | None] = dict(parse_pairs("--attribute", attribute or []))
    attributes |= dict.fromkeys(removed)
    if message_type is not None:
        attributes["message.type"] = message_type.upper()
    return TopicChange(
        read_queues=read_queues if read_queues is not None else queues,
        write_queues=write_queues if write_queues is not None else queues,
        perm=parse_perm(perm),
        order=order,
        attributes=attributes,
    )
