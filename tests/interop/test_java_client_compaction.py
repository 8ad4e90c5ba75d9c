"""RocketMQ's Java client with topics of `cleanup.policy=COMPACTION`: sends need a key, pulls are served from
the compacted log, and after a compaction only the newest message of each key is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.conftest import CLIENT_KINDS, CLUSTERS
from tests.interop.scenarios import ScenarioReport, run_scenarios

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

QUICK_COMPACTION = {
    "compactionScheduleInternal": 1000,
    "compactionMappedFileSize": 46_000,
    "compactionCqMappedFileSize": 4600,
}


@pytest.mark.scenario("compaction_topic")
def test_a_send_without_a_key_is_rejected(report: ScenarioReport) -> None:
    assert report["without_key"] == 13
    assert "Required message key is missing" in report["without_key_remark"]


@pytest.mark.scenario("compaction_topic")
def test_sends_with_keys_are_stored(report: ScenarioReport) -> None:
    assert [result["status"] for result in report["results"]] == ["SEND_OK"] * 5
    assert [result["queue_offset"] for result in report["results"]] == list(range(5))


@pytest.mark.scenario("compaction_topic")
def test_pulls_return_messages_and_their_limits(report: ScenarioReport) -> None:
    pulls = {pulled["offset"]: pulled for pulled in report["pulls"]}
    assert (pulls[0]["found"], pulls[0]["bodies"]) == ([0, 1], ["body0", "body1"])
    assert (pulls[3]["found"], pulls[4]["found"]) == ([3, 4], [4])
    assert {(pulled["min"], pulled["max"]) for pulled in pulls.values()} == {(0, 5)}
    assert (pulls[5]["status"], pulls[5]["next"]) == ("NO_NEW_MSG", 5)
    assert [(pulls[at]["status"], pulls[at]["next"]) for at in (6, 100)] == [("OFFSET_ILLEGAL", 0)] * 2


@pytest.mark.scenario("compaction_topic")
def test_a_held_pull_gets_the_next_message_at_once(report: ScenarioReport) -> None:
    assert report["held"] == {"status": "FOUND"}
    assert report["held_ms"] < 4000  # a missed arrival is noticed after five seconds


@pytest.mark.scenario("compaction_topic")
def test_a_push_consumer_consumes_every_message(report: ScenarioReport) -> None:
    assert report["consumed"] == ["body0", "body1", "body2", "body3", "body4", "late"]


@pytest.mark.parametrize("kind", CLIENT_KINDS)
def test_compaction_keeps_the_newest_message_of_each_key(kind: str, tmp_path: Path) -> None:
    cluster = CLUSTERS[kind](tmp_path / "cluster", broker=QUICK_COMPACTION)
    cluster.start()
    try:
        run = run_scenarios(cluster, ["compaction_rounds"], tmp_path / "driver")
        report = run.of("compaction_rounds")
    finally:
        cluster.abandon()
    offsets = report["offsets"]
    assert offsets == sorted(set(offsets))
    assert len(offsets) < report["sent"]
    assert offsets[0] > 0
    assert report["seen"] == report["newest"]
