"""RocketMQ's Java client sends messages in transactions: commit, rollback, checks, discarded messages, and a
broker that is killed in between."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import CLIENT_KINDS, CLUSTERS, QUICK_CHECKS
from tests.interop.handovers import hand_over
from tests.interop.java_cluster import java_broker
from tests.interop.java_controllers import OURS
from tests.interop.java_env import NEWEST, Release, in_use, using
from tests.interop.java_sends import assert_stored_by_answers
from tests.interop.scenarios import ScenarioReport, run_scenarios
from tests.support.cluster import Cluster, OurCluster, Value
from tests.support.group_processes import Factory, our_broker
from tests.support.remoting import Response, call
from tests.support.replica_group import ReplicaGroup

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

COMMIT, ROLLBACK = 8, 12
CHECKS_MAX = QUICK_CHECKS["transactionCheckMax"]
SET_BY_BROKER = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "TestCluster"}
SET_BY_READER = {"MIN_OFFSET", "MAX_OFFSET"}


def properties_of(message: dict[str, Any]) -> dict[str, str]:
    """A stored message's properties without those that the client adds when it reads."""
    return {name: value for name, value in message["properties"].items() if name not in SET_BY_READER}


def half_properties(topic: str, group: str, result: dict[str, Any]) -> dict[str, str]:
    """The properties of a half message as RocketMQ stores them."""
    return {
        **SET_BY_BROKER,
        "KEYS": "key",
        "TAGS": "tag",
        "own": "value",
        "WAIT": "true",
        "TRAN_MSG": "true",
        "PGROUP": group,
        "UNIQ_KEY": result["msg_id"],
        "__transactionId__": result["msg_id"],
        "REAL_TOPIC": topic,
        "REAL_QID": str(result["queue_id"]),
    }


def ended_late(report: ScenarioReport) -> set[str]:
    """The bodies of the transactions that the broker may ask about although their producers ended them:
    it wrote the op message only when the half message was so old that it is checked."""
    ends: dict[int, int] = {}
    for op in report["ops"]:
        for offset in op["body"].rstrip(",").split(","):
            ends[int(offset)] = min(op["store_timestamp"], ends.get(int(offset), op["store_timestamp"]))
    born = {half["body"]: half["born_timestamp"] for half in report["half"]}
    due_ms = QUICK_CHECKS["transactionTimeOut"] - QUICK_CHECKS["transactionCheckInterval"]
    return {
        result["body"]
        for result in report["results"]
        if ends[result["queue_offset"]] - born[result["body"]] >= due_ms
    }


@pytest.mark.scenario("transaction_end")
def test_committed_messages_arrive_and_rolled_back_ones_do_not(report: ScenarioReport) -> None:
    committed = [f"commit c{number}" for number in range(8)]
    assert sorted(m["body"] for m in report["stored"]) == committed
    assert sorted(m["body"] for m in report["stored_later"]) == committed
    assert sorted(report["by_key"]) == committed
    assert {m["body"] for m in report["checked"]} <= ended_late(report)
    assert {r["status"] for r in report["results"]} == {"SEND_OK"}


@pytest.mark.scenario("transaction_end")
def test_a_committed_message_has_the_half_messages_content_and_properties(report: ScenarioReport) -> None:
    results = {r["body"]: r for r in report["results"]}
    for message in report["stored"]:
        result = results[message["body"]]
        assert message["queue_id"] == result["queue_id"]
        assert (message["flag"], message["sys_flag"], message["msg_id"]) == (5, COMMIT, result["msg_id"])
        assert result["transaction_id"] == result["msg_id"]
        expected = half_properties("T_transaction_end", "G_transaction_end", result)
        assert properties_of(message) == expected


@pytest.mark.scenario("transaction_end")
def test_half_messages_are_stored_in_rocketmqs_form(report: ScenarioReport) -> None:
    results = {r["body"]: r for r in report["results"]}
    offsets = {result["queue_offset"] for result in results.values()}
    halves = [half for half in report["half"] if half["queue_offset"] in offsets]
    assert len(halves) == 16
    others = {half["body"] for half in report["half"] if half["queue_offset"] not in offsets}
    assert others <= ended_late(report), "the copies for checks"
    for half in halves:
        result = results[half["body"]]
        assert (half["queue_id"], half["queue_offset"]) == (0, result["queue_offset"])
        assert (half["flag"], half["sys_flag"]) == (5, 0)
        expected = half_properties("T_transaction_end", "G_transaction_end", result)
        assert properties_of(half) == expected


@pytest.mark.scenario("transaction_end")
def test_op_messages_name_every_ended_half_message(report: ScenarioReport) -> None:
    named = [int(offset) for op in report["ops"] for offset in op["body"].rstrip(",").split(",")]
    assert {r["queue_offset"] for r in report["results"]} <= set(named)
    for op in report["ops"]:
        assert (op["tags"], op["queue_id"], op["sys_flag"], op["flag"]) == ("d", 0, 0, 0)
        assert op["body"].endswith(",")
        assert properties_of(op) == {"TAGS": "d", "WAIT": "true"}


@pytest.mark.scenario("transaction_check")
def test_the_producer_is_asked_until_it_knows_the_state(report: ScenarioReport) -> None:
    wanted = {"throw commit 1": 1, "unknown commit 1": 1, "unknown commit 2": 2, "unknown rollback 2": 2}
    asked = Counter(message["body"] for message in report["checked"])
    assert asked.keys() == wanted.keys()
    assert {body: count for body, count in asked.items() if count < wanted[body]} == {}
    assert report["quiet"], "the broker asks no more when it knows"
    answers = {body: count - wanted[body] + 1 for body, count in asked.items() if "commit" in body}
    assert_stored_by_answers((m["body"] for m in report["stored"]), answers)


@pytest.mark.scenario("transaction_check")
def test_a_check_carries_the_message_and_the_place_of_its_newest_copy(report: ScenarioReport) -> None:
    results = {r["body"]: r for r in report["results"]}
    copies = {half["queue_offset"]: half for half in report["half"]}
    seen: dict[str, int] = {}
    for message in report["checked"]:
        body = message["body"]
        seen[body] = seen.get(body, 0) + 1
        result = results[body]
        assert (message["topic"], message["queue_id"]) == ("T_transaction_check", result["queue_id"])
        assert message["transaction_id"] == result["msg_id"]
        copy = copies[message["queue_offset"]]
        expected = half_properties("T_transaction_check", "G_transaction_check", result) | {
            "TRANSACTION_CHECK_TIMES": str(seen[body])
        }
        assert properties_of(copy) == expected
        assert properties_of(message) == expected | {"WAIT": "false"}
        # The copy loses the flag; the check of the first copy still has it.
        assert copy["flag"] == 0
        assert message["flag"] == (5 if seen[body] == 1 else 0)


@pytest.mark.scenario("transaction_discard")
def test_a_message_that_nobody_ends_is_discarded_after_the_last_check(report: ScenarioReport) -> None:
    # The client may still be about to run the last check when the broker has moved the message.
    assert report["checks"] <= report["checks_later"] == CHECKS_MAX
    (discarded,) = report["discarded"]
    expected = half_properties("T_transaction_discard", "G_transaction_discard", report["result"])
    assert properties_of(discarded) == expected | {"TRANSACTION_CHECK_TIMES": str(CHECKS_MAX)}
    assert (discarded["queue_id"], discarded["sys_flag"]) == (0, 0)


@pytest.mark.scenario("transaction_discard")
def test_a_discarded_message_can_be_resumed(report: ScenarioReport) -> None:
    assert report["resumed"]
    assert not report["resumed_nothing"]
    stored, *copies = report["stored"]
    assert {message["body"] for message in report["stored"]} == {"unknown"}
    assert len(copies) < report["checks_after"] - CHECKS_MAX, "one for each answer at most"
    assert properties_of(stored)["TRANSACTION_CHECK_TIMES"] == "1"


@pytest.mark.scenario("transaction_other_producer")
def test_another_producer_of_the_group_is_asked_when_the_sender_is_gone(report: ScenarioReport) -> None:
    asked = report["checks_of_second"]
    assert_stored_by_answers((m["body"] for m in report["stored"]), {"commit": 1, "unknown commit 1": asked})
    assert report["checks_of_other_group"] == 0


@pytest.mark.parametrize(
    "client",
    [
        pytest.param(in_use(), id="own-client"),
        pytest.param(NEWEST, id=NEWEST.version, marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_a_message_is_not_checked_before_its_immunity_ends(
    kind: str, client: Release, tmp_path: Path
) -> None:
    """In a cluster of its own: beside other transactions a round of checks may last for many seconds."""
    settings = QUICK_CHECKS | {"transactionCheckMax": 1000}
    with CLUSTERS[kind](tmp_path / "cluster", broker=settings) as cluster:
        with using(client):
            run = run_scenarios(cluster, ["transaction_immunity"], tmp_path / "driver")
        report = run.of("transaction_immunity")
        cluster.abandon()
    stored, checked = report["stored"][0], report["checked"][0]
    assert min(check["arrived"] for check in report["checked"]) - report["sent"] >= 10_000
    assert len(report["stored"]) <= len(report["checked"]), "one for each answer at most"
    assert checked["body"] == stored["body"] == "unknown commit 1"
    first, *copies = sorted(report["half"], key=lambda half: half["queue_offset"])
    assert len(copies) >= 2  # stored again in every round
    assert "TRAN_PREPARED_QUEUE_OFFSET" not in first["properties"]
    for copy in copies:
        assert copy["properties"]["TRAN_PREPARED_QUEUE_OFFSET"] == str(first["queue_offset"])
    assert properties_of(stored)["TRAN_PREPARED_QUEUE_OFFSET"] == str(first["queue_offset"])


class TestRejections:
    """END_TRANSACTION requests that no Java client sends, by their codes and remarks."""

    NO_REMARK = "not set any response code"

    @staticmethod
    def send_half(address: str, topic: str, born_ms: int, **properties: str) -> dict[str, str]:
        """Sends a half message, and returns the fields that end its transaction."""
        named = {"UNIQ_KEY": "7F0000010002000300040005", "TRAN_MSG": "true", "PGROUP": "raw"} | properties
        ext = {
            "producerGroup": "raw",
            "topic": topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "1",
            "queueId": "0",
            "sysFlag": "4",
            "bornTimestamp": str(born_ms),
            "flag": "0",
            "properties": "".join(f"{name}\x01{value}\x02" for name, value in named.items()),
            "reconsumeTimes": "0",
            "unitMode": "false",
            "batch": "false",
        }
        answer = call(address, 10, ext, b"raw")
        assert answer.code == 0, answer
        return {
            "topic": topic,
            "producerGroup": "raw",
            "tranStateTableOffset": answer.ext["queueOffset"],
            "commitLogOffset": str(int(answer.ext["msgId"][-16:], 16)),
            "commitOrRollback": str(COMMIT),
            "fromTransactionCheck": "false",
            "msgId": "7F0000010002000300040005",
        }

    @staticmethod
    def end(cluster: Cluster, fields: dict[str, str], **changes: object) -> Response:
        return call(
            cluster.broker_address, 37, fields | {name: str(value) for name, value in changes.items()}
        )

    def test_ends_that_do_not_fit_are_rejected_with_rocketmqs_codes(self, cluster: Cluster) -> None:
        now_ms = round(time.time() * 1000)
        fields = self.send_half(cluster.broker_address, "T_raw_transactions", now_ms)

        def said(**changes: object) -> tuple[int, str | None]:
            answer = self.end(cluster, fields, **changes)
            return answer.code, answer.remark

        wrong = {
            "producerGroup": "others",
            "tranStateTableOffset": int(fields["tranStateTableOffset"]) + 1000,
            "commitLogOffset": 1 << 50,
        }
        remarks = {
            "producerGroup": "The producer group wrong",
            "tranStateTableOffset": "The transaction state table offset wrong",
            "commitLogOffset": "Find prepared transaction message failed",
        }
        for kind in (COMMIT, ROLLBACK):
            for name, value in wrong.items():
                assert said(commitOrRollback=kind, **{name: value}) == (1, remarks[name])
        code, remark = said(commitOrRollback=4)
        assert code == 1
        assert "commitOrRollback field wrong" in (remark or "")
        assert said() == (0, None)
        rolled_back = self.send_half(cluster.broker_address, "T_raw_transactions", now_ms)
        answer = self.end(cluster, rolled_back, commitOrRollback=ROLLBACK)
        assert (answer.code, answer.remark) == (0, self.NO_REMARK)

    def test_an_end_after_the_immunity_is_rejected_unless_it_answers_a_check(self, cluster: Cluster) -> None:
        born_ms = round(time.time() * 1000) - 60_000
        fields = self.send_half(
            cluster.broker_address, "T_raw_transactions", born_ms, CHECK_IMMUNITY_TIME_IN_SECONDS="1"
        )
        for kind in (COMMIT, ROLLBACK):
            answer = self.end(cluster, fields, commitOrRollback=kind)
            assert (answer.code, answer.remark) == (604, self.NO_REMARK)
        answer = self.end(cluster, fields, fromTransactionCheck="true")
        assert (answer.code, answer.remark) == (0, None)


@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_transactions_survive_a_killed_broker(kind: str, tmp_path: Path) -> None:
    """After the restart the producer is asked about transactions without an end."""
    settings = QUICK_CHECKS | {"flushDiskType": "SYNC_FLUSH", "transactionCheckMax": 100}
    with CLUSTERS[kind](tmp_path / "cluster", broker=settings) as cluster:

        def restart() -> None:
            cluster.kill_broker()
            cluster.start_broker()

        report = run_scenarios(cluster, ["transaction_outage"], tmp_path / "driver", on_ready=restart).of(
            "transaction_outage"
        )
        cluster.abandon()
    check_outage(report)


def check_outage(report: ScenarioReport) -> None:
    """Every committed message is there, no rolled back one, and only open transactions were asked about
    unless the end was lost with the broker that served it."""
    bodies = {m["body"] for m in report["stored"]} | set(report["stored_later"])
    expected = {f"{first} commit 1 {number}" for first in ("commit", "unknown") for number in range(20)}
    assert bodies == expected
    asked = {m["body"] for m in report["checked"]}
    assert {f"unknown {kind} 1 {number}" for kind in ("commit", "rollback") for number in range(20)} <= asked
    known = [m["body"] for m in report["stored"] if m["body"] not in asked]
    assert len(known) == len(set(known)), "a message was stored twice although nobody asked about it"


STORE_OWNERS = [
    pytest.param((our_broker, java_broker), id="from-ours-to-java"),
    pytest.param((java_broker, our_broker), id="from-java-to-ours"),
]


@pytest.mark.soak
@pytest.mark.parametrize("brokers", STORE_OWNERS)
def test_the_other_program_continues_the_transactions_of_a_stopped_broker(
    brokers: tuple[Factory, Factory], tmp_path: Path
) -> None:
    """Half messages, op messages and offsets in a store directory mean the same to both programs."""
    settings = QUICK_CHECKS | {"transactionCheckMax": 100}
    first, second = brokers
    cluster = OurCluster(tmp_path / "cluster", broker=settings)
    config = tmp_path / "cluster" / "broker" / "broker.conf"
    cluster.broker_process = first(config)
    with cluster:

        def replace() -> None:
            cluster.stop_broker()
            cluster.broker_process = second(config)
            cluster.start_broker()

        report = run_scenarios(cluster, ["transaction_outage"], tmp_path / "driver", on_ready=replace).of(
            "transaction_outage"
        )
    check_outage(report)


@pytest.mark.parametrize("how", ["kill", pytest.param("switchover", marks=pytest.mark.soak)])
def test_transactions_survive_a_change_of_the_master(how: str, tmp_path: Path) -> None:
    """A master of three replicas is killed, or passes the mastership on. The next one checks the open half
    messages, and asks about none whose end was replicated."""
    settings: dict[str, Value] = {
        **QUICK_CHECKS,
        "transactionCheckMax": 100,
        "allAckInSyncStateSet": True,
        "minInSyncReplicas": 2,
    }
    group = ReplicaGroup(tmp_path, OURS, [our_broker] * 3, broker=settings, octet=79)
    try:
        group.start()
        group.wait_in_sync(3)

        def change() -> None:
            master = group.wait_master()
            if how == "kill":
                master.process.kill()
                group.wait_master(other_than=master)
            else:
                hand_over(group, next(one for one in group.brokers if one is not master))

        report = run_scenarios(
            group.nameserver.address, ["transaction_outage"], tmp_path / "driver", on_ready=change
        ).of("transaction_outage")
        check_outage(report)
        if how == "switchover":
            asked = {m["body"].split(" ")[0] for m in report["checked"]}
            assert asked == {"unknown"}, "an orderly change of the master loses no end"
    finally:
        print(group.logs(8000))  # shown when the test failed
        group.kill()


def check_churn(report: ScenarioReport) -> None:
    """Every acknowledged transaction that its producer commits is delivered, none that it rolls back is."""
    stored = report["stored"]
    committed = {body for body in report["acknowledged"] if body.split(" ")[1] == "commit"}
    assert len(committed) > 100
    assert committed <= set(stored)
    assert [body for body in stored if body.split(" ")[1] == "rollback"] == []
    begun = {*report["acknowledged"], *report["failed"]}
    assert set(stored) <= begun
    print(
        f"{len(committed)} committed, {len(stored) - len(set(stored))} of them stored again; "
        f"{len(report['failed'])} sends failed; {report['checked']} checks"
    )


@pytest.mark.soak
@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_no_transaction_is_lost_when_its_broker_is_killed_again_and_again(kind: str, tmp_path: Path) -> None:
    settings = QUICK_CHECKS | {"transactionCheckMax": 100}
    with CLUSTERS[kind](tmp_path / "cluster", broker=settings) as cluster:

        def kill_often() -> None:
            for _ in range(4):
                time.sleep(3)
                cluster.kill_broker()
                cluster.start_broker()

        report = run_scenarios(cluster, ["transaction_churn"], tmp_path / "driver", on_ready=kill_often).of(
            "transaction_churn"
        )
        cluster.abandon()
    check_churn(report)


@pytest.mark.soak
@pytest.mark.parametrize(
    "brokers",
    [
        pytest.param([our_broker, our_broker, our_broker], id="ours"),
        pytest.param([our_broker, java_broker, our_broker], id="one-java-broker"),
        pytest.param([java_broker, our_broker, java_broker], id="two-java-brokers"),
    ],
)
def test_no_transaction_is_lost_when_master_after_master_is_killed(
    brokers: list[Factory], tmp_path: Path
) -> None:
    settings: dict[str, Value] = {
        **QUICK_CHECKS,
        "transactionCheckMax": 100,
        "allAckInSyncStateSet": True,
        "minInSyncReplicas": 2,
    }
    group = ReplicaGroup(tmp_path, OURS, brokers, broker=settings, octet=80)
    try:
        group.start()
        group.wait_in_sync(3)

        def kill_masters() -> None:
            for _ in range(3):
                time.sleep(3)
                master = group.wait_master()
                master.process.kill()
                group.wait_master(other_than=master)
                time.sleep(1)
                master.start()
                group.wait_in_sync(3)

        report = run_scenarios(
            group.nameserver.address, ["transaction_churn"], tmp_path / "driver", on_ready=kill_masters
        ).of("transaction_churn")
        check_churn(report)
    finally:
        print(group.logs(8000))  # shown when the test failed
        group.kill()
