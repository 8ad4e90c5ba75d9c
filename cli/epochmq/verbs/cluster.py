"""Implements `epochmq cluster list`: the clusters that nameservers know, with their brokers."""

from __future__ import annotations

from typing import Any

from epochmq.client.admin import AdminClient, BrokerAddress
from epochmq.exits import ExitCode
from epochmq.verbs.broker_config import broker_row
from epochmq.verbs.cluster_calls import ClusterVerb
from epochmq.verbs.output import Column, OutputTable, VerbResult, print_result

CLUSTER_COLUMNS = (
    Column("CLUSTER NAME", "cluster"),
    Column("GROUPS", "groups"),
    Column("BROKERS", "brokerCount"),
    Column("SERVING", "serving"),
    Column("WITHOUT MASTER", "withoutMaster"),
    Column("VERSIONS", "versions"),
    Column("IN/S", "inRate"),
    Column("OUT/S", "outRate"),
)
BROKER_COLUMNS = (
    Column("CLUSTER NAME", "cluster"),
    Column("BROKER", "broker"),
    Column("ID", "id"),
    Column("ROLE", "role"),
    Column("ADDRESS", "address"),
    Column("VERSION", "version"),
    Column("IN/S", "inRate"),
    Column("OUT/S", "outRate"),
    Column("STATE", "state"),
)


def list_clusters(verb: ClusterVerb, cluster: str | None) -> int:
    """Prints the clusters, and their brokers; one that does not respond has the reason as its state."""
    rows = verb.run(lambda client: listed_brokers(client, cluster))
    clusters = [
        summary_of(name, [row for row in rows if row["cluster"] == name])
        for name in dict.fromkeys(str(row["cluster"]) for row in rows)
    ]
    tables = [
        OutputTable(CLUSTER_COLUMNS, clusters, "Clusters"),
        OutputTable(BROKER_COLUMNS, rows, "Brokers"),
    ]
    document = [
        one | {"brokers": [row for row in rows if row["cluster"] == one["cluster"]]} for one in clusters
    ]
    print_result(VerbResult(document, tables, [str(one["cluster"]) for one in clusters]), verb.output)
    return ExitCode.OK


async def listed_brokers(client: AdminClient, cluster: str | None = None) -> list[dict[str, Any]]:
    """A row of `BROKER_COLUMNS` for each broker; one that does not respond has the reason as its state."""

    async def row(broker: BrokerAddress) -> dict[str, Any]:
        return {"role": "master" if broker.is_master else "slave"} | await broker_row(client, broker)

    return await client.gather(row, await client.brokers(cluster=cluster))


async def brokers_with_lag(client: AdminClient) -> list[dict[str, Any]]:
    """As `listed_brokers`, with `bytesBehind`: how many bytes the log of a slave ends before the master's.
    It is null for a master, and where one of the two does not tell its end."""
    rows = await listed_brokers(client)
    ends = {row["broker"]: row.get("logEnd") for row in rows if row["role"] == "master"}
    for row in rows:
        end, own = ends.get(row["broker"]), row.get("logEnd")
        is_known = end is not None and own is not None and row["role"] != "master"
        row["bytesBehind"] = max(int(end or 0) - int(own or 0), 0) if is_known else None
    return rows


def summary_of(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A cluster in one row. Messages are counted where they are first stored, so only a master's rate in
    counts."""
    groups = {row["broker"] for row in rows}
    masters = [row for row in rows if row["role"] == "master"]
    return {
        "cluster": name,
        "groups": len(groups),
        "brokerCount": len(rows),
        "serving": sum(row["state"] == "serves" for row in rows),
        "withoutMaster": sorted(groups - {row["broker"] for row in masters}),
        "versions": sorted({row["version"] for row in rows if row.get("version")}),
        "inRate": sum(row.get("inRate") or 0.0 for row in masters),
        "outRate": sum(row.get("outRate") or 0.0 for row in rows),
    }
