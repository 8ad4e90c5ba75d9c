"""Declares the verbs of `epochmq` and their options, and runs the interactive ones.

Their implementations are in `verbs/` and are imported on use. `main` starts the processes, such as `broker`,
itself: these verbs are declared for `--help` only."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from epochmq.exits import exit_code_of

app = typer.Typer(
    name="epochmq",
    help="Run RocketMQ broker groups and controllers, show their state, and send and receive messages.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

STATE_DEFAULT = Path(".epochmq")


class OutputFormat(StrEnum):
    """The format of the output."""

    TEXT = "text"
    TABLE = "table"
    JSON = "json"


NamespaceOption = Annotated[
    str | None,
    typer.Option("--namespace", "-N", metavar="NAME", help="On Kubernetes: the namespace of the groups."),
]
ContextOption = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="On Kubernetes: the context in the kubeconfig."),
]
KubeconfigOption = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig", metavar="FILE", help="On Kubernetes: the kubeconfig to use, instead of kubectl's."
    ),
]
StateOption = Annotated[
    Path,
    typer.Option(
        "--state", metavar="DIR", help="The state directory: configuration, processes and data of the run."
    ),
]
OptionalStateOption = Annotated[
    Path | None,
    typer.Option(
        "--state", metavar="DIR", help="The state directory of the run to connect to. [default: .epochmq]"
    ),
]
NameserverOption = Annotated[
    str | None,
    typer.Option(
        "--nameserver",
        "-n",
        metavar="ADDR",
        help="Nameservers to connect to instead: host:port, separated by ';'.",
    ),
]
BrokerGroupOption = Annotated[
    str | None,
    typer.Option(
        "--broker-group", metavar="NAME", help="The group whose nameservers to use, if the run has several."
    ),
]
OutputOption = Annotated[OutputFormat, typer.Option("--output", "-o", help="The format of the output.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="The time limit for a response.")
]


def run(arguments: list[str]) -> int:
    """Runs the command line; returns the exit code."""
    try:
        app(arguments, prog_name="epochmq")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _exit_with(action: Callable[[], int]) -> None:
    raise typer.Exit(exit_code_of(action))


@app.command()
def up(
    files: Annotated[
        list[Path],
        typer.Option(
            "--file", "-f", metavar="FILE", help="A file with resources; '-' is the standard input."
        ),
    ],
    state: StateOption = STATE_DEFAULT,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when all pods are ready; they continue to run.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=1, help="The time limit until all pods are ready."),
    ] = 60,
    admin: Annotated[
        bool, typer.Option("--admin", help="Start an admin sidecar (HTTP, port 9880) with every pod.")
    ] = False,
) -> None:
    """Run resources on this machine.

    They run until Ctrl-C or, with --detach, until `epochmq down`. If they run already, `up` prints what has
    changed in the files and restarts the pods that this affects."""
    from epochmq.verbs import up as verb

    _exit_with(lambda: verb.run(files, state, detach=detach, timeout_s=timeout, admin=admin))


@app.command()
def down(state: StateOption = STATE_DEFAULT) -> None:
    """Stop what `up` started.

    Stops brokers first, then controllers, then nameservers. Their data is kept."""
    from epochmq.verbs import up as verb

    _exit_with(lambda: verb.stop(state))


@app.command()
def status(
    state: StateOption = STATE_DEFAULT,
    output: OutputOption = OutputFormat.TEXT,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
) -> None:
    """Show the pods that run, and their present state.

    On this machine or, with --namespace, --context or --kubeconfig, on a Kubernetes cluster. The exit code is
    3 if nothing runs."""
    from epochmq.verbs import status as verb
    from epochmq.verbs.target import KubernetesTarget

    cluster = KubernetesTarget.from_options(namespace, context, kubeconfig)
    _exit_with(lambda: verb.run(state, cluster, as_json=output is OutputFormat.JSON))


ReplicaArgument = Annotated[
    str,
    typer.Argument(
        metavar="GROUP/REPLICA", help="For example orders/0 or orders/orders-broker-0, as `status` shows it."
    ),
]
SwitchoverTimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="The time limit.")
]
OffOption = Annotated[bool, typer.Option("--off", help="Undo it.")]


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

    The replica first catches up completely. Sends wait for a moment during the switchover; none fails."""
    from epochmq.verbs import promote_fence_drain as verb
    from epochmq.verbs.target import KubernetesTarget

    cluster = KubernetesTarget.from_options(namespace, context, kubeconfig)
    _exit_with(lambda: verb.promote(state, cluster, replica, timeout, as_json=output is OutputFormat.JSON))


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
    """Make a replica reject messages.

    It does so until --off, also after a restart, and keeps its role. While a master is fenced, the whole
    group accepts no messages."""
    from epochmq.verbs import promote_fence_drain as verb
    from epochmq.verbs.target import KubernetesTarget

    cluster = KubernetesTarget.from_options(namespace, context, kubeconfig)
    _exit_with(lambda: verb.fence(state, cluster, replica, on=not off, as_json=output is OutputFormat.JSON))


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
    """Prepare a replica for removal.

    If it is the master, another replica becomes master. Then it leaves the SyncStateSet until --off and only
    copies the log."""
    from epochmq.verbs import promote_fence_drain as verb
    from epochmq.verbs.target import KubernetesTarget

    cluster = KubernetesTarget.from_options(namespace, context, kubeconfig)
    _exit_with(
        lambda: verb.drain(state, cluster, replica, timeout, on=not off, as_json=output is OutputFormat.JSON)
    )


replica_app = typer.Typer(
    help="Decide about a replica whose store the controllers refuse.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(replica_app, name="replica")
RefusedStoreArgument = Annotated[
    str, typer.Argument(metavar="GROUP/ID", help="The group and the broker id that `status` names.")
]
PodOption = Annotated[
    str | None, typer.Option("--pod", metavar="POD", help="The pod, if several claim the broker id.")
]


@replica_app.command("adopt")
def adopt_store(
    replica: RefusedStoreArgument,
    pod: PodOption = None,
    state: StateOption = STATE_DEFAULT,
    timeout: SwitchoverTimeoutOption = 15,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Accept a refused store for its broker id.

    The store may lack acknowledged messages. It must catch up with the master before it may be elected."""
    from epochmq.verbs import refused_store as verb

    _exit_with(
        lambda: verb.settle(state, replica, pod, timeout, adopt=True, as_json=output is OutputFormat.JSON)
    )


@replica_app.command("discard")
def discard_store(
    replica: RefusedStoreArgument,
    pod: PodOption = None,
    state: StateOption = STATE_DEFAULT,
    timeout: SwitchoverTimeoutOption = 15,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Take the broker id from a refused store.

    The pod gets another broker id, and joins the group as a new replica."""
    from epochmq.verbs import refused_store as verb

    _exit_with(
        lambda: verb.settle(state, replica, pod, timeout, adopt=False, as_json=output is OutputFormat.JSON)
    )


controllers_app = typer.Typer(
    help="Restore what the controllers have lost.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(controllers_app, name="controllers")


@controllers_app.command("adopt")
def adopt_groups(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the command would do, and change nothing.")
    ] = False,
    accept_missing: Annotated[
        bool,
        typer.Option(
            "--accept-missing",
            help="Rebuild a group although a broker that may have more messages is missing.",
        ),
    ] = False,
    controller: Annotated[
        list[str] | None,
        typer.Option("--controller", metavar="ADDR", help="Without a run: a controller. May be repeated."),
    ] = None,
    broker: Annotated[
        list[str] | None,
        typer.Option(
            "--broker", metavar="ADDR", help="Without a run: every broker of the group. May be repeated."
        ),
    ] = None,
    state: StateOption = STATE_DEFAULT,
    timeout: SwitchoverTimeoutOption = 30,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Rebuild groups after all controllers have lost their storage.

    Asks the brokers for their ids, epochs and logs. The replica with the newest log becomes the master. No
    message is changed."""
    from epochmq.verbs import adopt_groups as verb

    _exit_with(
        lambda: verb.run(
            state,
            controller or [],
            broker or [],
            timeout,
            dry_run=dry_run,
            accept_missing=accept_missing,
            as_json=output is OutputFormat.JSON,
        )
    )


@app.command()
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    body: Annotated[
        str | None,
        typer.Argument(metavar="[BODY]", help="The message. Without it, each line of the input is one."),
    ] = None,
    tags: Annotated[
        str | None, typer.Option("--tags", help="The tag of the messages, by which consumers filter.")
    ] = None,
    keys: Annotated[
        str | None, typer.Option("--keys", help="The keys of the messages for searches, separated by spaces.")
    ] = None,
    group: Annotated[str, typer.Option("--group", "-g", help="The producer group.")] = "epochmq_produce",
    state: OptionalStateOption = None,
    nameserver: NameserverOption = None,
    broker_group: BrokerGroupOption = None,
    output: OutputOption = OutputFormat.TEXT,
    timeout: TimeoutOption = 5,
) -> None:
    """Send messages to a topic.

    A missing topic is created if the brokers allow it (autoCreateTopicEnable)."""
    from epochmq.verbs import produce as verb
    from epochmq.verbs.target import NameserverTarget

    target = NameserverTarget(state, nameserver, broker_group)
    _exit_with(
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
    broker_group: BrokerGroupOption = None,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Print the messages of a topic.

    Prints messages as they arrive, until Ctrl-C. A consumer group that has not read the topic before starts
    at its beginning; others continue at their offsets."""
    from epochmq.verbs import consume as verb
    from epochmq.verbs.target import NameserverTarget

    target = NameserverTarget(state, nameserver, broker_group)
    _exit_with(
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
    directories: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR|GROUP",
            help="The store of a replica; NAME=DIR names the replica. Or a broker group of `epochmq up`.",
        ),
    ],
    group: Annotated[
        str | None, typer.Option("--group", help="The name of the group. [default: from the stores]")
    ] = None,
    metadata: Annotated[
        Path | None,
        typer.Option("--metadata", metavar="FILE", help="The controllers' view, from `status -o json`."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The folder for the results. [default: STATE/audits/TIME]"),
    ] = None,
    cores: Annotated[
        int | None, typer.Option("--cores", metavar="N", min=1, help="CPU cores for Spark. [default: all]")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="URL", help="Your own Spark, as for spark-submit. [default: here]"),
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="Spark configuration; may be repeated."),
    ] = None,
    state: StateOption = STATE_DEFAULT,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Check the stores of a group's replicas for damage and contradictions.

    The directories must not be in use. A group that runs on this machine is named instead; it keeps serving.
    The exit code is 0 if they are healthy, 4 if there is an error, 5 if something could not be checked."""
    from epochmq.verbs import audit as verb

    _exit_with(
        lambda: verb.run(
            directories,
            state,
            group=group,
            out=out,
            cores=cores,
            metadata=metadata,
            master=master,
            conf=conf or [],
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
    """Print the path of the last audit's report.

    With --namespace, --context or --kubeconfig it prints the last verdict of each audit on a Kubernetes
    cluster. The exit code is 3 if there is none."""
    from epochmq.verbs import audit as verb
    from epochmq.verbs.target import KubernetesTarget

    cluster = KubernetesTarget.from_options(namespace, context, kubeconfig)
    _exit_with(lambda: verb.report(state) if cluster is None else verb.report_of_cluster(cluster))


@app.command("upgrade-log")
def upgrade_log(
    configs: Annotated[
        list[Path],
        typer.Argument(
            metavar="CONFIG",
            help="The broker.conf with enableDLegerCommitLog=true; several for the brokers of one group.",
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the command would do, and change nothing.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Make the directory that of a plain broker again.")
    ] = False,
) -> None:
    """Make the plain commit log of a stopped broker the old part of a DLedger log.

    The command can be interrupted and repeated. --undo is possible until a broker has stored the first entry
    in the DLedger log."""
    from epochmq.verbs import upgrade_log as verb

    _exit_with(lambda: verb.run(configs, dry_run=dry_run, undo=undo))


ConfigOption = Annotated[
    str | None, typer.Option("--config", "-c", metavar="FILE", help="The configuration file.")
]
OverridesOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A configuration key; overrides the file."),
]


@app.command()
def nameserver(config: ConfigOption = None, overrides: OverridesOption = None) -> None:
    """Run a nameserver."""
    raise AssertionError("main() starts it before this module is imported")


@app.command()
def controller(config: ConfigOption = None, overrides: OverridesOption = None) -> None:
    """Run a controller."""
    raise AssertionError("main() starts it before this module is imported")


@app.command()
def broker(config: ConfigOption = None, overrides: OverridesOption = None) -> None:
    """Run a broker."""
    raise AssertionError("main() starts it before this module is imported")


@app.command()
def operator(config: ConfigOption = None, overrides: OverridesOption = None) -> None:
    """Run the operator, which manages groups on Kubernetes."""
    raise AssertionError("main() starts it before this module is imported")


@app.command()
def admin(config: ConfigOption = None, overrides: OverridesOption = None) -> None:
    """Run the admin sidecar of a broker, controller or nameserver."""
    raise AssertionError("main() starts it before this module is imported")


@app.command("admin-call")
def admin_call() -> None:
    """Call a process on this machine over its admin socket."""
    raise AssertionError("main() starts it before this module is imported")


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as version_of

    typer.echo(version_of("epochmq"))
