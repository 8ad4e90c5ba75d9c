"""An administrator moves the queues of a static topic between two broker groups while RocketMQ's Java client
produces and consumes: nothing is lost, the order holds, and the logical offsets continue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochmq_protocol import fastjson
from tests.interop.conftest import CLUSTERS, KINDS, ORACLE, QUICK_CHECKS
from tests.interop.java_cluster import JavaCluster, OurNameserverCluster, java_broker
from tests.interop.java_sends import assert_stored_by_answers
from tests.interop.mqadmin import MqAdmin, Step
from tests.interop.scenarios import ScenarioReport, run_scenarios
from tests.support.cluster import Cluster, OurCluster, our_process

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

OCTET = 59
TOPIC = "T_remap"
SECOND = "broker-b"
FAST_CLIENT = [
    "-Drocketmq.client.rebalance.lockInterval=1000",
    "-Drocketmq.client.rebalance.waitInterval=1000",
]
"""An orderly consumer locks the queues of another broker after a second instead of twenty."""
PAIRS: dict[str, tuple[type[Cluster], type[Cluster]]] = {
    "ours": (OurCluster, OurCluster),
    "from-ours-to-rocketmqs": (OurCluster, OurNameserverCluster),
    "from-rocketmqs-to-ours": (OurNameserverCluster, OurCluster),
    "java": (JavaCluster, JavaCluster),
}


@pytest.fixture(
    params=[pytest.param(name, marks=() if ORACLE or name == "ours" else pytest.mark.soak) for name in PAIRS]
)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of two broker groups, `broker-a` and `broker-b`, under one nameserver."""
    kind, second_kind = PAIRS[request.param]
    first = kind(tmp_path / "first", octet=OCTET)
    second = second_kind(
        tmp_path / "second",
        broker={"brokerName": SECOND, "namesrvAddr": first.nameserver_address},
        octet=OCTET,
    )
    second.nameserver_address = first.nameserver_address
    try:
        first.start()
        second.start_broker()
        yield first
    finally:
        second.abandon()
        first.abandon()


@pytest.mark.soak
def test_mappings_open_in_the_other_program_and_continue(tmp_path: Path) -> None:
    cluster = OurCluster(tmp_path / "cluster", octet=OCTET)
    config = cluster.directory / "broker" / "broker.conf"
    file = cluster.store / "config" / "topicQueueMapping.json"
    topic = "T_handover"
    try:
        cluster.start()
        admin = MqAdmin(cluster, tmp_path / "admin")
        try:
            # mqadmin adds queues only to the mapping that the broker shows.
            for queues, program in enumerate((None, java_broker(config), our_process("broker", config)), 2):
                if program is not None:
                    cluster.stop_broker()
                    cluster.broker_process = program
                    cluster.start_broker()
                command = f"updateStaticTopic -b {cluster.broker_name} -t {topic} -qn {queues}"
                (outcome,) = admin.run([Step(command)])
                assert not outcome.error
                mapping = fastjson.loads(file.read_bytes())["topicQueueMappingInfoMap"][topic]
                assert mapping["totalQueues"] == queues
                assert sorted(map(int, mapping["hostedQueues"])) == list(range(queues))
        finally:
            admin.close()
    finally:
        cluster.abandon()


def test_queues_move_to_another_broker_and_back_under_producers_and_consumers(
    pair: Cluster, tmp_path: Path
) -> None:
    admin = MqAdmin(pair, tmp_path / "admin")

    def run(command: str) -> None:
        (outcome,) = admin.run([Step(command)])
        assert "written to file" in outcome.out, outcome
        assert not outcome.error

    try:
        run(f"updateStaticTopic -b {pair.broker_name} -t {TOPIC} -qn 2")
        moves = iter((SECOND, pair.broker_name))

        def move() -> None:
            run(f"remappingStaticTopic -b {next(moves)} -t {TOPIC}")

        report = run_scenarios(
            pair.nameserver_address, ["remap"], tmp_path / "driver", jvm=FAST_CLIENT, on_ready=move
        ).of("remap")
    finally:
        admin.close()
    assert report["broker"] == "__syslo__global__"
    assert report["missing"] == []
    assert report["sent"] >= 400
    assert report["in_order"]
    assert report["offsets_rise"]
    # RocketMQ's broker searches no further than the first of a queue's brokers.
    searches_all = isinstance(pair, OurCluster)
    assert report["ends"] == {"first": True, "last": True, "oldest": True, "newest": searches_all}
    assert report["resumed"]


@pytest.mark.parametrize("kind", KINDS)
def test_transactions_and_pop_on_a_static_topic(kind: str, tmp_path: Path) -> None:
    """Every committed message arrives, once for each answer to a check at most, and what was received by POP
    and acknowledged does not come again."""
    with CLUSTERS[kind](tmp_path / "cluster", broker=QUICK_CHECKS) as cluster:
        admin = MqAdmin(cluster, tmp_path / "admin")
        try:
            for topic in ("T_static_transactions", "T_static_pop"):
                (outcome,) = admin.run([Step(f"updateStaticTopic -b {cluster.broker_name} -t {topic} -qn 2")])
                assert "written to file" in outcome.out, outcome
        finally:
            admin.close()
        names = ["static_transactions", "static_pop"]
        run = run_scenarios(cluster.nameserver_address, names, tmp_path / "driver")
    transactions = run.of("static_transactions")
    assert {result["status"] for result in transactions["results"]} == {"SEND_OK"}
    committed = {body for body in bodies_of(transactions) if "commit" in body}
    assert len(committed) == 8
    asked = Counter(checked["body"] for checked in transactions["checked"])
    assert {body.split(" ")[0] for body in asked} >= {"unknown"}
    assert_stored_by_answers(transactions["stored_later"], {body: max(asked[body], 1) for body in committed})
    popped = run.of("static_pop")
    assert sorted(popped["received"]) == sorted(popped["sent"])
    assert set(popped["codes"]) == {0}
    assert popped["again"] == 0


def bodies_of(report: ScenarioReport) -> list[str]:
    """The bodies of the transactions that a scenario sent."""
    return [result["body"] for result in report["results"]]
