"""The metrics are in Prometheus's format; each has a description and is in the documentation."""

from __future__ import annotations

from pathlib import Path

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from epochmq_protocol.admin_api.results import MetricSample, MetricValues, NameserverCounts
from epochmq_sidecar import metrics
from epochmq_sidecar.openapi import CONTROLLER, MASTER, NAMESERVER

ROOT = Path(__file__).resolve().parents[3]


def parsed(text: str) -> dict[str, Metric]:
    found = list(text_string_to_metric_families(text))
    assert len({family.name for family in found}) == len(found), "a metric is described twice"
    return {family.name: family for family in found}


def test_a_broker_is_described() -> None:
    figures = {"broker_messages_put_total": 12.0, "broker_put_rate": 1.5, "unknown": 3.0}
    found = parsed(metrics.exposition(MetricValues(state=MASTER, values=figures)))
    labels = {"cluster": "orders", "broker_name": "orders", "broker_id": "1"}
    roles = {sample.labels["role"]: sample.value for sample in found["epochmq_broker_role"].samples}
    assert roles == {"master": 1, "replica": 0, "none": 0}
    assert found["epochmq_broker_lease_remaining_seconds"].samples[0].value == 0.24
    assert found["epochmq_broker_promised_seconds"].samples[0].value == 0.21
    assert found["epochmq_broker_sync_state_set_size"].samples[0].value == 3
    put = found["epochmq_broker_messages_put"]
    assert (put.type, put.samples[0].name, put.samples[0].value, put.samples[0].labels) == (
        "counter",
        "epochmq_broker_messages_put_total",
        12,
        labels,
    )
    assert "epochmq_unknown" not in found
    assert found["epochmq_up"].samples[0].value == 1


def test_a_figure_may_have_a_kind() -> None:
    figures = {"broker_escape_waiting:delay": 2.0, "broker_escape_waiting:timer": 0.0, "unknown:delay": 1.0}
    found = parsed(metrics.exposition(MetricValues(state=MASTER, values=figures)))
    waiting = found["epochmq_broker_escape_waiting"].samples
    assert {sample.labels["kind"]: sample.value for sample in waiting} == {"delay": 2, "timer": 0}
    assert waiting[0].labels["broker_name"] == "orders"
    assert "epochmq_unknown" not in found


def test_unknown_values_are_omitted() -> None:
    state = msgspec.structs.replace(MASTER, lease=None, lag_bytes=None, lag_ms=None, broker_id=None)
    found = parsed(metrics.exposition(MetricValues(state=state, values={})))
    assert "epochmq_broker_lag_bytes" not in found
    assert "epochmq_broker_lease_remaining_seconds" not in found
    assert "broker_id" not in found["epochmq_ready"].samples[0].labels


def test_a_controller_and_its_groups_are_described() -> None:
    part = NameserverCounts(address="a:1", brokers=3, broker_names=1, topics=4)
    state = msgspec.structs.replace(CONTROLLER, nameserver=part)
    figures = {"tls_files_rejected:nameserver": 0.0, "tls_files_rejected:controller": 1.0}
    found = parsed(metrics.exposition(MetricValues(state=state, values=figures)))
    rejected = {s.labels["kind"]: s.value for s in found["epochmq_tls_files_rejected"].samples}
    assert rejected == {"nameserver": 0, "controller": 1}
    assert found["epochmq_controller_leads"].samples[0].value == 1
    alive = found["epochmq_group_replicas_alive"].samples[0]
    assert (alive.labels, alive.value) == ({"cluster": "orders", "broker_name": "orders"}, 1)
    assert found["epochmq_nameserver_topics"].samples[0].value == 4


def test_a_nameserver_and_an_unresponsive_process_are_described() -> None:
    figures = {"tls_files_rejected:nameserver": 1.0}
    found = parsed(metrics.exposition(MetricValues(state=NAMESERVER, values=figures)))
    assert found["epochmq_nameserver_brokers"].samples[0].value == 3
    (rejected,) = found["epochmq_tls_files_rejected"].samples
    assert (rejected.labels["kind"], rejected.value) == ("nameserver", 1)
    found = parsed(metrics.unresponsive("nobody answers\nat all"))
    assert [sample.value for sample in found["epochmq_up"].samples] == [0]


def test_names_with_quotes_and_line_breaks_are_escaped() -> None:
    state = msgspec.structs.replace(MASTER, broker_name='a"b\\c\nd')
    found = parsed(metrics.exposition(MetricValues(state=state, values={})))
    assert found["epochmq_ready"].samples[0].labels["broker_name"] == 'a"b\\c\nd'


def test_every_metric_is_in_the_documents() -> None:
    text = (ROOT / "docs" / "admin.md").read_text()
    assert [name for name in metrics.HELP if f"`epochmq_{name}`" not in text] == []
    assert [name for name in metrics.ROCKETMQ_HELP if f"`rocketmq_{name}`" not in text] == []


def test_rocketmqs_metrics_have_its_names_and_labels() -> None:
    samples = [
        MetricSample("messages_in_total", {"topic": "orders", "message_type": "normal"}, 3.0),
        MetricSample("messages_in_total", {"topic": "orders", "message_type": "fifo"}, 1.0),
        MetricSample("of_a_newer_broker", {}, 1.0),
    ]
    labels = {"cluster": "c", "node_type": "broker", "node_id": "b"}
    found = parsed(
        metrics.exposition(MetricValues(state=MASTER, values={}, rocketmq=samples, rocketmq_labels=labels))
    )
    counter = found["rocketmq_messages_in"]
    assert counter.type == "counter"
    assert [
        (sample.labels, sample.value) for sample in counter.samples if sample.name.endswith("_total")
    ] == [
        ({**labels, "topic": "orders", "message_type": "normal"}, 3),
        ({**labels, "topic": "orders", "message_type": "fifo"}, 1),
    ]
    assert not [name for name in found if name.startswith("rocketmq_of")]
