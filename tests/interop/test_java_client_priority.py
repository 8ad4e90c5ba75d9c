"""Messages with a priority, by RocketMQ's client 5.5.0: the queue that a message gets, and which POPs get it
first. RocketMQ 5.3.3 has no such messages, so the broker of 5.5.0 proves these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.conftest import CLIENT_KINDS, CLUSTERS
from tests.interop.java_env import NEWEST, using
from tests.interop.scenarios import DriverRun, run_scenarios

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

KINDS = [
    pytest.param(kind, id=f"{kind}-newest", marks=found.marks)
    for found in CLIENT_KINDS
    if (kind := found.values[0]) in ("ours", "java", "secured")
]
QUEUES = 4


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverRun]:
    directory = tmp_path_factory.mktemp("priority")
    with using(NEWEST):
        cluster = CLUSTERS[request.param](directory)
        cluster.start()
        names = ["priority_factor", "priority_pop", "priority_send"]
        yield run_scenarios(cluster, names, directory / "driver")
        cluster.abandon()


def test_the_priority_chooses_the_queue_of_a_message_that_has_no_other_type(run: DriverRun) -> None:
    report = run.of("priority_send")
    by_priority = {"0": 0, "1": 1, "2": 2, "3": 3, "4": 3, "2147483647": 3, "+2": 2, "03": 3}
    no_priority = ["2147483648", "-1", " 3", "x", "ordered", "delayed", "timed"]
    expected = by_priority | dict.fromkeys(no_priority, 1)
    assert report["queues"] == expected
    stored = {one["body"].removeprefix("priority "): one for one in report["stored"]}
    assert {name: one["queue_id"] for name, one in stored.items()} == expected
    other_types = ("ordered", "delayed", "timed")
    assert {name: one["priority"] for name, one in stored.items()} == {
        name: None if name in other_types else name for name in expected
    }


def test_pops_take_the_highest_priority_first_and_the_retry_topic_last(run: DriverRun) -> None:
    report = run.of("priority_pop")
    assert report["popped"] == [
        ["3.0", "3.1", "4.0"],
        ["4.1", "5.0", "5.1"],
        ["2.0", "2.1", "1.0"],
        ["1.1", "0.0", "0.1"],
        [],
    ]
    assert report["forgotten"] == report["again"] == ["3.0"]
    assert [body for bodies in report["rest"] for body in bodies] == [
        *("3.1", "4.0", "4.1", "5.0", "5.1"),
        *("2.0", "2.1", "1.0", "1.1", "0.0", "0.1"),
        "3.0",
    ]


def test_a_group_says_by_priority_factor_how_many_of_its_pops_go_by_priority(run: DriverRun) -> None:
    report = run.of("priority_factor")
    remarks = report["remarks"]
    assert remarks["0"] == remarks["100"] == ""
    for wrong in ("-1", "101"):
        assert "value is not in range(0, 100)" in remarks[wrong]
    assert 'For input string: "x"' in remarks["x"]
    assert report["always"] == ["3", "2", "1", "0"]
    assert len(report["first_without"]) == 24
    assert len(set(report["first_without"])) > 1
