"""Tests what `epochmq status` reports about groups on a cluster."""

from __future__ import annotations

from io import StringIO

import pytest
from kubernetes.client import Configuration
from rich.console import Console

from epochmq.verbs.pod_tables import print_groups
from epochmq_operator.kube.cluster_status import ObservedNamespace, report
from epochmq_operator.kube.connection import ClusterConnection
from epochmq_operator.status_model import StatusReport


def status_of_group(phase: str | None, **status: str) -> StatusReport:
    """The report about a namespace with one group without pods, which has this phase and this status."""
    group = {
        "kind": "BrokerGroup",
        "metadata": {"name": "orders", "namespace": "trade"},
        "spec": {"replicas": 3, "hibernate": True},
        "status": status if phase is None else {"phase": phase, **status},
    }
    connection = ClusterConnection("https://127.0.0.1:1", "trade", Configuration())
    return report(connection, ObservedNamespace("trade", (group,), {}, {}))


@pytest.mark.parametrize(
    ("phase", "shown"),
    [
        ("Ready", "Ready"),
        ("Hibernated", "Hibernated"),
        ("Updating", "Progressing"),
        (None, "Progressing"),
        ("Blocked", "Degraded"),
    ],
)
def test_the_phase_of_a_group_follows_from_its_resource(phase: str | None, shown: str) -> None:
    (group,) = status_of_group(phase).broker_groups
    assert group.phase == shown


@pytest.mark.parametrize("mode", [None, "Require", "Accept", "Disabled"])
def test_the_table_names_a_group_that_accepts_members_without_a_proof(mode: str | None) -> None:
    report = status_of_group("Ready", **({} if mode is None else {"memberAuthentication": mode}))
    assert report.broker_groups[0].member_authentication == mode
    output = StringIO()
    print_groups(Console(file=output, width=160), report)
    words = f"orders: members without a proof are accepted (memberAuthentication: {mode})"
    assert (words in output.getvalue()) is (mode in ("Accept", "Disabled"))


def test_the_table_names_a_group_that_hibernates() -> None:
    for phase, expected in (("Hibernated", True), ("Ready", False)):
        output = StringIO()
        print_groups(Console(file=output, width=160), status_of_group(phase))
        assert ("orders: Hibernated: its replicas are stopped" in output.getvalue()) is expected
