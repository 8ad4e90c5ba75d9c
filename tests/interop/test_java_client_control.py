"""Running consumers of RocketMQ's Java client while an administrator resets offsets, and while a broker is
killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.conftest import CLIENT_KINDS, CLUSTERS
from tests.interop.scenarios import ScenarioReport, run_scenarios

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


@pytest.mark.scenario("reset")
def test_a_running_group_whose_offset_is_reset_gets_the_messages_again(report: ScenarioReport) -> None:
    assert sorted(report["first"]) == sorted(
        [f"old-{i}" for i in range(10)] + [f"new-{i}" for i in range(10)]
    )
    assert sum(report["offsets"].values()) == 10
    assert sorted(report["again"]) == [f"new-{i}" for i in range(10)]


@pytest.mark.scenario("relay")
def test_the_broker_knows_the_group_and_forwards_requests_to_its_consumer(report: ScenarioReport) -> None:
    assert report["clients"] == 1
    assert report["client_id_is_ours"]
    assert (report["message_model"], report["consume_type"]) == ("CLUSTERING", "CONSUME_PASSIVELY")
    assert report["subscriptions"] == {"%RETRY%G_relay": "*", "T_relay": "*"}
    assert sorted(report["running_queues"]) == [0, 1]
    assert report["direct"] == "CR_SUCCESS"
    assert report["received"] == ["once", "once"]


@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_a_killed_broker_keeps_acknowledged_messages_and_its_clients_continue(
    kind: str, tmp_path: Path
) -> None:
    with CLUSTERS[kind](tmp_path / "cluster") as cluster:
        acts = iter((cluster.kill_broker, cluster.start_broker))

        def act() -> None:
            next(acts)()

        report = run_scenarios(cluster, ["outage"], tmp_path / "driver", on_ready=act).of("outage")
        cluster.abandon()
    assert report["failed"] > 0
    assert report["missing"] == []
    assert report["acknowledged"] >= 100
    assert report["resumed_ms"] < 25_000  # clients ask for routes every 30 s
