"""Declares the verbs for backups of a group's messages: `backup` and `restore`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from epochmq.options import STATE_DEFAULT, DryRunOption, ResultOption, StateOption, YesOption, exit_with
from epochmq.verbs.output import ResultFormat

app = typer.Typer()


class _BackupVerbs(TyperGroup):
    """The verbs of `backup`; what is none of them is the group for `create`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._with_verb(args))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        return super().resolve_command(ctx, self._with_verb(args))

    def _with_verb(self, args: list[str]) -> list[str]:
        return ["create", *args] if args and args[0] not in {*self.commands, "-h", "--help"} else args


backup_app = typer.Typer(
    cls=_BackupVerbs,
    help="Take, list, verify and delete backups. `backup GROUP` is `backup create GROUP`.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(backup_app, name="backup")
UrlArgument = Annotated[
    str, typer.Argument(metavar="URL", help="Where the backups are: a directory, or s3://BUCKET/PREFIX.")
]


@backup_app.command("create")
def create(
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="URL", help="Where to keep the backup: a directory, or s3://BUCKET/PREFIX."
        ),
    ],
    group: Annotated[
        str | None,
        typer.Argument(
            metavar="[GROUP]", help="A broker group of `epochmq up`. With --directory: its brokerName."
        ),
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--directory", metavar="STORE", help="Instead: the store of a stopped broker."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Write everything, also what an earlier backup has.")
    ] = False,
    state: StateOption = STATE_DEFAULT,
    output: ResultOption = ResultFormat.TABLE,
) -> None:
    """Take a backup of a broker group while it serves.

    Only what earlier backups at the URL lack is written."""
    from epochmq.verbs import backup as verb

    exit_with(lambda: verb.create(group, to, state, directory, full=full, output=output))


@backup_app.command("list")
def list_backups(url: UrlArgument, output: ResultOption = ResultFormat.TABLE) -> None:
    """List the backups, the oldest first.

    UPLOADED is what a backup has added; BYTES is the size of everything that it consists of."""
    from epochmq.verbs import backup as verb

    exit_with(lambda: verb.list_backups(url, output))


@backup_app.command("verify")
def verify(
    url: UrlArgument,
    backup: Annotated[
        str | None, typer.Option("--backup", metavar="ID", help="The backup. [default: the newest]")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Verify all backups.")] = False,
    output: ResultOption = ResultFormat.TABLE,
) -> None:
    """Read everything that a backup consists of, and compare it with the checksums.

    The exit code is 1 if something is missing or differs."""
    from epochmq.verbs import backup as verb

    exit_with(lambda: verb.verify(url, backup, everything=everything, output=output))


@backup_app.command("delete")
def delete(
    url: UrlArgument,
    backups: Annotated[list[str], typer.Argument(metavar="ID…", help="The backups to delete.")],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: ResultOption = ResultFormat.TABLE,
) -> None:
    """Delete backups. What other backups need remains."""
    from epochmq.verbs import backup as verb

    exit_with(lambda: verb.delete(url, backups, dry_run=dry_run, yes=yes, output=output))


@backup_app.command("prune")
def prune(
    url: UrlArgument,
    keep: Annotated[int, typer.Option("--keep", metavar="N", min=1, help="How many backups remain.")],
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: ResultOption = ResultFormat.TABLE,
) -> None:
    """Delete all but the newest backups.

    Also deletes what backups that failed more than a day ago have left."""
    from epochmq.verbs import backup as verb

    exit_with(lambda: verb.prune(url, keep, dry_run=dry_run, yes=yes, output=output))


@app.command()
def restore(
    url: UrlArgument,
    to: Annotated[
        list[Path],
        typer.Option("--to", metavar="DIR", help="The new store of a replica. May be repeated."),
    ],
    backup: Annotated[
        str | None, typer.Option("--backup", metavar="ID", help="The backup. [default: the newest]")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="The brokerName that the backup must have.")
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option("--offset", metavar="N", min=0, help="Restore the log up to this physical offset."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--time", metavar="TIME", help="Restore messages stored until then: 2030-01-31T14:00, 15m, 3h."
        ),
    ] = None,
    output: ResultOption = ResultFormat.TABLE,
) -> None:
    """Restore the stores of a new group from a backup.

    Name a directory for each replica that the new group will have. A directory must be empty or not exist."""
    from epochmq.verbs import backup as verb

    exit_with(lambda: verb.restore(url, to, backup=backup, group=group, offset=offset, at=at, output=output))
