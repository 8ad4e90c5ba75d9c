"""Running consumers of RocketMQ's Java client under an administrator's hand and through a broker's outage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.conftest import CLUSTERS, KINDS
from tests.interop.scenarios import Facts, run_scenarios

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


@pytest.mark.scenario("reset")
def test_a_running_group_set_back_in_time_gets_the_messages_again(facts: Facts) -> None:
    assert sorted(facts["first"]) == sorted([f"old-{i}" for i in range(10)] + [f"new-{i}" for i in range(10)])
    assert sum(facts["offsets"].values()) == 10
    assert sorted(facts["again"]) == [f"new-{i}" for i in range(10)]


@pytest.mark.scenario("relay")
def test_the_broker_knows_the_group_and_passes_questions_on_to_its_consumer(facts: Facts) -> None:
    assert facts["clients"] == 1
    assert facts["client_id_is_ours"]
    assert (facts["message_model"], facts["consume_type"]) == ("CLUSTERING", "CONSUME_PASSIVELY")
    assert facts["subscriptions"] == {"%RETRY%G_relay": "*", "T_relay": "*"}
    assert sorted(facts["running_queues"]) == [0, 1]
    assert facts["direct"] == "CR_SUCCESS"
    assert facts["received"] == ["once", "once"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_broker_comes_back_with_all_it_acknowledged_and_its_clients_go_on(
    kind: str, tmp_path: Path
) -> None:
    with CLUSTERS[kind](tmp_path / "cluster") as cluster:
        acts = iter((cluster.kill_broker, cluster.start_broker))

        def act() -> None:
            next(acts)()

        facts = run_scenarios(cluster.nameserver_address, ["outage"], tmp_path / "driver", on_ready=act).of(
            "outage"
        )
        cluster.abandon()
    assert facts["failed"] > 0
    assert facts["missing"] == []
    assert facts["acknowledged"] >= 100
    assert facts["resumed_ms"] < 25_000  # clients ask for routes every 30 s
