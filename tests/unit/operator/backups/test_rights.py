"""Tests that the operator has the rights that backups need, and none of them unless they are switched on."""

from __future__ import annotations

import pytest

from tests.unit.operator.rendered_chart import kinds, rendered, rights

NEEDED = {
    ("epochmq.io", "brokergroupbackups", "watch"),
    ("epochmq.io", "brokergroupbackups/status", "patch"),
    ("epochmq.io", "brokergroupbackups/finalizers", "update"),
}
PODS = {("", "pods", verb) for verb in ("create", "patch", "delete", "get", "list", "watch")}


@pytest.mark.parametrize("scope", ["cluster", "namespaced"])
@pytest.mark.parametrize("audits", ["true", "false"])
def test_the_chart_grants_the_rights_for_backups_where_they_are_on(scope: str, audits: str) -> None:
    others = (f"scope={scope}", f"features.audits={audits}")
    kind = "ClusterRole" if scope == "cluster" else "Role"
    (own, *_) = (
        found
        for one in kinds(rendered(*others, "features.backups=true"), kind)
        if ("apps", "statefulsets", "create") in (found := rights(one))
    )
    assert own >= NEEDED | PODS
    (off, *_) = (
        found
        for one in kinds(rendered(*others), kind)
        if ("apps", "statefulsets", "create") in (found := rights(one))
    )
    assert not NEEDED & off
    assert not any(resource == "secrets" and verb == "get" for _, resource, verb in own)
