"""Declares the verbs for stored files: `audit`, `report` and `upgrade-log`."""

from __future__ import annotations

from pathlib import Path
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
    exit_with,
)

app = typer.Typer()


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
    fix_plan: Annotated[
        bool,
        typer.Option(
            "--fix-plan", help="Print the commands that repair the findings, in their order, and run none."
        ),
    ] = False,
    state: StateOption = STATE_DEFAULT,
    output: OutputOption = OutputFormat.TEXT,
) -> None:
    """Check the stores of a group's replicas for damage and contradictions.

    The directories must not be in use. A group that runs on this machine is named instead; it keeps serving.
    The exit code is 0 if they are healthy, 4 if there is an error, 5 if something could not be checked."""
    from epochmq.verbs import audit as verb

    exit_with(
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
            fix_plan=fix_plan,
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
    exit_with(lambda: verb.report(state) if cluster is None else verb.report_of_cluster(cluster))


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

    exit_with(lambda: verb.run(configs, dry_run=dry_run, undo=undo))
