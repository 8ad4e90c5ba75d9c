"""Tests that the operator has the rights that audits need, including those that it grants to their
drivers."""

from __future__ import annotations

from epochmq_operator.audits.cut import GroupCut
from epochmq_operator.audits.manifests import AuditRunNames, AuditSettings, objects_before_pods
from epochmq_operator.kube.api import PATHS
from epochmq_operator.resources.audit import BrokerGroupAudit
from tests.unit.operator.rendered_chart import kinds, rendered, rights


def test_the_chart_grants_the_rights_for_all_objects_of_an_audit() -> None:
    audit = BrokerGroupAudit.model_validate(
        {
            "apiVersion": "epochmq.io/v1alpha1",
            "kind": "BrokerGroupAudit",
            "metadata": {"name": "nightly", "namespace": "trade"},
            "spec": {"brokerGroup": "orders"},
        }
    )
    settings = AuditSettings(image="epochmq/spark:1")
    made = objects_before_pods(
        audit, AuditRunNames("nightly", 1), settings, GroupCut("orders-broker-0", 1, 0, (), None), "orders"
    )
    (role,) = (one for one in made if one["kind"] == "Role")
    for chart in (rendered(), rendered("scope=namespaced")):
        (own, *_) = (
            found
            for kind in ("ClusterRole", "Role")
            for one in kinds(chart, kind)
            if ("apps", "statefulsets", "create") in (found := rights(one))
        )
        assert rights(role) <= own, "the API server lets nobody give what he has not"
        for kind in {one["kind"] for one in made} | {"Pod"}:
            version, plural = PATHS[kind]
            group = version.rpartition("/")[0]
            needed = {"create", "patch", "delete", "get", "list", "watch"}
            assert {(group, plural, verb) for verb in needed} <= own, kind
        assert ("snapshot.storage.k8s.io", "volumesnapshots", "create") in own
        assert ("epochmq.io", "brokergroupaudits/status", "patch") in own
