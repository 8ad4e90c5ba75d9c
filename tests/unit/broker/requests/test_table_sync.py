"""The consume stats of all groups, and the tables that slaves copy."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from epochmq_broker.requests.processors.table_sync import TableSyncProcessor
from epochmq_protocol.bodies import ConsumeStatsList, from_json
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.headers_admin import GetConsumeStatsInBrokerHeader
from epochmq_protocol.transport.connection import RemotingConnection
from tests.unit.broker.kit import Bench, command, pull_command, running, send_command


async def _stats(bench: Bench, *, is_order: bool = False) -> ConsumeStatsList:
    header = GetConsumeStatsInBrokerHeader(is_order=is_order)
    peer = bench.peer()
    answer = await peer.answer(peer.send(command(RequestCode.GET_BROKER_CONSUME_STATS, header)))
    assert answer.code == 0, answer.remark
    return from_json(ConsumeStatsList, answer.body)


async def test_consume_stats_contain_the_lag_of_every_group_in_every_topic(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        for topic, count in (("bills", 2), ("orders", 3)):
            for _ in range(count):
                assert bench.peer().call(send_command(topic)).code == 0
            pulled = bench.peer().call(pull_command(topic, group="readers", sys_flag=5, commit_offset=1))
            assert pulled.code == 0
        found = await _stats(bench)
        rows = {group: rows for entry in found.consume_stats_list for group, rows in entry.items()}
        lags = {
            queue.topic: row.broker_offset - row.consumer_offset
            for stats in rows["readers"]
            for queue, row in stats.offset_table.items()
            if row.consumer_offset > 0
        }
        assert lags == {"bills": 1, "orders": 2}
        assert found.total_diff == sum(lags.values())
        ordered = await _stats(bench, is_order=True)
        assert {group: rows for entry in ordered.consume_stats_list for group, rows in entry.items()}[
            "readers"
        ] == []


async def test_a_group_that_only_pulls_is_known_by_the_subscriptions_of_its_pulls(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        assert bench.peer().call(send_command("orders")).code == 0
        assert bench.broker.tables.clients.subscription("pullers", "orders") is None
        pull = pull_command("orders", group="pullers", subscription="TagA", sys_flag=4)
        bench.peer().send(pull)
        found = bench.broker.tables.clients.subscription("pullers", "orders")
        assert found is not None
        assert found.sub_string == "TagA"


def test_a_table_is_encoded_once_per_state() -> None:
    class Modes:
        changes = 1
        encoded = 0

        def encode(self) -> bytes:
            self.encoded += 1
            return b"%d" % self.changes

    request_modes = Modes()
    parts: Any = SimpleNamespace(
        topics=SimpleNamespace(on_change=[]),
        groups=SimpleNamespace(on_change=[]),
        offsets=None,
        static_topics=None,
        delays=SimpleNamespace(encode=lambda: b""),
    )
    ask = TableSyncProcessor(parts, cast(Any, request_modes)).handlers()[
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
    ]
    connection = cast(RemotingConnection, None)
    bodies = []
    for changes in (1, 1, 2, 2):
        request_modes.changes = changes
        answer: Any = ask(connection, command(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE))
        bodies.append(answer.body)
    assert bodies == [b"1", b"1", b"2", b"2"]
    assert request_modes.encoded == 2
