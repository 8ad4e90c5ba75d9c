"""Access control decides as RocketMQ's own classes do, on the cases that `tests/interop/golden` recorded."""

from __future__ import annotations

import base64

from epochmq_broker.auth.acls import (
    Acl,
    Policy,
    PolicyEntry,
    PolicyType,
    parse_action,
    parse_decision,
    parse_policy_type,
    parse_resource,
)
from epochmq_broker.auth.authorization import RequestedAccess, deciding_entry
from epochmq_broker.auth.requested_access import PARSE_ERROR, UnreadableRequestError, requested_access
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.frame import Command
from epochmq_protocol.signatures import SIGNATURE, has_signature
from tests.unit.protocol.golden import golden

OTHERS = {RequestCode.CONTROLLER_ELECT_MASTER}
"""Brokers do not serve this one; its header has a default value."""


def acl_of(rows: list[tuple[str, str, str, str | None, str]]) -> Acl:
    """The ACL with these entries: policy type, resource, action, addresses, decision."""
    entries: dict[PolicyType, list[PolicyEntry]] = {}
    for kind, key, action, addresses, decision in rows:
        policy_type, resource, parsed = parse_policy_type(kind), parse_resource(key), parse_action(action)
        effect = parse_decision(decision)
        assert policy_type is not None
        assert resource is not None
        assert parsed is not None
        assert effect is not None
        made = PolicyEntry(resource, (parsed,), (addresses,) if addresses else (), effect)
        entries.setdefault(policy_type, []).append(made)
    return Acl("alice", tuple(Policy(kind, tuple(found)) for kind, found in entries.items()))


def test_the_same_entry_decides() -> None:
    differing = []
    for case in golden("auth")["decisions"]:
        resource = parse_resource(case["resource"])
        assert resource is not None
        actions = tuple(action for name in case["actions"] if (action := parse_action(name)) is not None)
        entry = deciding_entry(acl_of(case["entries"]), RequestedAccess(resource, actions), case["address"])
        found = None if entry is None else [entry.resource.key, entry.decision.value]
        if found != case["decides"]:
            differing.append((case, found))
    assert differing == []


def test_every_request_asks_for_the_same() -> None:
    differing = []
    for case in golden("auth")["requests"]:
        command = Command(case["code"], ext=dict(case["fields"]))
        try:
            asks: object = [
                [one.resource.key, [action.value for action in one.actions]]
                for one in requested_access(command, "c")
            ]
        except UnreadableRequestError:
            asks = PARSE_ERROR
        if asks != case["asks"] and case["code"] not in OTHERS:
            differing.append((case, asks))
    assert differing == []


def test_the_signatures_of_rocketmqs_clients_are_recognized() -> None:
    for case in golden("auth")["signatures"]:
        command = Command(310, ext=dict(case["fields"]), body=base64.b64decode(case["body"]))
        assert has_signature(command, case["secret"]), case
        assert command.ext is not None
        command.ext[SIGNATURE] = command.ext[SIGNATURE].swapcase()
        assert not has_signature(command, case["secret"]), case
