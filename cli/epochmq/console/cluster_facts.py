"""Reads what the pages show, with the functions that the verbs of the command use.

Each page has a client of its own, so that a nameserver or broker that was away is asked anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from epochmq.client import ReceivedMessage
from epochmq.client.admin import AdminClient
from epochmq.console.audit_results import AuditResults
from epochmq.console.page_views import (
    GroupCard,
    OverviewView,
    Tone,
    ViewTable,
    tone_of,
    view_of,
    view_of_terminal,
)
from epochmq.console.rate_samples import SeriesName
from epochmq.exits import UsageError, error_text
from epochmq.verbs import (
    access_calls,
    acl,
    broker_config,
    cluster,
    controllers,
    dead_letters,
    group,
    message,
    name_checks,
    offset_reset,
    pod_tables,
    promote_fence_drain,
    support_bundle,
    topic,
    user,
)
from epochmq.verbs import client as client_verb
from epochmq.verbs.message import MessageRange
from epochmq.verbs.offset_reset import ResetPoint
from epochmq.verbs.output import Column, OutputTable, VerbResult
from epochmq.verbs.target import NameserverTarget
from epochmq.verbs.topic import TopicChange
from epochmq_operator.local import replica_requests, status
from epochmq_operator.local.state_directory import StateDirectory
from epochmq_operator.status_model import BrokerGroupStatus, StatusReport
from epochmq_protocol.bodies import UserInfo
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError

T = TypeVar("T")

READS_MAX = 8
"""How many pages are read at a time; more wait."""
PROMOTION_S = 30.0
"""How long a promotion may take."""
TOPICS_PAGE = 100
GROUPS_SAMPLED_MAX = 100
"""For how many consumer groups the lag is sampled."""
BROKER_COLUMNS = (
    Column("BROKER", "broker"),
    Column("ID", "id"),
    Column("ROLE", "role"),
    Column("STATE", "state"),
    Column("ADDRESS", "address"),
    Column("VERSION", "version"),
    Column("IN/S", "inRate"),
    Column("OUT/S", "outRate"),
    Column("BYTES BEHIND", "bytesBehind"),
    Column("STARTED", "started", is_time=True),
)
TOPIC_COLUMNS = (
    Column("TOPIC", "topic"),
    Column("STATE", "state"),
    Column("QUEUES", "readQueues"),
    Column("PERM", "perm"),
    Column("MESSAGES", "messages"),
    Column("IN/S", "inRate"),
    Column("LAST STORED", "lastStored", is_time=True),
    Column("BROKERS", "brokers"),
)


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """The brokers of a group: their rows of `BROKER_COLUMNS`, and the tables of what each says of itself, and
    of their settings."""

    rows: list[dict[str, Any]]
    tables: list[OutputTable]


@dataclass(frozen=True, slots=True)
class AccessFacts:
    """The users and the entries of ACLs. `problems` say which brokers did not respond, and why."""

    users: OutputTable
    entries: OutputTable
    problems: list[str] = field(default_factory=list)


class ClusterFacts(Protocol):
    """What the pages ask. Each method raises UsageError, EpochMQError or OSError with a text for people."""

    async def overview(self) -> OverviewView:
        """The groups, their replicas and controllers."""
        ...

    async def topics(self, *, everything: bool, find: str, page: int) -> tuple[OutputTable, int]:
        """A page of topics by `TOPIC_COLUMNS`, and how many topics there are."""
        ...

    async def topic(self, name: str) -> VerbResult:
        """The settings and queues of a topic."""
        ...

    async def messages(
        self, name: str, span: MessageRange, *, key: str | None, count: int
    ) -> list[ReceivedMessage]:
        """Messages of a topic."""
        ...

    async def message_with_id(self, name: str, message_id: str) -> ReceivedMessage:
        """The message with a unique key, or an offset id of this cluster."""
        ...

    async def groups(self, *, everything: bool) -> VerbResult:
        """The consumer groups."""
        ...

    async def group(self, name: str) -> VerbResult:
        """The settings, members and lag of a consumer group."""
        ...

    async def brokers(self) -> list[dict[str, Any]]:
        """The brokers, by `BROKER_COLUMNS`."""
        ...

    async def broker(self, name: str) -> BrokerFacts:
        """The brokers of one group in detail."""
        ...

    async def controllers(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The controllers, and the groups that they keep."""
        ...

    async def clients(self, *, everything: bool) -> VerbResult:
        """The producers and consumers that are connected."""
        ...

    async def dead_letters(self) -> VerbResult:
        """The consumer groups that have dead letters."""
        ...

    async def dead_letters_of(self, name: str, count: int) -> list[ReceivedMessage]:
        """The newest dead letters of a consumer group."""
        ...

    async def access(self) -> AccessFacts:
        """The users and what they may do."""
        ...

    @property
    def audits(self) -> AuditResults:
        """The results of audits."""
        ...

    async def sample(self) -> Mapping[SeriesName, float]:
        """The rates and lags of now."""
        ...

    def is_run(self) -> bool:
        """Whether this is a run of `epochmq up` on this machine."""
        ...

    async def replicas(self, broker_name: str) -> list[str]:
        """The replicas GROUP/POD of a run that have this broker name; none of another cluster."""
        ...

    async def support_bundle(self) -> bytes:
        """The bundle for support of a run, as a tar archive with gzip."""
        ...

    # changes

    async def planned_reset(self, name: str, topic_name: str, point: ResetPoint) -> list[dict[str, Any]]:
        """Where a consumer group would continue, by `offset_reset.COLUMNS`."""
        ...

    async def reset(self, name: str, topic_name: str, point: ResetPoint) -> list[dict[str, Any]]:
        """Sets where a consumer group continues; what was set, by `offset_reset.COLUMNS`."""
        ...

    async def resend(
        self, name: str, message_id: str | None, count: int, *, to_topic: bool
    ) -> list[dict[str, Any]]:
        """Sends dead letters again; where each was stored, by `message.SENT_COLUMNS`."""
        ...

    async def create_topic(self, name: str, change: TopicChange, *, dry_run: bool) -> OutputTable:
        """Creates a topic on every broker group; what is created where."""
        ...

    async def promote(self, replica: str) -> str:
        """Makes the replica GROUP/POD of a run the master; what was done, in a line."""
        ...

    async def set_password(self, name: str, password: str) -> list[dict[str, Any]]:
        """Gives a user a new password; what each broker has done."""
        ...


class LiveClusterFacts:
    """Reads from the cluster of a target."""

    def __init__(self, target: NameserverTarget, timeout_s: float) -> None:
        self._target = target
        self._timeout_ms = timeout_s * 1000
        self._slots = asyncio.Semaphore(READS_MAX)

    async def _with_client(self, action: Callable[[AdminClient], Awaitable[T]]) -> T:
        async with self._slots:
            target = self._target
            async with AdminClient(
                target.nameservers(),
                credentials=target.credentials(),
                tls=target.tls(),
                timeout_ms=self._timeout_ms,
            ) as client:
                return await action(client)

    async def overview(self) -> OverviewView:
        """The status of the run, or what the nameservers and controllers of another cluster say."""
        run_directory = self._target.run_directory()
        if run_directory is not None:
            return await self._overview_of_run(run_directory)
        return await self._with_client(overview_of_cluster)

    async def _overview_of_run(self, path: Path) -> OverviewView:
        directory = StateDirectory(path)
        async with self._slots:
            seen = await observed(directory)
        if not seen.pods:
            raise UsageError(f"nothing runs in {path}; start something with: epochmq up -f FILE")
        report = status.report(directory, seen)
        tables = [
            view_of_terminal(
                pod_tables.pod_table(
                    [pod_tables.row_of(pod) for pod in seen.pods], pod_tables.WIDTH_WITHOUT_TERMINAL
                ),
                "Pods",
            ),
            *tables_of_report(report),
        ]
        notes = pod_tables.refusals_of(seen.pods)
        if directory.supervisor() is None:
            notes.append("the supervisor is gone: pods that end are not restarted; run up again, or down")
        return OverviewView(
            f"the run in {path}", [card_of(one) for one in report.broker_groups], tables, notes
        )

    async def topics(self, *, everything: bool, find: str, page: int) -> tuple[OutputTable, int]:
        """A page of the topics whose names have `find` in them."""

        async def action(client: AdminClient) -> tuple[OutputTable, int]:
            listed = await topic.listed_topics(client, everything=everything)
            chosen = [row for row in listed.document if find in row["topic"]]
            rows = chosen[(page - 1) * TOPICS_PAGE : page * TOPICS_PAGE]

            async def with_totals(row: dict[str, Any]) -> dict[str, Any]:
                try:
                    return row | {"state": "serves"} | await topic.topic_totals(client, row["topic"])
                except EpochMQError as error:
                    return row | {"state": error_text(error)}

            return OutputTable(TOPIC_COLUMNS, await client.gather(with_totals, rows)), len(chosen)

        return await self._with_client(action)

    async def topic(self, name: str) -> VerbResult:
        """What `epochmq topic describe` prints."""
        name_checks.check_topic(name)
        return await self._with_client(lambda client: topic.described_topic(client, name))

    async def messages(
        self, name: str, span: MessageRange, *, key: str | None, count: int
    ) -> list[ReceivedMessage]:
        """What `epochmq message peek` prints."""
        name_checks.check_topic(name)
        return await self._with_client(
            lambda client: message.peeked_messages(client, name, span, key=key, count=count)
        )

    async def message_with_id(self, name: str, message_id: str) -> ReceivedMessage:
        """What `epochmq message get` prints; an id that names another address is not followed."""
        name_checks.check_topic(name)

        async def action(client: AdminClient) -> ReceivedMessage:
            known = {one.address for one in await client.brokers()}
            return await message.find_message(client, message_id, name, brokers=known)

        return await self._with_client(action)

    async def groups(self, *, everything: bool) -> VerbResult:
        """What `epochmq group list` prints."""
        return await self._with_client(lambda client: group.listed_groups(client, everything=everything))

    async def group(self, name: str) -> VerbResult:
        """What `epochmq group describe` prints."""
        group.check_group(name)
        return await self._with_client(lambda client: group.described_group(client, name))

    async def brokers(self) -> list[dict[str, Any]]:
        """What `epochmq cluster list` prints, and how far slaves are behind."""
        return await self._with_client(cluster.brokers_with_lag)

    async def broker(self, name: str) -> BrokerFacts:
        """What `epochmq broker describe` and `epochmq config get` print."""

        async def action(client: AdminClient) -> BrokerFacts:
            found = await client.brokers(broker_names=[name])
            rows = [row for row in await cluster.brokers_with_lag(client) if row["broker"] == name]
            serving = {row["address"] for row in rows if row["state"] == "serves"}
            tables = []
            for one in found:
                if one.address not in serving:
                    continue
                known = await broker_config.read_runtime(client, one)
                settings = await broker_config.read_settings_of(client, one)
                for title, pairs in (("says of itself", known), ("settings", settings)):
                    columns = (Column("KEY", "key"), Column("VALUE", "value"))
                    shown = [{"key": key, "value": value} for key, value in sorted(pairs.items())]
                    tables.append(OutputTable(columns, shown, f"{name}:{one.broker_id} {title}"))
            return BrokerFacts(rows, tables)

        return await self._with_client(action)

    async def controllers(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """What `epochmq controller list` prints."""
        directory = self._target.run_directory()
        return await self._with_client(lambda client: controllers.listed_controllers(client, (), directory))

    async def clients(self, *, everything: bool) -> VerbResult:
        """What `epochmq client list` prints."""
        return await self._with_client(
            lambda client: client_verb.listed_clients(client, None, everything=everything)
        )

    async def dead_letters(self) -> VerbResult:
        """What `epochmq dlq list` prints."""
        return await self._with_client(dead_letters.listed_dead_letters)

    async def dead_letters_of(self, name: str, count: int) -> list[ReceivedMessage]:
        """What `epochmq dlq list GROUP` prints."""
        group.check_group(name)
        return await self._with_client(lambda client: dead_letters.dead_letters_of(client, name, count))

    async def access(self) -> AccessFacts:
        """What `epochmq user list` and `epochmq acl list` print."""

        async def action(client: AdminClient) -> AccessFacts:
            brokers = await client.brokers()
            try:
                users, problems = await access_calls.rows_of_brokers(client, user.users_of, brokers)
                entries, more = await access_calls.rows_of_brokers(client, acl.entries_of, brokers)
            except RequestError as error:
                if error.code != ResponseCode.SYSTEM_ERROR:
                    raise
                users, entries, problems, more = [], [], [error_text(error)], []  # they keep no users
            return AccessFacts(
                OutputTable((*user.COLUMNS, access_calls.BROKERS_COLUMN), users, "Users"),
                OutputTable((*acl.COLUMNS, access_calls.BROKERS_COLUMN), entries, "Permissions"),
                list(dict.fromkeys((*problems, *more))),
            )

        return await self._with_client(action)

    @property
    def audits(self) -> AuditResults:
        """The audits in the state directory of the run."""
        return AuditResults(self._target.run_directory())

    async def sample(self) -> Mapping[SeriesName, float]:
        """The rates of all brokers, how far slaves are behind, and the lags of consumer groups."""

        async def action(client: AdminClient) -> Mapping[SeriesName, float]:
            values: dict[SeriesName, float] = {}
            for row in await cluster.brokers_with_lag(client):
                for kind, name in SAMPLED.items():
                    if row.get(name) is not None:
                        values[SeriesName(kind, series_of(row))] = row[name]
            for name, lag in (await group.lags_of_groups(client, GROUPS_SAMPLED_MAX)).items():
                values[SeriesName("lag", name)] = lag
            return values

        return await self._with_client(action)

    async def planned_reset(self, name: str, topic_name: str, point: ResetPoint) -> list[dict[str, Any]]:
        """What `epochmq group reset --dry-run` prints."""
        group.check_group(name)
        name_checks.check_topic(topic_name)
        return await self._with_client(
            lambda client: offset_reset.planned_reset(client, name, topic_name, point, None)
        )

    async def reset(self, name: str, topic_name: str, point: ResetPoint) -> list[dict[str, Any]]:
        """What `epochmq group reset` does."""
        rows = await self.planned_reset(name, topic_name, point)
        await self._with_client(lambda client: offset_reset.write_offsets(client, name, topic_name, rows))
        return rows

    async def resend(
        self, name: str, message_id: str | None, count: int, *, to_topic: bool
    ) -> list[dict[str, Any]]:
        """What `epochmq dlq resend` does."""
        group.check_group(name)

        async def action(client: AdminClient) -> list[dict[str, Any]]:
            found = await dead_letters.chosen_dead_letters(client, name, message_id, count)
            sent = dead_letters.journeys(found, name, to_topic=to_topic)
            return await message.sent_again(client, self._target, sent)

        return await self._with_client(action)

    async def create_topic(self, name: str, change: TopicChange, *, dry_run: bool) -> OutputTable:
        """What `epochmq topic create` does."""
        name_checks.check_topic(name)

        async def action(client: AdminClient) -> VerbResult:
            return await topic.created_topic(client, name, change, await client.masters(), dry_run=dry_run)

        (table,) = (await self._with_client(action)).tables
        return table

    async def set_password(self, name: str, password: str) -> list[dict[str, Any]]:
        """What `epochmq user update --new-password` does."""
        known, selection = access_calls.checked_user(name), user.Selection(None, ())
        info = UserInfo(username=known, password=password)

        async def action(client: AdminClient) -> list[dict[str, Any]]:
            await user.require_user(client, known, selection, there=True)
            return await user.changed_user(client, known, info, selection)

        return await self._with_client(action)

    # of a run on this machine

    def is_run(self) -> bool:
        """Whether the target is a state directory."""
        return self._target.run_directory() is not None

    async def replicas(self, broker_name: str) -> list[str]:
        """The replicas of the run that have this broker name."""
        path = self._target.run_directory()
        if path is None:
            return []
        directory = StateDirectory(path)
        async with self._slots:
            report = status.report(directory, await observed(directory))
        return [
            f"{found.name}/{one.pod}"
            for found in report.broker_groups
            if found.broker_name == broker_name
            for one in found.replicas
        ]

    async def promote(self, replica: str) -> str:
        """What `epochmq promote` does."""
        directory = promote_fence_drain.running_directory(self._run_directory())
        result = await replica_requests.promote(directory, replica, PROMOTION_S)
        return promote_fence_drain.promotion_text(result)

    async def support_bundle(self) -> bytes:
        """What `epochmq support-bundle` writes."""
        return await asyncio.to_thread(support_bundle.packed, self._run_directory())

    def _run_directory(self) -> Path:
        path = self._target.run_directory()
        if path is None:
            raise UsageError("this is for a run of `epochmq up` on this machine; the console shows a cluster")
        return path


SAMPLED = {"in": "inRate", "out": "outRate", "behind": "bytesBehind"}
"""The kinds of series that a broker has, with the fields of its row."""


def series_of(row: Mapping[str, Any]) -> str:
    """The name of a broker's series."""
    return f"{row['broker']}:{row['id']}"


async def observed(directory: StateDirectory) -> status.LocalObservation:
    """What runs in a state directory; nothing if it is not one."""
    return await status.observe(directory) if directory.exists() else status.LocalObservation.nothing()


def tables_of_report(report: StatusReport) -> list[ViewTable]:
    """The tables of `epochmq status` that have rows."""
    tables = (
        (pod_tables.replica_groups_table(report.controller_groups), "Replica groups"),
        (pod_tables.broker_groups_table(report.broker_groups), "Replicas"),
        (pod_tables.master_slave_table(report.broker_groups), "Replicas without controllers"),
        (pod_tables.dledger_table(report.broker_groups), "Replicas on a DLedger log"),
        (pod_tables.controllers_table(report.controller_groups), "Controllers"),
    )
    return [view_of_terminal(table, title) for table, title in tables if table.row_count]


def card_of(found: BrokerGroupStatus) -> GroupCard:
    """A broker group in short."""
    leading = [one.pod for one in found.replicas if one.role == "master" and one.ready]
    facts = [("master", leading[0] if leading else "none")]
    if found.master_epoch is not None:
        facts.append(("epoch", str(found.master_epoch)))
    if found.sync_state_set:
        facts.append(("SyncStateSet", " ".join(map(str, found.sync_state_set))))
    ready = sum(one.ready for one in found.replicas)
    facts.append(("replicas ready", f"{ready} of {len(found.replicas)}"))
    return GroupCard(found.name, found.phase, tone_of(found.phase), facts)


async def overview_of_cluster(client: AdminClient) -> OverviewView:
    """What nameservers, brokers and, if there are any, controllers say."""
    rows = await cluster.listed_brokers(client)
    tables = [view_of(OutputTable(cluster.BROKER_COLUMNS, rows, "Brokers"))]
    notes = []
    try:
        members, groups = await controllers.listed_controllers(client, (), None)
    except RequestError as error:
        if error.code != ResponseCode.SYSTEM_ERROR:  # that is: the cluster has no controllers
            notes.append(error_text(error))
    except EpochMQError as error:
        notes.append(error_text(error))
    else:
        known = [column for column in controllers.GROUP_COLUMNS if any(row[column.field] for row in groups)]
        tables.append(view_of(OutputTable(known, groups, "Replica groups")))
        tables.append(view_of(OutputTable(controllers.CONTROLLER_COLUMNS, members, "Controllers")))
    cards = []
    for name in dict.fromkeys(str(row["cluster"]) for row in rows):
        summary = cluster.summary_of(name, [row for row in rows if row["cluster"] == name])
        lacking = summary["withoutMaster"]
        serving = f"{summary['serving']} of {summary['brokerCount']}"
        is_whole = not lacking and summary["serving"] == summary["brokerCount"]
        state = f"no master in {', '.join(lacking)}" if lacking else "serves" if is_whole else "degraded"
        facts = [
            ("brokers that serve", serving),
            ("groups", str(summary["groups"])),
            ("in/s", f"{summary['inRate']:.1f}"),
            ("out/s", f"{summary['outRate']:.1f}"),
        ]
        cards.append(GroupCard(name, state, Tone.GOOD if is_whole else Tone.BAD, facts))
    return OverviewView(f"the nameservers {';'.join(client.nameservers)}", cards, tables, notes)
