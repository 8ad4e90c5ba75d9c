"""Implements `epochmq broker list` and `describe`, and `epochmq config`: brokers and their settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from epochmq.client.admin import AdminClient, BrokerAddress
from epochmq.exits import ExitCode, UsageError, print_error
from epochmq.verbs.cluster_calls import ClusterVerb, confirm
from epochmq.verbs.output import Column, OutputTable, VerbResult, print_result
from epochmq_protocol import properties
from epochmq_protocol.admin_api.common_operations import SECRET_KEY_WORDS
from epochmq_protocol.bodies import KVTable
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.errors import EpochMQError

HIDDEN = "(hidden)"
BROKER_COLUMNS = (
    Column("CLUSTER NAME", "cluster"),
    Column("BROKER", "broker"),
    Column("ID", "id"),
    Column("ADDRESS", "address"),
    Column("VERSION", "version"),
    Column("IN/S", "inRate"),
    Column("OUT/S", "outRate"),
    Column("STATE", "state"),
    Column("STARTED", "started", is_time=True, is_wide=True),
    Column("DISK", "diskRatio", is_wide=True),
)


def list_brokers(verb: ClusterVerb) -> int:
    """Prints the registered brokers; one that does not respond has the reason as its state."""

    async def action(client: AdminClient) -> VerbResult:
        rows = await client.gather(lambda one: broker_row(client, one), await client.brokers())
        return VerbResult(rows, [OutputTable(BROKER_COLUMNS, rows)], [row["address"] for row in rows])

    print_result(verb.run(action), verb.output)
    return ExitCode.OK


async def broker_row(client: AdminClient, broker: BrokerAddress) -> dict[str, Any]:
    """What a broker says of itself; one that does not respond has the reason as its state."""
    row: dict[str, Any] = {
        "cluster": broker.cluster,
        "broker": broker.broker_name,
        "id": broker.broker_id,
        "address": broker.address,
    }
    try:
        known = await read_runtime(client, broker)
    except EpochMQError as error:
        return row | {"state": str(error)}
    return row | {
        "state": "serves",
        "version": known.get("brokerVersionDesc"),
        "inRate": _first_number(known.get("putTps")),
        "outRate": _first_number(known.get("getTransferredTps")),
        "started": int(known.get("bootTimestamp") or 0),
        "diskRatio": known.get("commitLogDiskRatio"),
        "logEnd": _whole_number(known.get("commitLogMaxOffset")),
    }


def _first_number(text: str | None) -> float | None:
    words = (text or "").split()
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


def _whole_number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 20 else None


async def read_runtime(client: AdminClient, broker: BrokerAddress) -> dict[str, str]:
    """What a broker says of itself: RocketMQ's runtime information."""
    return (await client.read(KVTable, broker.address, RequestCode.GET_BROKER_RUNTIME_INFO)).table


def describe_broker(verb: ClusterVerb, name: str) -> int:
    """Prints what the brokers of a group say of themselves (RocketMQ's runtime information)."""

    async def action(client: AdminClient) -> VerbResult:
        brokers = await client.brokers(broker_names=[name])
        tables = await client.gather(lambda one: read_runtime(client, one), brokers)
        documents = [
            {"broker": one.broker_name, "id": one.broker_id, "address": one.address, "runtime": known}
            for one, known in zip(brokers, tables, strict=True)
        ]
        shown = [
            OutputTable(
                (Column("KEY", "key"), Column("VALUE", "value")),
                [{"key": key, "value": value} for key, value in sorted(known.items())],
                f"{one.broker_name} (id {one.broker_id}) at {one.address}",
            )
            for one, known in zip(brokers, tables, strict=True)
        ]
        return VerbResult(documents, shown, [one.address for one in brokers])

    print_result(verb.run(action), verb.output)
    return ExitCode.OK


async def read_settings_of(client: AdminClient, broker: BrokerAddress) -> dict[str, str]:
    """The settings of a broker. Values of keys that hold secrets are hidden."""
    response = await client.call(broker.address, RequestCode.GET_BROKER_CONFIG)
    known = properties.parse(response.body.decode(errors="replace"))
    return {key: HIDDEN if _is_secret(key) and value else value for key, value in sorted(known.items())}


def _is_secret(key: str) -> bool:
    return any(word in key.lower() for word in SECRET_KEY_WORDS)


def get(verb: ClusterVerb, keys: Sequence[str], broker_names: Sequence[str]) -> int:
    """Prints settings of brokers: all, or those of the keys."""
    rows, _ = _read(verb, broker_names)
    _reject_unknown(keys, rows)
    _print([row for row in rows if not keys or row["key"] in keys], verb)
    return ExitCode.OK


def _reject_unknown(keys: Iterable[str], rows: Sequence[dict[str, Any]]) -> None:
    """Raises UsageError for keys that no broker has. A broker accepts them, and nothing changes."""
    there = {row["key"] for row in rows}
    missing = [key for key in keys if key not in there]
    if missing:
        raise UsageError(f"KEY {', '.join(missing)}: no broker has such a setting")


def diff(verb: ClusterVerb, broker_names: Sequence[str]) -> int:
    """Prints the settings that are not the same at all brokers."""
    rows, brokers = _read(verb, broker_names)
    values: dict[str, set[str]] = {}
    counts: dict[str, int] = {}
    for row in rows:
        values.setdefault(row["key"], set()).add(row["value"])
        counts[row["key"]] = counts.get(row["key"], 0) + 1
    shown = [row for row in rows if len(values[row["key"]]) > 1 or counts[row["key"]] < len(brokers)]
    _print(sorted(shown, key=lambda row: (row["key"], row["broker"], row["id"])), verb)
    if not shown:
        print_error(f"all settings of the {len(brokers)} brokers are the same")
    return ExitCode.OK


def change(
    verb: ClusterVerb, changes: Mapping[str, str], broker_names: Sequence[str], *, dry_run: bool, yes: bool
) -> int:
    """Changes settings of running brokers, and prints the old and the new values."""
    if not changes:
        raise UsageError("expected KEY=VALUE")
    for key, value in changes.items():
        if "\n" in value or "\r" in value:
            raise UsageError(f"{key}: expected a value of one line")
    rows, brokers = _read(verb, broker_names)
    # Brokers leave keys with passwords out of what they show.
    _reject_unknown((key for key in changes if not _is_secret(key)), rows)
    known = {(row["address"], row["key"]): row["value"] for row in rows}
    planned = [
        {
            "broker": one.broker_name,
            "id": one.broker_id,
            "key": key,
            "value": known.get((one.address, key)),
            "newValue": value if not _is_secret(key) else HIDDEN,
        }
        for one in brokers
        for key, value in changes.items()
    ]
    columns = (*SETTING_COLUMNS, Column("NEW VALUE", "newValue"))
    print_result(VerbResult(planned, [OutputTable(columns, planned)], list(changes)), verb.output)
    if dry_run:
        print_error("nothing was changed (--dry-run)")
        return ExitCode.OK
    where = "1 broker" if len(brokers) == 1 else f"{len(brokers)} brokers"
    confirm(f"Change {', '.join(changes)} of {where}?", yes=yes)
    body = properties.format(changes).encode()

    async def action(client: AdminClient) -> None:
        async def write(broker: BrokerAddress) -> None:
            await client.call(broker.address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

        await client.gather(write, brokers)

    verb.run(action)
    return ExitCode.OK


SETTING_COLUMNS = (
    Column("BROKER", "broker"),
    Column("ID", "id"),
    Column("KEY", "key"),
    Column("VALUE", "value"),
)


def _read(verb: ClusterVerb, broker_names: Sequence[str]) -> tuple[list[dict[str, Any]], list[BrokerAddress]]:
    async def action(client: AdminClient) -> tuple[list[dict[str, Any]], list[BrokerAddress]]:
        brokers = await client.brokers(broker_names=broker_names)
        tables = await client.gather(lambda one: read_settings_of(client, one), brokers)
        rows = [
            {
                "broker": one.broker_name,
                "id": one.broker_id,
                "key": key,
                "value": value,
                "address": one.address,
            }
            for one, known in zip(brokers, tables, strict=True)
            for key, value in known.items()
        ]
        return rows, brokers

    return verb.run(action)


def _print(rows: Sequence[dict[str, Any]], verb: ClusterVerb) -> None:
    names = sorted({row["key"] for row in rows})
    print_result(VerbResult(list(rows), [OutputTable(SETTING_COLUMNS, rows)], names), verb.output)
