"""Declares the verbs of a run: `up`, `down`, `status`, `restart`, `logs`, `promote`, `fence`, `drain`
and `support-bundle`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from epochmq.options import (
    STATE_DEFAULT,
    ContextOption,
    DryRunOption,
    KubeconfigOption,
    NamespaceOption,
    OutputFormat,
    OutputOption,
    StateOption,
    StatusFormat,
    SwitchoverTimeoutOption,
    exit_with,
)

app = typer.Typer()


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
    dry_run: DryRunOption = False,
) -> None:
    """Run resources on this machine.

    They run until Ctrl-C or, with --detach, until `epochmq down`. If they run already, `up` prints what has
    changed in the files and restarts the pods that this affects."""
    from epochmq.verbs import up as verb

    if dry_run:
        exit_with(lambda: verb.plan(files, state))
    exit_with(lambda: verb.run(files, state, detach=detach, timeout_s=timeout, admin=admin))


@app.command()
def validate(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Files with resources; '-' is the standard input."),
    ],
) -> None:
    """Check files with resources, and run nothing.

    The exit code is 2 if `up` would reject one."""
    from epochmq.verbs import up as verb

    exit_with(lambda: verb.validate(files))


@app.command()
def down(
    group: Annotated[
        str | None, typer.Argument(metavar="[GROUP]", help="Only this group; the others continue.")
    ] = None,
    state: StateOption = STATE_DEFAULT,
) -> None:
    """Stop what `up` started, or one group of it.

    Stops brokers first, then controllers, then nameservers. Their data is kept."""
    from epochmq.verbs import up as verb

    exit_with(lambda: verb.stop(state) if group is None else verb.stop_group(state, group))


@app.command()
def restart(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[GROUP[/REPLICA]]", help="For example orders, or orders/0. [default: all]"),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=1, help="The time limit for each broker."),
    ] = 60,
    state: StateOption = STATE_DEFAULT,
) -> None:
    """Restart brokers of a run on this machine, one at a time.

    Each restarts only while its whole group is ready and in sync. The master restarts last, after another
    replica has become the master, so that no send fails. The first broker that does not come back ends it."""
    from epochmq.verbs import restart as verb

    exit_with(lambda: verb.run(state, name, timeout))


@app.command()
def logs(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[GROUP[/REPLICA]]", help="For example orders, or orders/0. [default: all]"),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new lines until Ctrl-C.")
    ] = False,
    lines: Annotated[
        int,
        typer.Option(
            "--lines", "-n", metavar="N", min=0, max=100_000, help="How many last lines of each log."
        ),
    ] = 20,
    state: StateOption = STATE_DEFAULT,
) -> None:
    """Print the logs of pods of a run on this machine.

    With several pods each line begins with the name of its pod. The exit code is 3 if no pod has run."""
    from epochmq.verbs import logs as verb

    def write(line: bytes) -> None:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()

    exit_with(lambda: verb.run(state, name, lines=lines, follow=follow, write=write))


@app.command()
def status(
    state: StateOption = STATE_DEFAULT,
    output: Annotated[
        StatusFormat, typer.Option("--output", "-o", help="The format of the output.")
    ] = StatusFormat.TEXT,
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
    exit_with(lambda: verb.run(state, cluster, output.result))


ReplicaArgument = Annotated[
    str,
    typer.Argument(
        metavar="GROUP/REPLICA", help="For example orders/0 or orders/orders-broker-0, as `status` shows it."
    ),
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
    exit_with(lambda: verb.promote(state, cluster, replica, timeout, as_json=output is OutputFormat.JSON))


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
    exit_with(lambda: verb.fence(state, cluster, replica, on=not off, as_json=output is OutputFormat.JSON))


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
    exit_with(
        lambda: verb.drain(state, cluster, replica, timeout, on=not off, as_json=output is OutputFormat.JSON)
    )


@app.command("support-bundle")
def support_bundle(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.tar.gz", help="The archive to write; it must not exist.")
    ],
    state: StateOption = STATE_DEFAULT,
    lines: Annotated[
        int,
        typer.Option("--lines", metavar="N", min=1, max=100_000, help="How many last lines of each log."),
    ] = 2000,
) -> None:
    """Pack what helps to find a fault of a run on this machine, without secrets.

    Versions, resources, status, configurations, the last lines of logs, and the metrics of sidecars."""
    from epochmq.verbs import support_bundle as verb

    exit_with(lambda: verb.run(file, state, lines=lines))
