"""Declares `message` and `dlq`: the verbs for messages that a cluster stores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from epochmq.options import GroupArgument, TopicArgument, YesOption, on_cluster
from epochmq.verbs.cluster_calls import ClusterVerb, parse_queue, parse_time
from epochmq_protocol.topics import RMQ_SYS_TRACE_TOPIC

if TYPE_CHECKING:
    from epochmq.verbs.message import MessageRange

app = typer.Typer()
message_app = typer.Typer(
    help="Look at stored messages, and send them again. No verb commits an offset.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
dlq_app = typer.Typer(help="Show and resend dead letters.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(message_app, name="message")
app.add_typer(dlq_app, name="dlq")

IdArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help="The id that `produce` prints, or the offset id of a broker."),
]
TopicOfIdOption = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", help="The topic; needed for the id of a producer."),
]
QueueOption = Annotated[
    str | None, typer.Option("--queue", metavar="BROKER:N", help="Only this queue. [default: all]")
]
OffsetOption = Annotated[
    int | None, typer.Option("--offset", metavar="N", min=0, help="From this offset of each queue on.")
]
TimeOption = Annotated[
    str | None,
    typer.Option("--time", metavar="TIME", help="From this time on: 2030-01-31T14:00, 15m, 3h, 2d."),
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Until before this time.")]
TagOption = Annotated[
    str | None, typer.Option("--tag", metavar="EXPRESSION", help="Only messages with these tags: 'a || b'.")
]
SqlOption = Annotated[
    str | None,
    typer.Option("--sql", metavar="SQL92", help="Only messages that fit (enablePropertyFilter)."),
]


def _range(
    queue: str | None,
    offset: int | None,
    time: str | None,
    until: str | None,
    tag: str | None,
    sql: str | None,
) -> MessageRange:
    from epochmq.verbs.message import MessageRange, message_filter

    return MessageRange(
        parse_queue(queue),
        offset,
        None if time is None else parse_time("--time", time),
        None if until is None else parse_time("--until", until),
        message_filter(tag, sql),
    )


@message_app.command()
@on_cluster
def peek(
    call: ClusterVerb,
    topic: TopicArgument,
    count: Annotated[
        int, typer.Option("--count", "-c", metavar="N", min=1, max=10_000, help="At most N messages.")
    ] = 10,
    queue: QueueOption = None,
    offset: OffsetOption = None,
    time: TimeOption = None,
    until: UntilOption = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Only messages with this key.")
    ] = None,
    tag: TagOption = None,
    sql: SqlOption = None,
) -> int:
    """Show messages of a topic: the newest, or those from an offset or a time on, or those with a key."""
    from epochmq.verbs import message as verb

    return verb.peek(call, topic, _range(queue, offset, time, until, tag, sql), key=key, count=count)


@message_app.command()
@on_cluster
def get(
    call: ClusterVerb,
    message_id: IdArgument,
    topic: TopicOfIdOption = None,
    raw: Annotated[bool, typer.Option("--raw", help="Only the body, unchanged.")] = False,
) -> int:
    """Show one message, by its id."""
    from epochmq.verbs import message as verb

    return verb.get(call, message_id, topic, raw=raw)


@message_app.command()
@on_cluster
def export(
    call: ClusterVerb,
    topic: TopicArgument,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="A new file. [default: the output]")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-c", metavar="N", min=1, help="At most N messages.")
    ] = None,
    queue: QueueOption = None,
    offset: OffsetOption = None,
    time: TimeOption = None,
    until: UntilOption = None,
    tag: TagOption = None,
    sql: SqlOption = None,
) -> int:
    """Write messages of a topic as JSON lines."""
    from epochmq.verbs import message as verb

    return verb.export(call, topic, _range(queue, offset, time, until, tag, sql), file=file, count=count)


@message_app.command()
@on_cluster
def resend(
    call: ClusterVerb,
    message_id: IdArgument,
    topic: TopicOfIdOption = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TOPIC", help="The topic to send to. [default: its own]")
    ] = None,
    yes: YesOption = False,
) -> int:
    """Send a stored message again."""
    from epochmq.verbs import message as verb

    return verb.resend(call, message_id, topic, to=to, yes=yes)


@message_app.command()
@on_cluster
def trace(
    call: ClusterVerb,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The id that its producer gave it.")],
    trace_topic: Annotated[
        str, typer.Option("--trace-topic", metavar="TOPIC", help="Where clients write traces.")
    ] = RMQ_SYS_TRACE_TOPIC,
) -> int:
    """Show what clients have traced of a message: its send and its deliveries."""
    from epochmq.verbs import message_trace as verb

    return verb.trace(call, message_id, trace_topic)


CountOption = Annotated[
    int, typer.Option("--count", "-c", metavar="N", min=1, max=10_000, help="The newest N dead letters.")
]


@dlq_app.command("list")
@on_cluster
def list_dead_letters(
    call: ClusterVerb,
    group: Annotated[str | None, typer.Argument(metavar="[GROUP]", help="Show its dead letters.")] = None,
    count: CountOption = 10,
) -> int:
    """List the groups that have dead letters, or the newest dead letters of one group."""
    from epochmq.verbs import dead_letters as verb

    return verb.list_dead_letters(call, group, count=count)


@dlq_app.command("resend")
@on_cluster
def resend_dead_letters(
    call: ClusterVerb,
    group: GroupArgument,
    message_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Only this dead letter.")
    ] = None,
    count: CountOption = 100,
    to_topic: Annotated[
        bool, typer.Option("--to-topic", help="To the topic that they came from, for all its groups.")
    ] = False,
    yes: YesOption = False,
) -> int:
    """Give dead letters to their group again. They also stay where they are."""
    from epochmq.verbs import dead_letters as verb

    return verb.resend(call, group, message_id=message_id, count=count, to_topic=to_topic, yes=yes)
