"""The interactive verbs and their options. What a verb does lies in `verbs/`, imported when it is called."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from epochmq.exits import exit_code_of

app = typer.Typer(
    name="epochmq",
    help="RocketMQ broker groups and controllers: run them on this machine, look at them, send and read.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

STATE_DEFAULT = Path(".epochmq")


class OutputFormat(StrEnum):
    """How results are printed."""

    TEXT = "text"
    TABLE = "table"
    JSON = "json"


NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-N", metavar="NAME", help="On a cluster: groups of this namespace."),
]
ContextOption = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="On a cluster: this context of the kubeconfig."),
]
KubeconfigOption = Annotated[
    str | None,
    typer.Option("--kubeconfig", metavar="FILE", help="On a cluster: this kubeconfig, not kubectl's."),
]
StateOption = Annotated[
    Path, typer.Option("--state", metavar="DIR", help="The directory that holds everything of this run.")
]
OptionalStateOption = Annotated[
    Path | None,
    typer.Option(
        "--state", metavar="DIR", help="The run to talk to, by its state directory. [default: .epochmq]"
    ),
]
NameserverOption = Annotated[
    str | None,
    typer.Option(
        "--nameserver",
        "-n",
        metavar="ADDR",
        help="Nameservers to ask instead, host:port, several with ';' between.",
    ),
]
BrokerGroupOption = Annotated[
    str | None,
    typer.Option(
        "--broker-group", metavar="NAME", help="Which group's nameservers, when the run has several."
    ),
]
OutputOption = Annotated[OutputFormat, typer.Option("--output", "-o", help="How results are printed.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long to wait for an answer.")
]


def run(arguments: list[str]) -> int:
    """Runs the command line; the exit code."""
    try:
        app(arguments, prog_name="epochmq")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _end(action: Callable[[], int]) -> None:
    raise typer.Exit(exit_code_of(action))


@app.command()
def up(
    files: Annotated[
        list[Path],
        typer.Option("--file", "-f", metavar="FILE", help="A file with resources; '-' reads the input."),
    ],
    state: StateOption = STATE_DEFAULT,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when all is ready; it goes on running.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=1, help="How long it may take to be ready.")
    ] = 60,
    admin: Annotated[
        bool, typer.Option("--admin", help="Put its admin sidecar (HTTP, port 9880) beside every pod.")
    ] = False,
) -> None:
    """Run resources on this machine.

    They run until Ctrl-C or, detached, `epochmq down`. A second `up` of the same files changes nothing; of
    changed ones, it says what differs and restarts the pods that differ."""
    from epochmq.verbs import up as verb

    _end(lambda: verb.run(files, state, detach=detach, timeout_s=timeout, admin=admin))


@app.command()
def down(state: StateOption = STATE_DEFAULT) -> None:
    """Stop what `up` started.

    Brokers first, then controllers, then nameservers. Their data stays."""
    from epochmq.verbs import down as verb

    _end(lambda: verb.run(state))


@app.command()
def status(
    state: StateOption = STATE_DEFAULT,
    output: OutputOption = OutputFormat.TEXT,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Show what runs, as it is now.

    On this machine; with --namespace, --context or --kubeconfig on a Kubernetes cluster. Ends with 3 when
    nothing does."""
    from epochmq.verbs import status as verb
    from epochmq.verbs.target import KubernetesTarget

    cluster = KubernetesTarget.of(namespace, context, kubeconfig)
    _end(lambda: verb.run(state, cluster, as_json=output is OutputFormat.JSON))


ReplicaArgument = Annotated[
    str,
    typer.Argument(
        metavar="GROUP/REPLICA", help="Such as orders/0, or orders/orders-broker-0; `status` shows them."
    ),
]
SwitchoverTimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long it may take.")
]
OffOption = Annotated[bool, typer.Option("--off", help="Take it back.")]


@app.command()
def promote(
    replica: ReplicaArgument,
    state: StateOption = STATE_DEFAULT,
    timeout: SwitchoverTimeoutOption = 15,
    output: OutputOption = OutputFormat.TEXT,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Make a replica the master.

    It catches up to the last byte first; sends wait for a moment, and none fails."""
    from epochmq.verbs import replica_control as verb
    from epochmq.verbs.target import KubernetesTarget

    cluster = KubernetesTarget.of(namespace, context, kubeconfig)
    _end(lambda: verb.promote(state, cluster, replica, timeout, as_json=output is OutputFormat.JSON))


@app.command()
def fence(
    replica: ReplicaArgument,
    off: OffOption = False,
    state: StateOption = STATE_DEFAULT,
    output: OutputOption = OutputFormat.TEXT,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Stop a replica from taking messages.

    Until `--off`, also after a restart. It keeps its role: of a master, the whole group takes none."""
    from epochmq.verbs import replica_control as verb
    from epochmq.verbs.target import KubernetesTarget

    cluster = KubernetesTarget.of(namespace, context, kubeconfig)
    _end(lambda: verb.fence(state, cluster, replica, on=not off, as_json=output is OutputFormat.JSON))


@app.command()
def drain(
    replica: ReplicaArgument,
    off: OffOption = False,
    state: StateOption = STATE_DEFAULT,
    timeout: SwitchoverTimeoutOption = 15,
    output: OutputOption = OutputFormat.TEXT,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Get a replica ready to be removed.

    A mastership goes to another; then it leaves the SyncStateSet, for good until `--off`, and only copies the
    log."""
    from epochmq.verbs import replica_control as verb
    from epochmq.verbs.target import KubernetesTarget

    cluster = KubernetesTarget.of(namespace, context, kubeconfig)
    _end(
        lambda: verb.drain(state, cluster, replica, timeout, on=not off, as_json=output is OutputFormat.JSON)
    )


@app.command()
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    body: Annotated[
        str | None, typer.Argument(metavar="[BODY]", help="The message; else one per line of the input.")
    ] = None,
    tags: Annotated[
        str | None, typer.Option("--tags", help="The messages' tag, by which consumers choose.")
    ] = None,
    keys: Annotated[
        str | None, typer.Option("--keys", help="The messages' keys, blanks between, to find them by.")
    ] = None,
    group: Annotated[str, typer.Option("--group", "-g", help="The producer group.")] = "epochmq_produce",
    state: OptionalStateOption = None,
    nameserver: NameserverOption = None,
    broker_group: BrokerGroupOption = None,
    output: OutputOption = OutputFormat.TEXT,
    timeout: TimeoutOption = 5,
) -> None:
    """Send messages to a topic.

    A topic that is not there is created, where brokers do that."""
    from epochmq.verbs import produce as verb
    from epochmq.verbs.target import NameserverTarget

    target = NameserverTarget(state, nameserver, broker_group)
    _end(
        lambda: verb.run(
            target,
            topic,
            body,
            tags=tags,
            keys=keys,
            group=group,
            as_json=output is OutputFormat.JSON,
            timeout_s=timeout,
        )
    )


@app.command()
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    count: Annotated[
        int | None, typer.Option("--count", "-c", metavar="N", min=1, help="End after so many messages.")
    ] = None,
    group: Annotated[
        str, typer.Option("--group", "-g", help="The consumer group; its members share the queues.")
    ] = "epochmq_consume",
    tags: Annotated[
        str, typer.Option("--tags", help="Only messages with these tags: 'a || b'; '*' is all.")
    ] = "*",
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0.1, help="End with 1 when nothing came for so long."
        ),
    ] = None,
    state: OptionalStateOption = None,
    nameserver: NameserverOption = None,
    broker_group: BrokerGroupOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Print a topic's messages.

    They are printed as they come, until Ctrl-C. A group that never read the topic starts at its beginning,
    another goes on where it left off."""
    from epochmq.verbs import consume as verb
    from epochmq.verbs.target import NameserverTarget

    target = NameserverTarget(state, nameserver, broker_group)
    _end(
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


@app.command()
def audit(
    places: Annotated[
        list[str],
        typer.Argument(metavar="DIR", help="Replicas' stores; NAME=DIR gives one a name."),
    ],
    group: Annotated[
        str | None, typer.Option("--group", help="The group's name, if not the stores'.")
    ] = None,
    metadata: Annotated[
        Path | None,
        typer.Option("--metadata", metavar="FILE", help="What the controllers know: `status -o json`."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where the results go. [default: STATE/audits/TIME]"),
    ] = None,
    cores: Annotated[int | None, typer.Option("--cores", metavar="N", min=1, help="How many to use.")] = None,
    state: StateOption = STATE_DEFAULT,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Prove, or disprove, that the replicas of a group tell the same story.

    Ends with 0 when they do, 4 when they do not, 5 when something could not be read."""
    from epochmq.verbs import audit as verb

    _end(
        lambda: verb.run(
            places,
            state,
            group=group,
            out=out,
            cores=cores,
            metadata=metadata,
            as_json=output is OutputFormat.JSON,
        )
    )


@app.command()
def report(
    state: StateOption = STATE_DEFAULT,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Print where the last audit's report is.

    On this machine; with --namespace, --context or --kubeconfig the last verdict of each audit of a
    Kubernetes cluster. Ends with 3 when there is none."""
    from epochmq.verbs import audit as verb
    from epochmq.verbs.target import KubernetesTarget

    cluster = KubernetesTarget.of(namespace, context, kubeconfig)
    _end(lambda: verb.report(state) if cluster is None else verb.report_of_cluster(cluster))


ConfigOption = Annotated[
    str | None, typer.Option("--config", "-c", metavar="FILE", help="Its configuration file.")
]
OverridesOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key that wins over the file.")
]


@app.command()
def nameserver(config: ConfigOption = None, overrides: OverridesOption = None) -> None:
    """What a nameserver pod runs."""
    raise AssertionError("main() starts it before this module is imported")


@app.command()
def controller(config: ConfigOption = None, overrides: OverridesOption = None) -> None:
    """What a controller pod runs."""
    raise AssertionError("main() starts it before this module is imported")


@app.command()
def broker(config: ConfigOption = None, overrides: OverridesOption = None) -> None:
    """What a broker pod runs."""
    raise AssertionError("main() starts it before this module is imported")


@app.command()
def operator(config: ConfigOption = None, overrides: OverridesOption = None) -> None:
    """What looks after groups on a Kubernetes cluster."""
    raise AssertionError("main() starts it before this module is imported")


@app.command()
def admin(config: ConfigOption = None, overrides: OverridesOption = None) -> None:
    """What stands beside a broker or controller in its pod."""
    raise AssertionError("main() starts it before this module is imported")


@app.command("admin-call")
def admin_call() -> None:
    """Ask a process on this machine over its local socket."""
    raise AssertionError("main() starts it before this module is imported")


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as version_of

    typer.echo(version_of("epochmq"))
