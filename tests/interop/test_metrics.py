"""A broker's metrics beside those of RocketMQ's broker and its Prometheus exporter: after the same requests
both have the same metrics, of the same type, with the same labels and bounds of buckets, and the counts of
the requests are the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.interop.java_cluster import JavaCluster
from tests.support.cluster import Cluster, OurCluster
from tests.support.net import free_port, loopback
from tests.support.process import wait_holds, wait_until
from tests.support.remoting import Response, call
from tests.support.sidecar import Sidecar

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

OCTET = 93
SEND, PULL, POP, ACK, END_TRANSACTION = 310, 11, 200050, 200051, 37
UPDATE_TOPIC, UPDATE_GROUP, HEARTBEAT, UNKNOWN_CODE = 17, 200, 34, 9999
TOPIC, GROUP = "orders", "readers"
HALF, TIMER = "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"
SIZES = (100, 100, 3000, 600_000, 1_500_000)
POP_INVISIBLE_MS = 10_000
DELAY_S, DELAY_LEVEL = 1800, "18"
"""Half an hour and two hours. Delays are counted from the birth of a message to its delivery time, so each
must stay between two bounds of the buckets (10 min, 1 h, 12 h) when a broker stores the message late."""

CONSUMER_LAG = tuple(
    f"rocketmq_consumer_{name}"
    for name in (
        "lag_messages", "lag_latency_milliseconds", "inflight_messages", "queueing_latency_milliseconds",
        "ready_messages",
    )
)  # fmt: skip
"""These need a consumer that is online; to RocketMQ one that has popped is."""
POPPED_LABEL = "is_retry"
"""RocketMQ has it at the messages that were popped, and not at those that were pulled."""


def without_scope(text: str) -> str:
    """The text of RocketMQ's exporter (OpenTelemetry 1.29) as Prometheus reads it: without the label of the
    scope, and with the unit in the name of the type, which this exporter forgets there."""
    lines = (
        text.replace('otel_scope_name="broker-meter",', "")
        .replace('otel_scope_name="broker-meter"', "")
        .splitlines()
    )
    kept: list[str] = []
    for number, line in enumerate(lines):
        if line.startswith("# TYPE rocketmq_"):
            _, _, name, kind = line.split(" ")
            sample = lines[number + 2].partition("{")[0]
            for unit in ("milliseconds", "seconds", "bytes"):
                if sample.startswith(f"{name}_{unit}"):
                    name = f"{name}_{unit}"
                    break
            kept.append(f"# TYPE {name} {kind}")
        elif line.startswith("rocketmq_"):
            kept.append(line)
    return "\n".join(kept) + "\n"


class Side:
    """One of the two brokers, and where its metrics are."""

    def __init__(self, cluster: Cluster, url: str) -> None:
        self.cluster = cluster
        self.url = url

    def metrics(self) -> dict[str, Metric]:
        """The metrics of RocketMQ by name."""
        text = without_scope(httpx.get(self.url, timeout=60).text)
        return {
            family.name: family
            for family in text_string_to_metric_families(text)
            if family.name.startswith("rocketmq_") and family.name not in CONSUMER_LAG
        }

    def call(self, code: int, ext: dict[str, str], body: bytes = b"") -> Response:
        """One request."""
        return call(self.cluster.broker_address, code, ext, body)

    def send(self, number: int, size: int, *, sys_flag: int = 0, **properties: str) -> Response:
        """One message."""
        words = {"UNIQ_KEY": f"{number:032X}", "WAIT": "true", **properties}
        header = {
            "a": "producers", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": str(sys_flag),
            "g": str(int(time.time() * 1000)), "h": "0",
            "i": "".join(f"{name}\x01{value}\x02" for name, value in words.items()),
            "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        response = self.call(SEND, header, bytes(size))
        assert response.code == 0, response
        return response

    def run(self) -> None:
        """The requests whose traces the metrics show."""
        created = {
            "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
            "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        assert self.call(UPDATE_TOPIC, created).code == 0
        assert self.call(UPDATE_TOPIC, created | {"topic": "bad!name"}).code != 0
        assert self.call(UPDATE_GROUP, {}, b'{"groupName":"readers"}').code == 0
        for number, size in enumerate(SIZES):
            self.send(number, size)
        self.send(10, 100, TIMER_DELAY_SEC=str(DELAY_S))
        self.send(11, 100, DELAY=DELAY_LEVEL)
        half = self.send(12, 100, sys_flag=4, TRAN_MSG="true", PGROUP="producers")
        end = {
            "producerGroup": "producers", "tranStateTableOffset": "0", "commitOrRollback": "8",
            "commitLogOffset": str(int(half.ext["msgId"][-16:], 16)), "fromTransactionCheck": "false",
            "msgId": f"{12:032X}", "transactionId": f"{12:032X}", "topic": TOPIC,
        }  # fmt: skip
        assert self.call(END_TRANSACTION, end).code == 0
        pull = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
            "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        assert self.call(PULL, pull).code == 0
        assert self.call(UNKNOWN_CODE, {}).code == 3
        self._pop()

    def _pop(self) -> None:
        """Pops two messages and acknowledges one of them."""
        pop = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "maxMsgNums": "2",
            "invisibleTime": str(POP_INVISIBLE_MS), "pollTime": "0", "bornTime": "0",
            "initMode": "0", "expType": "TAG", "exp": "*",
        }  # fmt: skip
        found = self.call(POP, pop)
        assert found.code == 0, found
        ext = found.ext
        start = ext["startOffsetInfo"].split(" ")[-1]
        info = (
            f"{start} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']} 0 "
            f"{self.cluster.broker_name} 0 {start}"
        )
        ack = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "extraInfo": info, "offset": start}
        assert self.call(ACK, ack).code == 0


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """EpochMQ's broker with a sidecar, and RocketMQ's with its exporter, after the same requests."""
    directory = tmp_path_factory.mktemp("metrics")
    sidecar = Sidecar(directory / "admin", octet=OCTET)
    host = loopback(OCTET)
    port = free_port(host)
    exporter = {
        "metricsExporterType": "PROM",
        "metricsPromExporterHost": host,
        "metricsPromExporterPort": port,
    }
    quick = {"enablePopBufferMerge": False, "popCkStayBufferTime": 10_000}
    ours = OurCluster(
        directory / "ours", broker={**quick, "adminSocketPath": str(sidecar.socket)}, octet=OCTET
    )
    java = JavaCluster(directory / "java", broker={**quick, **exporter}, octet=OCTET)
    clusters = (ours, java)
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda cluster: cluster.start(), clusters))
        sidecar.start()
        made = (
            Side(ours, f"http://{sidecar.host}:{sidecar.port}/metrics"),
            Side(java, f"http://{host}:{port}/metrics"),
        )
        for side in made:
            side.run()
        for side in made:
            wait_until(
                lambda side=side: "rocketmq_pop_revive_retry_messages" in side.metrics(),
                timeout_s=120,
                what="a message is revived",
            )
        yield made
    finally:
        sidecar.kill()
        for cluster in clusters:
            cluster.abandon()


def values(family: Metric, ending: str = "") -> dict[tuple[tuple[str, str], ...], float]:
    """The samples with this end of their name: sorted labels → value."""
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for sample in family.samples
        if sample.name == family.name + ending
    }


def test_both_have_the_same_metrics_of_the_same_types(sides: tuple[Side, Side]) -> None:
    def check() -> None:
        ours, java = (side.metrics() for side in sides)
        assert {name: family.type for name, family in ours.items()} == {
            name: family.type for name, family in java.items()
        }

    wait_holds(check)


def test_the_labels_and_the_bounds_of_the_buckets_are_the_same(sides: tuple[Side, Side]) -> None:
    def shape(found: dict[str, Metric]) -> dict[str, tuple[set[frozenset[str]], set[float]]]:
        return {
            name: (
                {
                    frozenset(sample.labels) - {POPPED_LABEL}
                    for sample in family.samples
                    if not sample.name.endswith("_created")
                },
                {float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels},
            )
            for name, family in found.items()
        }

    def check() -> None:
        ours, java = (shape(side.metrics()) for side in sides)
        assert {name: ours[name] for name in ours.keys() & java.keys()} == {
            name: java[name] for name in ours.keys() & java.keys()
        }

    wait_holds(check)


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("rocketmq_messages_in", "_total"),
        ("rocketmq_message_size", "_bucket"),
        ("rocketmq_message_size", "_count"),
        ("rocketmq_commit_messages", "_total"),
        ("rocketmq_finish_message_latency_milliseconds", "_count"),
        ("rocketmq_delay_message_latency_seconds", "_bucket"),
        ("rocketmq_timer_enqueue", "_total"),
        ("rocketmq_timer_message_snapshot", ""),
        ("rocketmq_topic_create_execution_time_milliseconds", "_count"),
        ("rocketmq_consumer_group_create_execution_time_milliseconds", "_count"),
        ("rocketmq_pop_revive_in_message", "_total"),
        ("rocketmq_pop_revive_retry_messages", "_total"),
    ],
)
def test_the_same_requests_give_the_same_counts(sides: tuple[Side, Side], name: str, ending: str) -> None:
    """Both end with the same counts. Timers and checkpoints of POP are counted a while after the request."""

    def check() -> None:
        ours, java = (side.metrics()[name] for side in sides)
        assert values(ours, ending) == values(java, ending)

    wait_holds(check)


def test_requests_are_counted_with_the_same_codes_and_results(sides: tuple[Side, Side]) -> None:
    def counts(side: Side) -> dict[tuple[str, str, str, str | None], float]:
        family = side.metrics()["rocketmq_rpc_latency_milliseconds"]
        return {
            (
                sample.labels["request_code"],
                sample.labels["response_code"],
                sample.labels["result"],
                sample.labels.get("is_long_polling"),
            ): sample.value
            for sample in family.samples
            if sample.name.endswith("_count")
        }

    ours, java = (counts(side) for side in sides)
    wanted = (
        "send_message_v2",
        "pull_message",
        "end_transaction",
        "pop_message",
        "ack_message",
        "update_and_create_topic",
    )
    assert {key: count for key, count in ours.items() if key[0] in wanted} == {
        key: count for key, count in java.items() if key[0] in wanted
    }
    # Codes that RocketMQ does not have count together here.
    assert ours["unknown", "request_code_not_supported", "success", "false"] >= 1
    assert java[str(UNKNOWN_CODE), "request_code_not_supported", "success", "false"] == 1


def test_a_latency_is_that_of_the_request(sides: tuple[Side, Side]) -> None:
    for side in sides:
        family = side.metrics()["rocketmq_rpc_latency_milliseconds"]
        for labels, total in values(family, "_sum").items():
            assert 0 <= total < 600_000, f"{labels}: the clock of another turn was used"
