"""`epochmq top` and the arithmetic of `epochmq bench`."""

from __future__ import annotations

import json

import pytest

from epochmq.app import run
from epochmq.verbs.bench import DURATION_DEFAULT_S, BenchLimits, Measured, limits
from epochmq.verbs.latency_histogram import GROWTH, LatencyHistogram
from epochmq.verbs.top import GROUPS_MAX, result_of
from epochmq_protocol.bodies import KVTable, SubscriptionGroupWrapper, to_json
from epochmq_protocol.codes import RequestCode
from tests.support.net import free_port, loopback
from tests.unit.cli.fake_brokers import FakeBrokers, Handlers
from tests.unit.cli.test_overviews import answers


def broker(log_end: int) -> Handlers:
    table = {"putTps": "4.5 1 1", "getTransferredTps": "2 1 1", "commitLogMaxOffset": str(log_end)}
    return {
        RequestCode.GET_BROKER_RUNTIME_INFO: answers(lambda: to_json(KVTable(table))),
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: answers(lambda: to_json(SubscriptionGroupWrapper())),
    }


def test_top_shows_roles_rates_and_lags_once(capsys: pytest.CaptureFixture[str]) -> None:
    host = loopback(55)
    absent = f"{host}:{free_port(host)}"
    with FakeBrokers({("b", 0): broker(1000), ("b", 1): broker(900)}, {("b", 2): absent}) as fake:
        assert run(["top", "--once", *fake.options, "-o", "json", "--timeout", "60"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert run(["top", *fake.options, "--timeout", "60"]) == 0, "no terminal: once"
        text = capsys.readouterr().out
    shown = [(row["id"], row["role"], row["inRate"], row["bytesBehind"]) for row in found["brokers"]]
    assert shown == [(0, "master", 4.5, None), (1, "slave", 4.5, 100), (2, "slave", None, None)]
    assert absent in found["brokers"][2]["state"]
    assert found["groups"] == []
    assert "BYTES BEHIND" in text


def test_top_has_the_longest_lags_first_with_their_rates() -> None:
    lags = {f"g{number:04d}": number for number in range(GROUPS_MAX + 10)}
    result = result_of([], lags, {name: lag + 10 for name, lag in lags.items()}, 2.0)
    rows = result.document["groups"]
    assert len(rows) == GROUPS_MAX
    assert rows[0] == {"group": f"g{GROUPS_MAX + 9:04d}", "lag": GROUPS_MAX + 9, "lagRate": -5.0}
    first = result_of([], {"g": 3}, None, 0.0).document["groups"]
    assert first == [{"group": "g", "lag": 3, "lagRate": None}], "one look tells no rate"


def test_percentiles_are_exact_to_two_percent() -> None:
    found = LatencyHistogram()
    assert found.percentile_ms(50) is None
    for latency in range(1, 1001):
        found.add(float(latency))
    for percent, expected in ((50, 500), (99, 990), (100, 1000)):
        value = found.percentile_ms(percent)
        assert value is not None
        assert expected <= value <= expected * GROWTH
    assert found.highest_ms == 1000


@pytest.mark.parametrize("latency_ms", [-5.0, 0.0, 1e-9, 1e12])
def test_every_latency_has_a_bucket(latency_ms: float) -> None:
    found = LatencyHistogram()
    found.add(latency_ms)
    assert found.count == 1
    assert found.percentile_ms(99) is not None


def test_a_measurement_has_rates_and_latencies() -> None:
    measured = Measured("t", started_s=10.0, ended_s=12.0, messages=100, size_bytes=4 << 20)
    for _ in range(100):
        measured.latencies.add(2.0)
    row = measured.result()
    assert (row["perSecond"], row["mebibytesPerSecond"], row["seconds"]) == (50.0, 2.0, 2.0)
    assert row["p50Ms"] == row["p99Ms"] == row["maxMs"] == 2.0
    assert Measured("t", 0.0).result()["p50Ms"] is None


def test_a_measurement_without_limits_takes_ten_seconds() -> None:
    assert limits(None, None) == BenchLimits(DURATION_DEFAULT_S)
    assert limits(None, 5) == BenchLimits(float("inf"), 5)
    assert limits(3.0, 5) == BenchLimits(3.0, 5)


@pytest.mark.parametrize(
    "options", [["--size", "0"], ["--size", "99999999"], ["--rate", "0"], ["--in-flight", "0"]]
)
def test_a_wrong_option_is_named(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    command = ["bench", "produce", "t", "--nameserver", "127.0.0.1:1", *options]
    assert run(command) == 2
    assert f"{options[0]} {float(options[1]) if options[0] == '--rate' else options[1]}: expected" in (
        capsys.readouterr().err
    )
