"""A broker's metrics under RocketMQ's names: what is counted, for whom, and the bounds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_broker.admin_api import rocketmq_metrics
from epochmq_broker.admin_api.rocketmq_metrics import RocketMQMetrics
from epochmq_broker.sidecar.metrics import ROCKETMQ_HELP
from epochmq_protocol.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData, to_json
from epochmq_protocol.codes import RequestCode, version_name
from tests.unit.broker.kit import UNIQ_KEY, Bench, Peer, command, pull_command, running, send_command

TOPIC = "BenchmarkTest"
OTHER = "created-by-the-first-message"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as made:
        yield made


async def collected(bench: Bench, name: str, *wanted: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by these labels."""
    broker = bench.broker
    samples = await RocketMQMetrics(broker.store, broker.tables).collect(broker.live.current)
    assert {sample.name for sample in samples} <= ROCKETMQ_HELP.keys()
    return {
        tuple(sample.labels[label] for label in wanted): sample.value
        for sample in samples
        if sample.name == name
    }


def send(peer: Peer, topic: str = TOPIC, **properties: str) -> None:
    assert peer.call(send_command(topic, b"x", {"UNIQ_KEY": UNIQ_KEY} | properties)).code == 0


def join(peer: Peer) -> None:
    """Registers a push consumer and a producer."""
    subscription = SubscriptionData(topic=TOPIC, sub_string="*", sub_version=1, expression_type="TAG")
    consumer = ConsumerData(
        group_name="group",
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=[subscription],
    )
    data = HeartbeatData(
        client_id="client", consumer_data_set=[consumer], producer_data_set=[ProducerData("producers")]
    )
    assert peer.call(command(RequestCode.HEART_BEAT, body=to_json(data))).code == 0


@pytest.mark.parametrize("ordinary", [False, True])
async def test_stored_messages_are_counted_by_topic_and_type(bench: Bench, ordinary: bool) -> None:
    peer = bench.peer(ordinary=ordinary)
    send(peer)
    send(peer)
    send(peer, __SHARDINGKEY="k")
    send(peer, DELAY="3")
    found = await collected(bench, "messages_in_total", "topic", "message_type", "is_system")
    assert found[TOPIC, "normal", "true"] == 2
    assert found[TOPIC, "fifo", "true"] == 1
    assert found["SCHEDULE_TOPIC_XXXX", "delay", "true"] == 1
    size = await collected(bench, "throughput_in_total", "topic", "message_type")
    assert size[TOPIC, "normal"] == pytest.approx(2 * size[TOPIC, "fifo"], rel=0.2)


async def test_fetched_messages_and_the_lag_are_counted_by_group(bench: Bench) -> None:
    peer = bench.peer()
    for _ in range(5):
        send(peer)
    join(peer)
    assert peer.call(pull_command(TOPIC, 0, max_msg_nums=3)).code == 0
    bench.broker.offsets.commit("group", TOPIC, 0, 1)
    labels = ("consumer_group", "topic")
    assert await collected(bench, "messages_out_total", *labels) == {("group", TOPIC): 3}
    assert await collected(bench, "consumer_lag_messages", *labels) == {("group", TOPIC): 4}
    assert await collected(bench, "consumer_ready_messages", *labels) == {("group", TOPIC): 2}
    assert await collected(bench, "consumer_inflight_messages", *labels) == {("group", TOPIC): 2}
    latency = await collected(bench, "consumer_lag_latency_milliseconds", *labels)
    assert 0 <= latency["group", TOPIC] < 60_000


async def test_connections_are_counted_by_language_and_version(bench: Bench) -> None:
    join(bench.peer())
    assert await collected(bench, "producer_connections", "language", "version", "protocol_type") == {
        ("python", "v5_3_3", "remoting"): 1
    }
    assert await collected(bench, "consumer_connections", "consumer_group", "consume_mode") == {
        ("group", "push"): 1
    }


async def test_a_metric_has_a_bounded_number_of_series(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocketmq_metrics, "SERIES_MAX", 1)
    send(bench.peer(), TOPIC)
    send(bench.peer(), OTHER)
    assert len(await collected(bench, "messages_in_total", "topic")) == 1


@pytest.mark.parametrize(
    ("number", "name"),
    [(479, "V5_3_3"), (478, "V5_3_3_SNAPSHOT"), (399, "V4_9_3"), (213, "V4_0_0"), (37, "37"), (612, "612")],
)
def test_a_version_has_rocketmqs_name(number: int, name: str) -> None:
    assert version_name(number) == name
