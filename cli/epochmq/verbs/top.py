"""Implements `epochmq top`: brokers and consumer groups with their rates and lags, live or once."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from epochmq.client.admin import AdminClient
from epochmq.exits import ExitCode, error_text
from epochmq.verbs import cluster, group
from epochmq.verbs.cluster_calls import ClusterVerb
from epochmq.verbs.output import Column, OutputTable, ResultFormat, VerbResult, format_result, print_result
from epochmq_protocol.errors import EpochMQError

GROUPS_MAX = 200
"""How many consumer groups are shown: those with the longest lags."""
GROUPS_READ_MAX = 1000
BROKER_COLUMNS = (
    Column("BROKER", "broker"),
    Column("ID", "id"),
    Column("ROLE", "role"),
    Column("STATE", "state"),
    Column("IN/S", "inRate"),
    Column("OUT/S", "outRate"),
    Column("BYTES BEHIND", "bytesBehind"),
    Column("ADDRESS", "address", is_wide=True),
    Column("VERSION", "version", is_wide=True),
)
GROUP_COLUMNS = (Column("GROUP", "group"), Column("LAG", "lag"), Column("LAG/S", "lagRate"))


async def read(client: AdminClient) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The brokers by `BROKER_COLUMNS`, and the lags of consumer groups."""
    rows = await cluster.brokers_with_lag(client)
    return rows, await group.lags_of_groups(client, GROUPS_READ_MAX)


def result_of(
    brokers: list[dict[str, Any]], lags: dict[str, int], former: dict[str, int] | None, span_s: float
) -> VerbResult:
    """What is shown. `former` are the lags `span_s` seconds before; None: the first look, without a rate."""
    longest = sorted(lags, key=lambda name: (-lags[name], name))[:GROUPS_MAX]
    groups = [
        {
            "group": name,
            "lag": lags[name],
            "lagRate": None
            if former is None or name not in former or span_s <= 0
            else round((lags[name] - former[name]) / span_s, 1),
        }
        for name in longest
    ]
    shown = [{key: row.get(key) for key in (column.field for column in BROKER_COLUMNS)} for row in brokers]
    tables = [
        OutputTable(BROKER_COLUMNS, shown, "Brokers"),
        OutputTable(GROUP_COLUMNS, groups, "Consumer groups"),
    ]
    names = [f"{row['broker']}:{row['id']}" for row in brokers]
    return VerbResult({"brokers": shown, "groups": groups}, tables, names)


def run(verb: ClusterVerb, *, once: bool, interval_s: float) -> int:
    """Shows the cluster until Ctrl-C. Prints it once with `once`, where the output is no terminal, and in the
    formats for programs."""
    programs = (ResultFormat.JSON, ResultFormat.YAML, ResultFormat.NAME)
    if once or verb.output in programs or not sys.stdout.isatty():
        brokers, lags = verb.run(read)
        print_result(result_of(brokers, lags, None, 0.0), verb.output)
        return ExitCode.OK

    async def live(client: AdminClient) -> int:
        from rich.live import Live
        from rich.text import Text

        clock = asyncio.get_running_loop().time
        former: dict[str, int] | None = None
        before_s = clock()
        with Live(Text("reading …"), screen=True, auto_refresh=False) as view:
            while True:
                try:
                    brokers, lags = await read(client)
                except EpochMQError as error:
                    shown = f"{error_text(error)}\n"
                else:
                    now_s = clock()
                    result = result_of(brokers, lags, former, now_s - before_s)
                    shown = format_result(result, verb.output)
                    former, before_s = lags, now_s
                hint = f"every {interval_s:g} s; Ctrl-C ends it"
                view.update(Text(f"{shown}\n{hint}"), refresh=True)
                await asyncio.sleep(interval_s)

    return verb.run(live)
