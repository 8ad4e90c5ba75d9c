"""Declares the verbs for what the controllers refuse or have lost: `replica` and `controllers`."""

from __future__ import annotations

from typing import Annotated

import typer

from epochmq.options import (
    STATE_DEFAULT,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    OutputFormat,
    OutputOption,
    StateOption,
    SwitchoverTimeoutOption,
    exit_with,
)

app = typer.Typer()


replica_app = typer.Typer(
    help="Decide about a replica whose store the controllers refuse, or whose volume is lost.",
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

    exit_with(
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

    exit_with(
        lambda: verb.settle(state, replica, pod, timeout, adopt=False, as_json=output is OutputFormat.JSON)
    )


@replica_app.command("replace")
def replace_lost_replica(
    replica: Annotated[
        str,
        typer.Argument(metavar="GROUP/REPLICA", help="A replica, by the name or the ordinal of its pod."),
    ],
    accept_fewer_copies: Annotated[
        bool,
        typer.Option(
            "--accept-fewer-copies",
            help="Also if fewer others have every message than an acknowledgement needs.",
        ),
    ] = False,
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    timeout: SwitchoverTimeoutOption = 120,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """On Kubernetes: give a replica a new volume whose node or volume is lost for good.

    Its pod gets an empty volume and another broker id, and copies the log. The former volume is deleted. The
    operator refuses that unless enough other replicas have every acknowledged message."""
    from epochmq.verbs import lost_replica as verb
    from epochmq.verbs.target import KubernetesTarget

    target = KubernetesTarget(namespace, context, kubeconfig)
    exit_with(
        lambda: verb.replace(
            target,
            replica,
            timeout,
            accepts_fewer=accept_fewer_copies,
            as_json=output is OutputFormat.JSON,
        )
    )


controllers_app = typer.Typer(
    help="Restore what the controllers, or one of them, have lost.",
    no_args_is_help=True,
    rich_markup_mode=None,
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

    exit_with(
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


@controllers_app.command("replace")
def replace_lost_controller(
    controller: Annotated[
        str,
        typer.Argument(
            metavar="GROUP/CONTROLLER",
            help="A controller of a ControllerGroup, by the name or the ordinal of its pod.",
        ),
    ],
    namespace: NamespaceOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    timeout: SwitchoverTimeoutOption = 120,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """On Kubernetes: give a controller a new volume whose node or volume is lost for good.

    Its pod gets an empty volume, copies the log, and has no vote before. The former volume is deleted. The
    operator refuses that unless a majority of the others has every committed entry."""
    from epochmq.verbs import lost_replica as verb
    from epochmq.verbs.target import KubernetesTarget

    target = KubernetesTarget(namespace, context, kubeconfig)
    exit_with(
        lambda: verb.replace_lost_controller(target, controller, timeout, as_json=output is OutputFormat.JSON)
    )
