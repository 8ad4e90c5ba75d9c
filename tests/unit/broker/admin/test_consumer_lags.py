"""The lag of a group counts the messages that the group selects, and those that it has popped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_broker.admin import consumer_lags
from epochmq_broker.admin.consumer_lags import Bounds, ConsumerLags
from epochmq_broker.config.broker_config import from_properties
from epochmq_protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData, to_json
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.javahash import java_hash
from tests.unit.broker.admin.test_rocketmq_metrics import collected
from tests.unit.broker.kit import UNIQ_KEY, Bench, Peer, command, pull_command, running, send_command

TOPIC = "BenchmarkTest"
LABELS = ("consumer_group", "topic", "is_retry")
MATCHING = {"TAG": "red || green", "SQL92": "color IN ('red', 'green')"}
COLORS = ("red", "blue", "blue", "green", "blue")


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path, {"enablePropertyFilter": "true"}) as made:
        yield made


def send(peer: Peer, messages: int) -> None:
    for number in range(messages):
        color = COLORS[number % len(COLORS)]
        properties = {"UNIQ_KEY": UNIQ_KEY, "TAGS": color, "color": color}
        assert peer.call(send_command(TOPIC, b"x", properties)).code == 0


def join(peer: Peer, expression_type: str, *, consume_type: str = "CONSUME_PASSIVELY") -> None:
    """Registers a consumer of two colors."""
    tags = {"red", "green"} if expression_type == "TAG" else set()
    subscription = SubscriptionData(
        topic=TOPIC,
        sub_string=MATCHING[expression_type],
        sub_version=1,
        expression_type=expression_type,
        tags_set=tags,
        code_set={java_hash(tag) for tag in tags},
    )
    consumer = ConsumerData(
        group_name="group",
        consume_type=consume_type,
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=[subscription],
    )
    data = HeartbeatData(client_id="client", consumer_data_set=[consumer])
    assert peer.call(command(RequestCode.HEART_BEAT, body=to_json(data))).code == 0


@pytest.mark.parametrize("expression_type", MATCHING)
async def test_the_lag_counts_the_messages_that_the_group_selects(bench: Bench, expression_type: str) -> None:
    peer = bench.peer()
    send(peer, 20)
    join(peer, expression_type)
    assert peer.call(pull_command(TOPIC, 0, max_msg_nums=2)).code == 0
    bench.broker.offsets.commit_pull("group", TOPIC, 0, 10)
    bench.broker.offsets.commit("group", TOPIC, 0, 5)
    key = ("group", TOPIC, "false")
    assert await collected(bench, "consumer_lag_messages", *LABELS) == {key: 6}
    assert await collected(bench, "consumer_ready_messages", *LABELS) == {key: 4}
    assert await collected(bench, "consumer_inflight_messages", *LABELS) == {key: 2}
    bench.broker.offsets.commit("group", TOPIC, 0, 15)  # beyond what the broker knows as pulled
    assert await collected(bench, "consumer_lag_messages", *LABELS) == {key: 2}


async def test_every_message_counts_without_estimate_accumulation(tmp_path: Path) -> None:
    async with running(tmp_path, {"estimateAccumulation": "false"}) as bench:
        peer = bench.peer()
        send(peer, 10)
        join(peer, "TAG")
        bench.broker.offsets.commit("group", TOPIC, 0, 0)
        assert await collected(bench, "consumer_lag_messages", *LABELS) == {("group", TOPIC, "false"): 10}


async def test_the_lag_of_a_group_that_pops_has_what_is_in_flight(bench: Bench) -> None:
    peer = bench.peer()
    send(peer, 20)
    join(peer, "TAG", consume_type="CONSUME_POP")
    bench.broker.offsets.commit("group", TOPIC, 0, 10)
    bench.broker.pop.in_flight.add(TOPIC, "group", 0, 3)
    first, retry = ("group", TOPIC, "false"), ("group", TOPIC, "true")
    assert await collected(bench, "consumer_lag_messages", *LABELS) == {first: 7, retry: 0}
    assert await collected(bench, "consumer_ready_messages", *LABELS) == {first: 4, retry: 0}
    assert await collected(bench, "consumer_inflight_messages", *LABELS) == {first: 3, retry: 0}
    retries = "%RETRY%group_" + TOPIC
    assert peer.call(send_command(retries, b"x", {"UNIQ_KEY": UNIQ_KEY})).code == 0
    bench.broker.offsets.commit("group", retries, 0, 0)
    assert await collected(bench, "consumer_lag_messages", *LABELS) == {first: 7, retry: 1}


async def test_a_consumer_without_heartbeats_has_a_lag(bench: Bench) -> None:
    peer = bench.peer()
    send(peer, 4)
    assert peer.call(pull_command(TOPIC, 0, max_msg_nums=1)).code == 0
    assert await collected(bench, "consumer_ready_messages", *LABELS) == {("group", TOPIC, "false"): 3}


def test_the_bounds_shrink_with_the_number_of_queues() -> None:
    config = from_properties({"brokerName": "b", "maxConsumeQueueScan": "30000"}).config
    assert Bounds.of(config, 1) == (30_000, 5000, 512)
    assert Bounds.of(config, 1000) == (1000, 5000, 20)
    assert Bounds.of(config, 10**6) == (100, 5000, 16)


async def test_a_large_lag_is_estimated_from_a_sample(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = bench.peer()
    send(peer, 200)
    join(peer, "SQL92")
    bench.broker.offsets.commit("group", TOPIC, 0, 0)
    group = bench.broker.tables.clients.group("group")
    assert group is not None
    lags = ConsumerLags(bench.broker.store, bench.broker.tables, bench.broker.pop)
    examined: list[int] = []
    reader = bench.broker.store.reader
    count = reader.count_selected

    def counting(*place: object) -> object:
        found = count(*place)
        examined.append(found.examined)
        return found

    monkeypatch.setattr(type(reader), "count_selected", lambda _self, *place: counting(*place))
    found = lags.of_queue(group, TOPIC, 0, Bounds(20_000, 5000, 50))
    assert found.lag == 80
    assert examined
    assert max(examined) == 50
    assert consumer_lags.MESSAGES_PER_QUEUE >= 50
