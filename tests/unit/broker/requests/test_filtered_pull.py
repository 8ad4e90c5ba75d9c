"""Pulls with an SQL92 expression: which messages they return, their codes, and how they share the event
loop."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from epochmq_broker.requests.processors import pull_filters
from epochmq_broker.tables.filters import sql_compiler
from epochmq_broker.tables.filters.message_filter import MessageFilter
from epochmq_protocol import message as records
from epochmq_protocol.bodies import CheckClientRequestBody, SubscriptionData, to_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command
from epochmq_store.statuses import GetResult
from tests.unit.broker.kit import Bench, Peer, bodies, command, pull_command, running, send_command, until
from tests.unit.broker.pull_requests import COMMIT, SUBSCRIPTION, SUSPEND, TOPIC, heartbeat, positions

ON = {"enablePropertyFilter": "true"}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path, ON) as made:
        yield made


def fill(peer: Peer, *values: int | str, topic: str = TOPIC) -> None:
    """Sends one message per value, which is its property `a` and its body."""
    for value in values:
        properties = {"a": str(value)}
        assert peer.call(send_command(topic, str(value).encode(), properties)).code == 0


def sql(text: str, offset: int = 0, **fields: object) -> Command:
    """A pull that carries an expression."""
    return pull_command(TOPIC, offset, subscription=text, expression_type="SQL92", **fields)


async def test_only_messages_that_the_expression_selects_come(bench: Bench) -> None:
    peer = bench.peer()
    fill(peer, 1, 5, 3, 7, 2)
    answer = peer.call(sql("a > 2"))
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert bodies(records.decode_records(answer.body)) == [b"5", b"3", b"7"]
    assert positions(answer) == (5, 0, 5)


async def test_a_pull_without_a_match_is_repeated_behind_the_examined_messages(bench: Bench) -> None:
    peer = bench.peer()
    fill(peer, 1, 2)
    answer = peer.call(sql("a > 2"))
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert positions(answer)[0] == 2


async def test_no_more_messages_come_than_asked_for(bench: Bench) -> None:
    peer = bench.peer()
    fill(peer, *range(10))
    answer = peer.call(sql("a > 2", max_msg_nums=2))
    assert bodies(records.decode_records(answer.body)) == [b"3", b"4"]
    assert positions(answer)[0] == 5


async def test_a_long_search_goes_on_in_later_turns_and_ends_after_rocketmqs_number(tmp_path: Path) -> None:
    async with running(tmp_path, ON | {"maxFilterMessageSize": str(20 * 300)}) as bench:
        peer = bench.peer()
        fill(peer, *range(400))
        opaque = peer.send(sql("a = 250 OR a = 299 OR a = 350"))
        peer.collect()
        assert opaque not in peer.answers
        answer = await peer.answer(opaque)
        assert bodies(records.decode_records(answer.body)) == [b"250", b"299"]
        assert positions(answer)[0] == 300
        answer = await peer.answer(peer.send(sql("a = 350")))
        assert (answer.code, positions(answer)[0]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 300)


async def test_matches_of_all_turns_come_together_up_to_the_limit_of_a_pull(bench: Bench) -> None:
    peer = bench.peer()
    fill(peer, *range(400))
    answer = await peer.answer(peer.send(sql("a ENDSWITH '7'", max_msg_nums=32)))
    found = [int(body) for body in bodies(records.decode_records(answer.body))]
    assert found == list(range(7, 400, 10))[:32]
    assert positions(answer)[0] == 318


async def test_a_carried_expression_that_does_not_compile_selects_everything(bench: Bench) -> None:
    peer = bench.peer()
    fill(peer, 1, 2)
    assert bodies(records.decode_records(peer.call(sql("a >")).body)) == [b"1", b"2"]


async def test_a_registered_expression_filters_pulls_that_carry_none(bench: Bench) -> None:
    peer = bench.peer()
    fill(peer, 1, 5)
    peer.call(heartbeat(tags="a > 2", kind="SQL92", version=7))
    answer = peer.call(pull_command(TOPIC, sys_flag=COMMIT, subscription=None, sub_version=7))
    assert bodies(records.decode_records(answer.body)) == [b"5"]


async def test_a_registered_expression_that_does_not_compile_is_missing(bench: Bench) -> None:
    peer = bench.peer()
    peer.call(heartbeat(tags="a >", kind="SQL92", version=7))
    answer = peer.call(pull_command(TOPIC, sys_flag=COMMIT, sub_version=7))
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST


async def test_a_registered_expression_older_than_the_pull_is_not_latest(bench: Bench) -> None:
    peer = bench.peer()
    peer.call(heartbeat(tags="a > 2", kind="SQL92", version=7))
    bench.broker.tables.clients.groups["group"].subscriptions[TOPIC].sub_version = 9
    answer = peer.call(pull_command(TOPIC, sys_flag=COMMIT, sub_version=9))
    assert answer.code == ResponseCode.FILTER_DATA_NOT_LATEST


async def test_the_subscription_of_a_pull_is_parsed_again_after_a_minute(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = [time.time_ns()]
    monkeypatch.setattr(pull_filters, "time", SimpleNamespace(time_ns=lambda: now_ns[0]))
    peer = bench.peer()
    fill(peer, 5)
    versions = []
    for later_s in (0, 59, 2, 30):
        now_ns[0] += later_s * 1_000_000_000
        assert peer.call(sql("a > 2")).code == ResponseCode.SUCCESS
        found = bench.broker.tables.clients.subscription("group", TOPIC)
        assert found is not None
        versions.append(found.sub_version)
    first, *later = versions
    assert later == [first, first + 61_000, first + 61_000]


async def test_a_held_pull_is_answered_by_a_matching_message_only(bench: Bench) -> None:
    peer, producer = bench.peer(), bench.peer()
    fill(producer, 1)
    flags = SUBSCRIPTION | SUSPEND
    opaque = peer.send(sql("a > 2", 1, sys_flag=flags))
    hold = bench.broker.processors.pull.hold
    assert hold.held == 1
    fill(producer, 2)
    await until(lambda: hold._wake is None)
    assert hold.held == 1
    fill(producer, 3)
    answer = await peer.answer(opaque)
    assert bodies(records.decode_records(answer.body)) == [b"3"]


async def test_the_file_of_registered_expressions_survives_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, ON) as bench:
        bench.peer().call(heartbeat(tags="a > 2", kind="SQL92", version=7))
    row = json.loads((tmp_path / "config" / "consumerFilter.json").read_text())
    assert row["filterDataByTopic"][TOPIC]["groupFilterData"]["group"]["expression"] == "a > 2"
    async with running(tmp_path, ON) as bench:
        found = bench.broker.tables.filters.get(TOPIC, "group")
        assert found is not None
        assert found.data.is_dead


@pytest.mark.parametrize(
    ("kind", "text", "code"),
    [
        ("SQL92", "a > 1", ResponseCode.SUCCESS),
        ("SQL92", "a >", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("XPATH", "a", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("TAG", "a >", ResponseCode.SUCCESS),
    ],
)
async def test_a_consumer_can_check_its_expression(bench: Bench, kind: str, text: str, code: int) -> None:
    data = SubscriptionData(topic=TOPIC, sub_string=text, expression_type=kind)
    body = to_json(CheckClientRequestBody(client_id="c", group="g", subscription_data=data))
    answer = bench.peer().call(command(RequestCode.CHECK_CLIENT_CONFIG, body=body))
    assert answer.code == code
    if code != ResponseCode.SUCCESS:
        assert text in (answer.remark or "") or kind in (answer.remark or "")


async def test_a_retry_topic_is_filtered_by_the_expression_for_the_original_topic(tmp_path: Path) -> None:
    async with running(tmp_path, ON | {"filterSupportRetry": "true"}) as bench:
        peer = bench.peer()
        peer.call(heartbeat(tags="a > 2", kind="SQL92", version=7))
        retry = "%RETRY%group"
        for value in ("1", "5"):
            properties = {"a": value, "RETRY_TOPIC": TOPIC}
            assert peer.call(send_command(retry, value.encode(), properties)).code == 0
        answer = peer.call(pull_command(retry, subscription="b > 1", expression_type="SQL92"))
        assert bodies(records.decode_records(answer.body)) == [b"5"]


async def test_a_response_that_fails_does_not_stop_the_other_gets(bench: Bench) -> None:
    fill(bench.peer(), *range(200))
    pulls, queue = bench.broker.processors.pull, bench.broker.store.queue(TOPIC, 0)
    wanted = MessageFilter(None, lambda _properties: False)
    ended: list[object] = []

    def fail(result: object) -> None:
        raise RuntimeError("no response")

    for done in (fail, ended.append):
        assert pulls._filtered_gets.begin(queue, 0, 32, wanted, done, done) is None
    await until(lambda: ended)
    assert isinstance(ended[0], GetResult)
    assert ended[0].next_offset == 200


class TestBitMaps:
    """With enableConsumeQueueExt and enableCalcFilterBitMap the broker computes which groups select a message
    when it stores it."""

    @pytest.fixture
    async def bench(self, tmp_path: Path) -> AsyncIterator[Bench]:
        keys = {"enableConsumeQueueExt": "true", "enableCalcFilterBitMap": "true"}
        async with running(tmp_path, ON | keys) as made:
            yield made

    async def test_a_message_that_no_bit_selects_is_not_read(self, bench: Bench) -> None:
        peer = bench.peer()
        peer.call(heartbeat(tags="a > 2", kind="SQL92", version=7))
        found = bench.broker.tables.filters.get(TOPIC, "group")
        assert found is not None
        found.data.born_time -= 10
        fill(peer, 1, 5, 2, 7)
        queue = bench.broker.store.queue(TOPIC, 0)
        maps = [queue.extension_unit(code) for _, _, code in queue.units(0, 4)]
        assert [unit is not None and any(unit.bit_map) for unit in maps] == [False, True, False, True]
        answer = peer.call(pull_command(TOPIC, sys_flag=COMMIT, subscription=None, sub_version=7))
        assert bodies(records.decode_records(answer.body)) == [b"5", b"7"]

    async def test_messages_from_before_the_registration_are_read(self, bench: Bench) -> None:
        peer = bench.peer()
        fill(peer, 1, 5)
        peer.call(heartbeat(tags="a > 2", kind="SQL92", version=7))
        answer = peer.call(pull_command(TOPIC, sys_flag=COMMIT, subscription=None, sub_version=7))
        assert bodies(records.decode_records(answer.body)) == [b"5"]

    async def test_mqadmin_sees_the_bit_maps_and_what_they_select(self, bench: Bench) -> None:
        peer = bench.peer()
        peer.call(heartbeat(tags="a > 2", kind="SQL92", version=7))
        found = bench.broker.tables.filters.get(TOPIC, "group")
        assert found is not None
        found.data.born_time -= 10
        fill(peer, 1, 5)
        answer = peer.call(
            command(
                RequestCode.QUERY_CONSUME_QUEUE,
                topic=TOPIC,
                queueId="0",
                index="0",
                count="9",
                consumerGroup="group",
            )
        )
        body = json.loads(answer.body)
        assert json.loads(body["filterData"])["expression"] == "a > 2"
        assert [row["eval"] for row in body["queueData"]] == [False, True]
        assert ["1" in row["bitMap"] for row in body["queueData"]] == [False, True]
        shown = json.loads(body["queueData"][1]["extendDataJson"])
        assert list(shown) == ["filterBitMap", "msgStoreTime", "size", "tagsCode"]
        assert shown["size"] == 34


def long_expression(first: int, terms: int = 200) -> str:
    """An expression that is compiled on a worker thread. It selects `terms` numbers."""
    return " OR ".join(f"a = {number}" for number in range(first, first + terms))


async def test_a_pull_waits_until_a_thread_has_compiled_its_long_expression(bench: Bench) -> None:
    peer, other = bench.peer(), bench.peer(ordinary=True)
    fill(peer, 1, 5_000_001)
    text = long_expression(5_000_000)
    opaques = [(one, one.send(sql(text))) for one in (peer, other, peer)]
    assert peer.connection.in_flight == 2
    assert peer.call(send_command(TOPIC, b"meanwhile")).code == 0
    for one, opaque in opaques:
        answer = await one.answer(opaque)
        assert bodies(records.decode_records(answer.body)) == [b"5000001"]
    assert peer.connection.in_flight == 0
    assert bodies(records.decode_records(peer.call(sql(text)).body)) == [b"5000001"]


async def test_a_pull_with_a_compiled_expression_still_waits_for_messages(bench: Bench) -> None:
    peer = bench.peer()
    fill(peer, 1)
    fields = {"sys_flag": SUBSCRIPTION | SUSPEND, "suspend_timeout_millis": 60_000}
    opaque = peer.send(sql(long_expression(6_000_000), 1, **fields))
    other = peer.send(sql(long_expression(6_000_000)))
    assert (await peer.answer(other)).code == ResponseCode.PULL_RETRY_IMMEDIATELY
    fill(bench.peer(), 6_000_007)
    assert bodies(records.decode_records((await peer.answer(opaque)).body)) == [b"6000007"]


async def test_a_long_expression_that_does_not_compile_selects_every_message(bench: Bench) -> None:
    peer = bench.peer()
    fill(peer, 1, 2)
    answer = await peer.answer(peer.send(sql(long_expression(7_000_000) + " OR")))
    assert bodies(records.decode_records(answer.body)) == [b"1", b"2"]


async def test_the_pulls_that_wait_for_the_compiler_are_bounded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_compiler, "WAITING_MAX", 1)
    peer = bench.peer()
    fill(peer, 8_000_000)
    first = peer.send(sql(long_expression(8_000_000)))
    assert peer.call(sql(long_expression(8_000_001))).code == ResponseCode.SYSTEM_BUSY
    assert bodies(records.decode_records((await peer.answer(first)).body)) == [b"8000000"]
