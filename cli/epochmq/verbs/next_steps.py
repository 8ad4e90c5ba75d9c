"""Writes the text at the end of `epochmq up`: the commands to type next, and the nameservers for clients."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from epochmq_operator.local.state_directory import PodRecord
from epochmq_operator.resources import Resources

STATE_DEFAULT = Path(".epochmq")
TOPIC = "greetings"
"""A topic to try. A broker has one named like itself already."""


def nameservers_in(records: Sequence[PodRecord], resources: Resources) -> list[str]:
    """The addresses of the nameservers with which the brokers of these resources register."""
    groups = {group.name for group in resources.broker_groups}
    found = (address for record in records if record.group in groups for address in record.nameservers)
    return list(dict.fromkeys(found))


def next_steps(state: Path, resources: Resources, nameservers: Sequence[str], *, detached: bool) -> str:
    """The next commands, for somebody who uses `epochmq` for the first time."""
    options = "" if state == STATE_DEFAULT else f" --state {shlex.quote(str(state))}"
    command = typed_command()
    stop = f"Stop with: {command} down{options}" if detached else "Press Ctrl-C to stop; the data is kept."
    if not resources.broker_groups:
        where = ":" if detached else " in a second terminal:"
        return f"Now type{where}\n  {command} status{options}\n{stop}"
    name = resources.broker_groups[0].name
    if len(resources.broker_groups) > 1:
        options += f" --broker-group {name}"
    lines = [
        "Now type" + (":" if detached else " in a second terminal:"),
        f"  {command} topic create {TOPIC}{options}",
        f"  {command} produce {TOPIC} 'hello'{options}",
        f"  {command} consume {TOPIC}{options}",
    ]
    if command != "epochmq":
        lines.append(
            f"or, after `source {shlex.quote(str(Path(command).parent / 'activate'))}`: "
            f"epochmq topic create {TOPIC}{options}"
        )
    lines.append(f"For RocketMQ's clients set namesrvAddr to {';'.join(nameservers)}.")
    lines.append(stop)
    return "\n".join(lines)


def typed_command() -> str:
    """The way to type this command again: its name if the PATH leads to it, else the path used now."""
    used = Path(sys.argv[0])
    if used.name == "__main__.py":
        used = Path(sys.executable).with_name("epochmq")
    found = shutil.which("epochmq")
    if found is not None and Path(found).resolve() == used.resolve():
        return "epochmq"
    here = Path.cwd()
    return str(used.relative_to(here)) if used.is_absolute() and used.is_relative_to(here) else str(used)
