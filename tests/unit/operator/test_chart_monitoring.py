"""Tests what the chart installs for monitoring: alerts, monitors of pods, and dashboards."""

from __future__ import annotations

import json
import re

import pytest

from epochmq_operator.kube.metrics import OperatorMetrics
from epochmq_sidecar.metrics import HELP
from tests.kubernetes.test_alerts import CASES
from tests.unit.operator.rendered_chart import PROMETHEUS, ROOT, kinds, rejection, rendered
from tools import dashboards


def test_alerts_use_existing_metrics_and_say_what_to_do() -> None:
    (rule,) = kinds(rendered(*PROMETHEUS), "PrometheusRule")
    known = known_metrics()
    alerts = [one for group in rule["spec"]["groups"] for one in group["rules"]]
    assert len(alerts) > 5
    for one in alerts:
        used = set(re.findall(r"epochmq_[a-z_]+", one["expr"]))
        assert used
        assert used <= known
        assert one["annotations"]["action"].endswith(".")
        assert "{{ $labels." in one["annotations"]["summary"] or one["alert"] == "EpochMQOperatorAbsent"


@pytest.mark.parametrize(
    ("alert", "command"),
    [
        ("EpochMQGroupOutOfSync", "epochmq replica replace GROUP/REPLICA"),
        ("EpochMQGroupDegraded", "epochmq replica replace GROUP/REPLICA"),
        ("EpochMQBrokerCannotRead", "epochmq replica replace GROUP/REPLICA"),
        ("EpochMQLogDamaged", "epochmq replica replace GROUP/REPLICA"),
        ("EpochMQControllerDown", "epochmq controllers replace GROUP/CONTROLLER"),
    ],
)
def test_alerts_about_a_lost_node_or_volume_name_the_command_that_replaces_it(
    alert: str, command: str
) -> None:
    (rule,) = kinds(rendered(*PROMETHEUS), "PrometheusRule")
    (found,) = (one for group in rule["spec"]["groups"] for one in group["rules"] if one["alert"] == alert)
    assert command in found["annotations"]["action"]


def test_each_alert_has_a_case_that_makes_it_fire() -> None:
    """The cases need Prometheus' own evaluation of rules, so they run elsewhere."""
    (rule,) = kinds(rendered(*PROMETHEUS), "PrometheusRule")
    alerts = [one["alert"] for group in rule["spec"]["groups"] for one in group["rules"]]
    assert sorted(CASES) == sorted(alerts)


def test_pod_monitors_select_the_operator_and_every_group() -> None:
    own, groups = kinds(rendered(*PROMETHEUS), "PodMonitor")
    assert own["spec"]["podMetricsEndpoints"][0]["port"] == "http"
    assert groups["spec"]["namespaceSelector"] == {"any": True}
    assert groups["spec"]["selector"]["matchLabels"] == {"app.kubernetes.io/managed-by": "epochmq-operator"}
    plain, tls = groups["spec"]["podMetricsEndpoints"]
    assert (plain["port"], plain.get("scheme")) == ("admin", None)
    assert (tls["port"], tls["scheme"]) == ("admin-tls", "https")
    assert tls["tlsConfig"] == {"insecureSkipVerify": True}
    assert own["spec"]["podMetricsEndpoints"][0]["honorLabels"], "the groups' namespaces are in the series"


def test_a_pod_monitor_that_the_network_policies_would_block_is_rejected() -> None:
    assert "needs monitoring.namespaces" in rejection("monitoring.podMonitor.enabled=true")
    assert kinds(rendered("monitoring.podMonitor.enabled=true", "networkPolicies=false"), "PodMonitor")


def test_dashboards_are_up_to_date_and_use_existing_metrics() -> None:
    assert dashboards.stale() == []
    known = known_metrics()
    made = kinds(rendered("monitoring.dashboards.enabled=true"), "ConfigMap")
    found = {
        name: json.loads(text)
        for one in made
        if "grafana_dashboard" in one["metadata"]["labels"]
        for name, text in one["data"].items()
    }
    assert set(found) == {
        f"epochmq-{name}.json" for name in ("group", "topic", "controller", "operator", "audit")
    }
    for dashboard in found.values():
        expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
        queries = [one["definition"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
        for text in (*expressions, *queries):
            used = set(re.findall(r"\b(?:epochmq|rocketmq)_[a-z_]+", text))
            assert used, text
            assert used <= known, text
            assert all(text.count(a) == text.count(b) for a, b in ("()", "{}", "[]")), text
        chosen = {one["name"] for one in dashboard["templating"]["list"]}
        assert set(re.findall(r"\$(\w+)", "".join(expressions))) <= chosen


def known_metrics() -> set[str]:
    """The names of all series: of sidecars, of the operator, and RocketMQ's."""
    metrics = OperatorMetrics()
    collects = (
        metrics.collect_groups,
        metrics.collect_audits,
        metrics.collect_backups,
        metrics.collect_entities,
    )
    for collect in (*collects, metrics.collect_conditions):
        collect(list)
    metrics.collect_watches(list)
    own = {
        family.name + suffix
        for family in metrics.registry.collect()
        for suffix in ("", "_total", "_bucket", "_count")
    }
    rocketmq = set(re.findall(r"`(rocketmq_[a-z_]+)`", (ROOT / "docs" / "admin.md").read_text()))
    return {f"epochmq_{name}" for name in HELP} | own | rocketmq
