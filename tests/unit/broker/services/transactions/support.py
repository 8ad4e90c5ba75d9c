"""Sends half messages to a broker without ports, and ends their transactions."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from epochmq_broker.config.clock import now_ms
from epochmq_protocol import message as records
from epochmq_protocol.bodies import HeartbeatData, ProducerData, to_json
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_client import EndTransactionRequestHeader, HeartbeatRequestHeader
from epochmq_protocol.message import MessageExt
from tests.unit.broker.kit import UNIQ_KEY, Bench, Peer, send_command

HALF, OP, DISCARDED = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
GROUP = "CID_RMQ_SYS_TRANS"
QUICK = {
    "transactionCheckInterval": "50",
    "transactionTimeOut": "1",
    "transactionOpBatchInterval": "20",
}
"""Settings with which checks come soon."""
QUIET = {"transactionCheckInterval": "3600000", "transactionOpBatchInterval": "3600000"}
"""Settings with which nothing happens by itself."""


def half_properties(**more: str) -> dict[str, str]:
    """The properties of a Java client's message in a transaction."""
    return {
        "UNIQ_KEY": UNIQ_KEY,
        "WAIT": "true",
        "TAGS": "a",
        "TRAN_MSG": "true",
        "PGROUP": "producers",
        **more,
    }


def half_command(
    topic: str = "T", body: bytes = b"half", properties: Mapping[str, str] | None = None, **fields: Any
) -> Command:
    """A send in a transaction."""
    values = {"sys_flag": 4, "born_timestamp": now_ms(), "queue_id": 1} | fields
    return send_command(topic, body, half_properties() if properties is None else properties, **values)


def end_command(half: MessageExt, kind: int = COMMIT, **fields: Any) -> Command:
    """An END_TRANSACTION for a half message."""
    values: dict[str, Any] = {
        "producer_group": "producers",
        "tran_state_table_offset": half.queue_offset,
        "commit_log_offset": half.physical_offset,
        "commit_or_rollback": kind,
        "from_transaction_check": False,
        "msg_id": UNIQ_KEY,
    }
    return request(RequestCode.END_TRANSACTION, EndTransactionRequestHeader(**(values | fields)))


def send_half(bench: Bench, **arguments: Any) -> MessageExt:
    """Sends a half message, and returns its record."""
    at = bench.count(HALF)
    assert bench.peer().call(half_command(**arguments)).code == 0
    return bench.record(HALF, 0, at)


def producer(bench: Bench, group: str = "producers") -> Peer:
    """A client that is registered as a producer."""
    peer = bench.peer()
    body = to_json(HeartbeatData(client_id="client", producer_data_set=[ProducerData(group_name=group)]))
    answer = peer.call(request(RequestCode.HEART_BEAT, HeartbeatRequestHeader(), body))
    assert answer.code == 0
    return peer


def checks(peer: Peer) -> list[Command]:
    """The CHECK_TRANSACTION_STATE requests that a client got."""
    peer.collect()
    return [one for one in peer.requests if one.code == RequestCode.CHECK_TRANSACTION_STATE]


def copy_as_killed(directory: Path, copy_to: Path) -> None:
    """Copies the directory of a running broker: what a kill would leave."""
    shutil.copytree(directory, copy_to, ignore=shutil.ignore_patterns("*.tmp"))


def ops(bench: Bench) -> list[bytes]:
    """The bodies of all op messages."""
    return [bench.record(OP, 0, offset).body for offset in range(bench.count(OP))]


def offsets(bench: Bench) -> tuple[int | None, int | None]:
    """The stored offsets of the checks: of the half queue and of the op queue."""
    table = bench.broker.offsets
    return table.query(GROUP, HALF, 0), table.query(GROUP, OP, 0)


def properties_of(message: MessageExt) -> dict[str, str]:
    """The properties of a record."""
    return records.parse_properties(message.properties)
