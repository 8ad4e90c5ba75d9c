"""Declares `produce` and `consume`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epochmq.options import (
    BrokerGroupOption,
    NameserverOption,
    OptionalStateOption,
    OutputFormat,
    OutputOption,
    ProfileOption,
    TimeoutOption,
    exit_with,
)

app = typer.Typer()

PRIORITY_MAX = 2**31 - 1  # of a Java int


@app.command()
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    body: Annotated[
        str | None,
        typer.Argument(metavar="[BODY]", help="The message. Without it, each line of the input is one."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="The whole file is one message; '-' is the standard input."
        ),
    ] = None,
    tags: Annotated[
        str | None,
        typer.Option("--tags", "--tag", metavar="TAG", help="The tag, by which consumers filter."),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option("--keys", "--key", metavar="KEY", help="Keys for searches, separated by spaces."),
    ] = None,
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME=VALUE", help="A property. May be repeated."),
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="SPAN", help="Deliver later: 90s, 15m, 3h, 2d.")
    ] = None,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="Deliver at a time: 2030-01-31T14:00.")
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority", metavar="N", min=0, max=PRIORITY_MAX, help="The priority; a greater one goes first."
        ),
    ] = None,
    group: Annotated[str, typer.Option("--group", "-g", help="The producer group.")] = "epochmq_produce",
    state: OptionalStateOption = None,
    nameserver: NameserverOption = None,
    profile: ProfileOption = None,
    broker_group: BrokerGroupOption = None,
    output: OutputOption = OutputFormat.TEXT,
    timeout: TimeoutOption = 5,
) -> None:
    """Send messages to a topic.

    A missing topic is created if the brokers allow it (autoCreateTopicEnable)."""
    from epochmq.verbs import produce as verb
    from epochmq.verbs.cluster_calls import parse_future, parse_pairs, parse_span
    from epochmq.verbs.target import NameserverTarget

    target = NameserverTarget(state, nameserver, broker_group, profile)

    def action() -> int:
        sent = verb.content(
            tags,
            keys,
            parse_pairs("--property", properties or []),
            None if delay is None else parse_span("--delay", delay),
            None if at is None else parse_future("--at", at),
            priority,
        )
        return verb.run(
            target,
            topic,
            body,
            sent,
            file=file,
            group=group,
            as_json=output is OutputFormat.JSON,
            timeout_s=timeout,
        )

    exit_with(action)


@app.command()
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    count: Annotated[
        int | None, typer.Option("--count", "-c", metavar="N", min=1, help="Stop after N messages.")
    ] = None,
    group: Annotated[
        str, typer.Option("--group", "-g", help="The consumer group; its members share the queues.")
    ] = "epochmq_consume",
    tags: Annotated[
        str, typer.Option("--tags", help="Only messages with these tags: 'a || b'; '*' means all.")
    ] = "*",
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0.1, help="Exit with 1 if no message arrives in this time."
        ),
    ] = None,
    state: OptionalStateOption = None,
    nameserver: NameserverOption = None,
    profile: ProfileOption = None,
    broker_group: BrokerGroupOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Print the messages of a topic.

    Prints messages as they arrive, until Ctrl-C. A consumer group that has not read the topic before starts
    at its beginning; others continue at their offsets."""
    from epochmq.verbs import consume as verb
    from epochmq.verbs.target import NameserverTarget

    target = NameserverTarget(state, nameserver, broker_group, profile)
    exit_with(
        lambda: verb.run(
            target,
            topic,
            group=group,
            tags=tags,
            count=count,
            as_json=output is OutputFormat.JSON,
            timeout_s=timeout,
        )
    )
