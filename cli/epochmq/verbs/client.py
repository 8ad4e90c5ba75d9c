"""Implements `epochmq client`: lists the producers and consumers that are connected with the brokers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from epochmq.client.admin import AdminClient
from epochmq.exits import ExitCode, print_error
from epochmq.verbs import group as groups
from epochmq.verbs.cluster_calls import ClusterVerb
from epochmq.verbs.output import Column, OutputTable, VerbResult, print_result
from epochmq_protocol.bodies import ProducerTableInfo
from epochmq_protocol.codes import RequestCode, version_name
from epochmq_protocol.headers_admin import GetAllProducerInfoRequestHeader
from epochmq_protocol.topics import CLIENT_INNER_PRODUCER_GROUP

COLUMNS = (
    Column("GROUP", "group"),
    Column("KIND", "kind"),
    Column("CLIENT", "clientId"),
    Column("ADDRESS", "address"),
    Column("LANGUAGE", "language"),
    Column("VERSION", "version"),
    Column("BROKERS", "brokers"),
)


def list_clients(verb: ClusterVerb, group: str | None, *, everything: bool) -> int:
    """Prints the clients; of one group, or without `everything` those of applications."""
    if group is not None:
        groups.check_group(group)
    result = verb.run(lambda client: listed_clients(client, group, everything=everything))
    print_result(result, verb.output)
    if not result.names:
        print_error("no client is connected" + (f" as a member of group {group}" if group else ""))
    return ExitCode.OK


async def listed_clients(client: AdminClient, group: str | None, *, everything: bool) -> VerbResult:
    """The producers and consumers that the masters know. A client that is connected with several masters is
    one row."""
    masters = await client.masters()
    tables = await client.gather(
        lambda broker: client.read(
            ProducerTableInfo,
            broker.address,
            RequestCode.GET_ALL_PRODUCER_INFO,
            GetAllProducerInfoRequestHeader(),
        ),
        masters,
    )
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for broker, table in zip(masters, tables, strict=True):
        for name, producers in table.data.items():
            for one in producers:
                row = {"address": one.remote_ip.lstrip("/"), "language": one.language.name}
                row |= {"version": version_name(one.version)}
                _add(rows, (name, "producer", one.client_id), row, broker.broker_name)
    members = await groups.members_by_broker(client, masters, group)
    for name, broker_name, connection in members:
        for member in connection.connection_set:
            row = {"address": member.client_addr, "language": member.language.name}
            row |= {"version": version_name(member.version)}
            _add(rows, (name, "consumer", member.client_id), row, broker_name)
    chosen = list(_chosen(rows.values(), group, everything=everything))
    return VerbResult(chosen, [OutputTable(COLUMNS, chosen, "")], [row["clientId"] for row in chosen])


def _add(
    rows: dict[tuple[str, str, str], dict[str, Any]],
    key: tuple[str, str, str],
    row: dict[str, Any],
    broker_name: str,
) -> None:
    name, kind, client_id = key
    known = rows.setdefault(key, {"group": name, "kind": kind, "clientId": client_id} | row | {"brokers": []})
    known["brokers"].append(broker_name)


def _chosen(
    rows: Iterable[dict[str, Any]], group: str | None, *, everything: bool
) -> Iterable[dict[str, Any]]:
    for row in sorted(rows, key=lambda one: (one["group"], one["kind"], one["clientId"])):
        name = row["group"]
        is_internal = groups.is_of_brokers(name) or name == CLIENT_INNER_PRODUCER_GROUP
        if name == group or (group is None and (everything or not is_internal)):
            yield row
