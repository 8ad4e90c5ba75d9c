# pure: findings to the commands that repair them
"""Plans the repair of what an audit found: steps in the order in which they must be taken.

`remedies.REMEDIES` says what repairs a kind of finding. The plan names the replicas and files, and looks for
the evidence that a remedy needs. A store is moved away only if another replica without an error or a warning
has the same part of the log. Consume queues and index are built from the store's own log. Nothing is
deleted: what is moved goes to `DIRECTORY.set-aside-TIME`, beside the store."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from epochmq_spark.findings import KINDS, FindingSeverity
from epochmq_spark.remedies import NO_COPY, REMEDIES, Remedy, RemedyAction

FILES_MAX: Final = 20
"""Files of a replica and kind that a plan names."""
QUEUE_FOLDERS: Final = ("consumequeue", "consumequeue_ext", "batchconsumequeue", "index")
"""What a start builds from the log, together: it reads the whole log only if there are no queues."""
UNTRUSTED: Final = frozenset({"directory.same-files", "directory.same-replica", "check.failed"})
"""Kinds that leave no evidence about any replica of the group."""
OTHER_HISTORIES: Final = frozenset(
    {"topic.made-again", "topic.without-queues", "log.two-histories", "log.tail-not-common"}
)
"""Kinds of which the log alone does not tell what the queues must be."""
FILES_OF_GROUP: Final = frozenset(
    {
        "topics.json",
        "subscriptionGroup.json",
        "consumerOffset.json",
        "delayOffset.json",
        "consumerOrderInfo.json",
        "consumerFilter.json",
        "messageRequestMode.json",
        "auth.json",
    }
)
"""Tables of `config` that all replicas of a group share."""
FILE_OF_KIND: Final = {
    "delay-offset.ahead": "delayOffset.json",
    "pop.broken-order": "consumerOrderInfo.json",
    "pop.order-ahead": "consumerOrderInfo.json",
    "filter.broken-entry": "consumerFilter.json",
    "request-mode.broken-entry": "messageRequestMode.json",
    "auth.broken-entry": "auth.json",
}
"""The tables of kinds whose findings may name no file."""


@dataclass(frozen=True, slots=True)
class FoundKind:
    """The findings of one kind at a replica; an empty name means the group. `files` are some of those that
    they name, at most FILES_MAX."""

    group: str
    replica: str
    kind: str
    count: int
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedReplica:
    """A replica of the audit. `directory` is its path on this machine, None for other places. `names` are the
    entries of the directory, and those of its `config` as `config/NAME`. The offsets are None if the log
    could not be read. `is_killed`: its broker did not stop cleanly. `has_epochs`: its log has epochs or
    terms."""

    group: str
    name: str
    directory: str | None
    names: frozenset[str] = frozenset()
    log_start: int | None = None
    log_end: int | None = None
    confirmed: int = 0
    is_killed: bool = False
    has_epochs: bool = False


@dataclass(frozen=True, slots=True)
class FixStep:
    """A step of a plan. `commands` are shell commands; without any, `text` says what a person does. `kinds`
    are the findings that the step repairs."""

    action: RemedyAction
    group: str
    replicas: tuple[str, ...]
    kinds: tuple[str, ...]
    text: str
    commands: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The step as JSON."""
        return {
            "action": self.action.value,
            "group": self.group,
            "replicas": list(self.replicas),
            "kinds": list(self.kinds),
            "text": self.text,
            "commands": list(self.commands),
        }


@dataclass(slots=True)
class _Group:
    replicas: dict[str, PlannedReplica] = field(default_factory=dict)
    found: dict[str, list[FoundKind]] = field(default_factory=dict)

    def kinds(self) -> set[str]:
        return {one.kind for found in self.found.values() for one in found}

    def is_clean(self, name: str) -> bool:
        """Whether a replica has neither an error nor a warning."""
        severities = {KINDS[one.kind][0] for one in self.found.get(name, ())}
        return severities <= {FindingSeverity.NOTE}

    def copy_of(self, one: PlannedReplica) -> PlannedReplica | None:
        """A replica that has everything that the log of `one` may hold, by the findings and the offsets."""
        if one.log_start is None or one.log_end is None or self.kinds() & UNTRUSTED:
            return None
        end = max(one.log_end, one.confirmed)
        for other in self.replicas.values():
            if other is one or other.log_start is None or other.log_end is None:
                continue
            if other.log_start <= one.log_start and other.log_end >= end and self.is_clean(other.name):
                return other
        return None


@dataclass(frozen=True, slots=True)
class LocalGroup:
    """The name and the state directory of a group that `epochmq up` runs."""

    name: str
    state: str


def make_plan(
    found: Iterable[FoundKind],
    replicas: Iterable[PlannedReplica],
    stamp: str,
    local: LocalGroup | None = None,
) -> list[FixStep]:
    """The steps that repair the findings. `stamp` is the time of the audit, and becomes a part of names.
    `local` names the group, if `epochmq up` runs it."""
    groups: dict[str, _Group] = {}
    for replica in replicas:
        groups.setdefault(replica.group, _Group()).replicas[replica.name] = replica
    for one in found:
        groups.setdefault(one.group, _Group()).found.setdefault(one.replica, []).append(one)
    steps: list[FixStep] = []
    for name in sorted(groups):
        steps += _in_order(name, groups[name], _plan_of_group(name, groups[name], stamp), local)
    return steps


def _plan_of_group(name: str, group: _Group, stamp: str) -> list[FixStep]:
    steps: list[FixStep] = []
    for replica in sorted(group.found):
        steps += _plan_of_replica(name, group, replica, stamp)
    order = list(RemedyAction)
    return sorted(_merged(steps), key=lambda step: (order.index(step.action), step.replicas))


def _in_order(name: str, group: _Group, steps: list[FixStep], local: LocalGroup | None) -> list[FixStep]:
    """The steps, with the stop before the first command, and the start behind the last one."""
    by_hand = [step for step in steps if not step.commands and step.action is not RemedyAction.START]
    commands = [step for step in steps if step.commands]
    by_start = [step for step in steps if step.action is RemedyAction.START]
    if not commands and not by_start:
        return by_hand
    changed = tuple(sorted({one for step in commands for one in step.replicas}))
    moved = {one for step in steps if step.action is RemedyAction.REPLACE_STORE for one in step.replicas}
    first, last = sorted(group.replicas.keys() - moved), sorted(moved)
    state = "" if local is None else f" --state {shlex.quote(local.state)}"
    text = f"start {', '.join(first)}" + (f"; when they serve, start {', '.join(last)}" if last else "")
    if local is not None:
        text = f"start the group: epochmq up -f FILE --detach{state}"
    start = FixStep(RemedyAction.START, name, (*first, *last), (), text)
    if not commands:
        return [*by_hand, *by_start, start]
    stop = FixStep(RemedyAction.STOP, name, changed, (), "stop these brokers, if they run")
    if local is not None:
        command = f"epochmq down {shlex.quote(local.name)}{state} || true"
        stop = FixStep(RemedyAction.STOP, name, changed, (), "stop the group, if it runs", (command,))
    return [*by_hand, stop, *commands, start, *by_start]


def _plan_of_replica(name: str, group: _Group, replica: str, stamp: str) -> list[FixStep]:
    steps: list[FixStep] = []
    one = group.replicas.get(replica)
    for found in sorted(group.found[replica], key=lambda row: row.kind):
        remedy = REMEDIES[found.kind]
        if remedy.action is not RemedyAction.NOTHING:
            steps += _steps(name, group, one, found, _fitting(remedy, found), stamp)
    replaced = [step for step in steps if step.action is RemedyAction.REPLACE_STORE and step.commands]
    if not replaced:
        return steps
    # A new store has none of the old one's faults; what a person must know of it stays.
    kept = [step for step in steps if step.action in (RemedyAction.AUDIT_AGAIN, RemedyAction.DECIDE)]
    kinds = tuple(sorted({kind for step in steps if step not in kept for kind in step.kinds}))
    first = replaced[0]
    return [*kept, FixStep(first.action, name, first.replicas, kinds, first.text, first.commands)]


def _fitting(remedy: Remedy, found: FoundKind) -> Remedy:
    """The remedy by the files that the findings name: queues and index can be built again, tables copied."""
    if found.kind in ("file.wrong-size", "directory.incomplete") and found.files:
        parts = {part for file in found.files for part in file.split("/")}
        if parts & set(QUEUE_FOLDERS) and "commitlog" not in parts:
            return REMEDIES["queue.missing-unit"]
        if "timerwheel" in parts:
            return REMEDIES["timer.broken-wheel"]
    return remedy


def _steps(
    name: str, group: _Group, one: PlannedReplica | None, found: FoundKind, remedy: Remedy, stamp: str
) -> list[FixStep]:
    def step(action: RemedyAction, text: str, *commands: str) -> list[FixStep]:
        names = (found.replica,) if found.replica else ()
        return [FixStep(action, name, names, (found.kind,), text, commands)]

    action = remedy.action
    if one is None or action in (RemedyAction.AUDIT_AGAIN, RemedyAction.DECIDE):
        fallback = action if action is RemedyAction.AUDIT_AGAIN else RemedyAction.DECIDE
        return step(fallback, remedy.otherwise or remedy.text)
    if action is RemedyAction.COPY_TABLE:
        return _copied_table(group, one, found, remedy, stamp, step)
    if remedy.needs_copy and group.copy_of(one) is None:
        is_lost = remedy.otherwise == NO_COPY
        return step(RemedyAction.RESTORE if is_lost else RemedyAction.DECIDE, _restore(remedy, name))
    if action is RemedyAction.START:
        return step(action, remedy.text)
    if one.directory is None:
        return step(RemedyAction.DECIDE, f"{_by_hand(action)}: {remedy.text}")
    if action is RemedyAction.SET_FILE_ASIDE:
        inside = [file for file in found.files if file.startswith(f"{one.directory}/") and "\\x" not in file]
        if not inside:  # the name has bytes that are no text
            return step(RemedyAction.DECIDE, f"{_by_hand(action)}: {remedy.text}")
        return step(action, remedy.text, *(_set_aside(one.directory, [file], stamp) for file in inside))
    if action is RemedyAction.REPLACE_STORE:
        return _replaced_store(one, remedy, stamp, step)
    return _rebuilt(group, one, action, remedy, stamp, step)


def _restore(remedy: Remedy, group: str) -> str:
    if remedy.otherwise != NO_COPY:
        return remedy.otherwise
    return f"{NO_COPY}: epochmq restore URL --group {shlex.quote(group)} --to NEW-DIRECTORY"


def _by_hand(action: RemedyAction) -> str:
    return {
        RemedyAction.SET_FILE_ASIDE: "move the file out of the store",
        RemedyAction.REBUILD_QUEUES: "stop the broker, and move consume queues and index out of the store",
        RemedyAction.REBUILD_WHEEL: "stop the broker, and move timerwheel out of the store",
        RemedyAction.REPLACE_STORE: "while the other replicas run, give this one an empty directory",
    }[action]


def _copied_table(
    group: _Group, one: PlannedReplica, found: FoundKind, remedy: Remedy, stamp: str, step: Any
) -> list[FixStep]:
    """Copies the tables that the findings name from a replica without findings."""
    files = list(found.files)
    if not files and found.kind in FILE_OF_KIND and one.directory is not None:
        files = [f"{one.directory}/config/{FILE_OF_KIND[found.kind]}"]
    sources = [
        other
        for other in group.replicas.values()
        if other is not one and other.directory is not None and group.is_clean(other.name)
    ]
    steps: list[FixStep] = []
    for file in files:
        table = file.rpartition("/")[2]
        having = [other for other in sources if f"config/{table}" in other.names]
        is_shared = table in FILES_OF_GROUP and file == f"{one.directory}/config/{table}"
        if not (is_shared and having and one.directory is not None):
            is_start = found.kind in ("state.unreadable", "state.missing")
            action = RemedyAction.START if is_start else RemedyAction.DECIDE
            steps += step(action, f"{remedy.otherwise} ({file})")
            continue
        source = f"{having[0].directory}/config/{table}"
        commands = [_set_aside(one.directory, [file], stamp)] if found.kind != "state.missing" else []
        commands.append(f"cp -p -- {shlex.quote(source)} {shlex.quote(file)}")
        steps += step(
            remedy.action, f"{having[0].name}, a replica without findings, has the table", *commands
        )
    return steps or step(RemedyAction.DECIDE, remedy.otherwise)


def _replaced_store(one: PlannedReplica, remedy: Remedy, stamp: str, step: Any) -> list[FixStep]:
    if not one.has_epochs:
        # A master and slaves without epochs: nothing in the files tells which is the master.
        text = "if this replica is a slave, give it an empty directory; if it is the master, make a slave's "
        text += "store the master's: stop both, and copy it into the master's place"
        return list(step(RemedyAction.DECIDE, text))
    assert one.directory is not None
    return list(step(remedy.action, remedy.text, _set_aside(one.directory, [one.directory], stamp)))


def _rebuilt(
    group: _Group, one: PlannedReplica, action: RemedyAction, remedy: Remedy, stamp: str, step: Any
) -> list[FixStep]:
    """Moves what a start builds again out of the store."""
    assert one.directory is not None
    if one.is_killed:
        text = "start the broker, which repairs the end of its files after a kill, stop it, and audit again"
        return list(step(RemedyAction.START, text))
    if action is RemedyAction.REBUILD_WHEEL:
        wheel = f"{one.directory}/timerwheel"
        commands = [_set_aside(one.directory, [wheel], stamp)] if "timerwheel" in one.names else []
        return list(step(action if commands else RemedyAction.START, remedy.text, *commands))
    if group.kinds() & OTHER_HISTORIES:
        if group.copy_of(one) is not None and one.has_epochs:
            return _replaced_store(one, REMEDIES["directory.incomplete"], stamp, step)
        text = "a topic was deleted and made again, or the logs differ, so queues must not be built from the "
        text += "whole log: start the broker, which rewrites units that differ from their records"
        return list(step(RemedyAction.START, text))
    folders = [f"{one.directory}/{folder}" for folder in QUEUE_FOLDERS if folder in one.names]
    if not folders:
        return list(step(RemedyAction.START, remedy.text))
    return list(step(action, remedy.text, _set_aside(one.directory, folders, stamp)))


def _set_aside(directory: str, paths: Sequence[str], stamp: str) -> str:
    """The command that moves paths of one folder out of a store. They keep their place below the target, so
    that two files of one name do not replace each other."""
    folder = paths[0].rpartition("/")[0]
    inside = folder.removeprefix(directory) if folder.startswith(directory) else ""
    target = shlex.quote(f"{directory}.set-aside-{stamp}{inside}")
    return f"mkdir -p -- {target} && mv -- {' '.join(map(shlex.quote, paths))} {target}/"


def _merged(steps: Sequence[FixStep]) -> list[FixStep]:
    """Joins steps that do the same to the same replicas."""
    joined: dict[tuple[Any, ...], FixStep] = {}
    for step in steps:
        key = step.action, step.replicas, step.text, step.commands
        before = joined.get(key)
        kinds = step.kinds if before is None else tuple(sorted({*before.kinds, *step.kinds}))
        joined[key] = FixStep(step.action, step.group, step.replicas, kinds, step.text, step.commands)
    return list(joined.values())


def shell_text(steps: Sequence[Mapping[str, Any]], audit_again: str) -> str:
    """The plan as a shell script: commands, and what a person does as comments. `audit_again` is the command
    that proves the repair."""
    if not steps:
        return "# Nothing has to be repaired.\n"
    lines = []
    for number, step in enumerate(steps, 1):
        whose = ", ".join(step["replicas"])
        why = f" ({', '.join(step['kinds'])})" if step["kinds"] else ""
        lines.append(f"# {number}. {step['group']}{': ' + whose if whose else ''}{why}: {step['text']}")
        lines += step["commands"]
    lines.append(f"# {len(steps) + 1}. Prove it:")
    return "\n".join(_one_line(line) for line in [*lines, f"# {audit_again}"]) + "\n"


def _one_line(text: str) -> str:
    """The text without line breaks, which would end a comment: names of files may have any character."""
    return " ".join(text.splitlines()) if text.startswith("#") else text
