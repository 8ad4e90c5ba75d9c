"""Declares the verbs that measure: `top` and `bench`."""

from __future__ import annotations

from typing import Annotated

import typer

from epochmq.options import TopicArgument, on_cluster
from epochmq.verbs.cluster_calls import ClusterVerb

app = typer.Typer()
bench_app = typer.Typer(help="Measure rates and latencies.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(bench_app, name="bench")
DurationOption = Annotated[
    float | None,
    typer.Option(
        "--duration", metavar="SECONDS", min=0.1, help="For so long. [default: 10, without --count]"
    ),
]
CountOption = Annotated[
    int | None, typer.Option("--count", "-c", metavar="N", min=1, help="Until there were N messages.")
]


@app.command()
@on_cluster
def top(
    call: ClusterVerb,
    once: Annotated[bool, typer.Option("--once", help="Print it once, and end.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.5, help="The time between two looks.")
    ] = 2,
) -> int:
    """Watch brokers and consumer groups: roles, rates in and out, lags.

    It is live on a terminal, until Ctrl-C. Elsewhere, and with -o json, yaml or name, it prints once."""
    from epochmq.verbs import top as verb

    return verb.run(call, once=once, interval_s=interval)


@bench_app.command()
@on_cluster
def produce(
    call: ClusterVerb,
    topic: TopicArgument,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="N", help="Messages a second. [default: as many as are acknowledged]"),
    ] = None,
    size: Annotated[int, typer.Option("--size", metavar="BYTES", help="The size of each body.")] = 1024,
    in_flight: Annotated[
        int,
        typer.Option("--in-flight", metavar="N", help="How many sends wait for acknowledgements at a time."),
    ] = 32,
    duration: DurationOption = None,
    count: CountOption = None,
) -> int:
    """Send messages, and print how many were acknowledged a second, and how long that took.

    The messages stay in the topic: use one of its own."""
    from epochmq.verbs import bench as verb

    ends = verb.limits(duration, count)
    return verb.produce(call, topic, size_bytes=size, rate=rate, in_flight=in_flight, ends=ends)


@bench_app.command()
@on_cluster
def consume(
    call: ClusterVerb,
    topic: TopicArgument,
    group: Annotated[str, typer.Option("--group", "-g", help="The consumer group.")] = "epochmq_bench",
    duration: DurationOption = None,
    count: CountOption = None,
) -> int:
    """Consume messages, and print how many came a second, and how long after their birth.

    The latency compares the clocks of two machines if the producer runs on another one."""
    from epochmq.verbs import bench as verb

    return verb.consume(call, topic, group=group, ends=verb.limits(duration, count))
