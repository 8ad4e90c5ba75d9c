"""Signatures, address ranges, and which entry of an ACL decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.auth.acls import (
    Acl,
    Action,
    Policy,
    PolicyDecision,
    PolicyEntry,
    PolicyType,
    group_resource,
    parse_resource,
    topic_resource,
)
from epochmq_broker.auth.address_ranges import is_address_or_range, is_in_range
from epochmq_broker.auth.authorization import RequestedAccess, deciding_entry, reason_for_denial
from epochmq_broker.auth.remembered_checks import RESULTS_MAX, RememberedChecks
from epochmq_protocol.codes import V4_9_3, V5_3_3
from epochmq_protocol.frame import Command
from epochmq_protocol.signatures import SessionCredentials, has_signature, sign, signature_of, signed_content


def acl(*entries: tuple[str, str]) -> Acl:
    """An ACL of (resource, decision) for every action."""
    made = []
    for key, decision in entries:
        resource = parse_resource(key)
        assert resource is not None
        made.append(PolicyEntry(resource, (Action.ALL,), (), PolicyDecision(decision)))
    return Acl("alice", (Policy(PolicyType.CUSTOM, tuple(made)),))


def decides(topic: str, *entries: tuple[str, str]) -> str | None:
    """The resource of the entry that decides about a send."""
    wanted = RequestedAccess(topic_resource(topic), (Action.PUB,))
    entry = deciding_entry(acl(*entries), wanted, "10.0.0.1")
    return None if entry is None else entry.resource.key


def test_the_entry_that_decides_is_the_one_that_rocketmq_sorts_first() -> None:
    assert decides("orders") is None
    assert decides("orders", ("Topic:invoices", "Allow")) is None
    assert decides("orders", ("*", "Allow"), ("Topic:*", "Deny")) == "Topic:*"
    assert decides("orders", ("Topic:*", "Deny"), ("Topic:orders", "Allow")) == "Topic:orders"
    assert decides("orders", ("Topic:or*", "Deny"), ("Topic:order*", "Allow")) == "Topic:or*"
    # Of a literal and a prefixed resource, the later one comes first.
    assert decides("orders", ("Topic:or*", "Deny"), ("Topic:orders", "Allow")) == "Topic:orders"
    assert decides("orders", ("Topic:orders", "Deny"), ("Topic:or*", "Allow")) == "Topic:or*"


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ((("Topic:orders*", "Allow"), ("Topic:orders-eu", "Deny")), "Deny"),
        ((("Topic:orders-eu", "Deny"), ("Topic:orders*", "Allow")), "Deny"),
        ((("Topic:orders*", "Deny"), ("Topic:orders-eu", "Allow")), "Allow"),
        ((("Topic:o*", "Allow"), ("Topic:orders*", "Deny")), "Deny"),
        ((("Topic:orders*", "Deny"), ("Topic:o*", "Allow")), "Deny"),
        ((("Topic:*", "Deny"), ("Topic:o*", "Allow")), "Allow"),
        ((("*", "Deny"), ("Topic:*", "Allow")), "Allow"),
    ],
)
def test_the_most_specific_entry_decides_with_acl_strict(
    entries: tuple[tuple[str, str], ...], expected: str
) -> None:
    wanted = RequestedAccess(topic_resource("orders-eu"), (Action.PUB,))
    for order in (entries, entries[::-1]):
        entry = deciding_entry(acl(*order), wanted, "10.0.0.1", strict=True)
        assert entry is not None
        assert entry.decision.value == expected
        reason = reason_for_denial(acl(*order), wanted, "10.0.0.1", strict=True)
        assert (reason is None) == (expected == "Allow")


def test_the_default_policy_decides_only_where_the_custom_one_has_no_entry() -> None:
    custom = acl(("Topic:orders", "Deny")).policies[0]
    default = Policy(PolicyType.DEFAULT, acl(("Topic:*", "Allow")).policies[0].entries)
    both = Acl("alice", (default, custom))
    orders, others = (RequestedAccess(topic_resource(one), (Action.SUB,)) for one in ("orders", "others"))
    assert reason_for_denial(both, orders, "10.0.0.1") == "the decision is deny."
    assert reason_for_denial(both, others, "10.0.0.1") is None
    groups = RequestedAccess(group_resource("%RETRY%readers"), (Action.SUB,))
    assert groups.resource.key == "Group:readers"
    assert reason_for_denial(both, groups, "10.0.0.1") == "no matched policies."


@pytest.mark.parametrize(
    ("address", "wanted", "found"),
    [
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.4", False),
        ("10.1.2.3", "10.1.0.0/16", True),
        ("10.2.2.3", "10.1.0.0/16", False),
        ("10.1.2.3", "10.9.9.9/0", True),
        ("10.1.2.3", "10.1.2.3/32", True),
        ("2001:db8::1", "2001:db8::/32", True),
        ("2001:db9::1", "2001:db8::/32", False),
        ("10.1.2.3", "::/64", True),
        ("not an address", "10.0.0.0/8", False),
    ],
)
def test_an_address_is_compared_as_text_and_a_range_as_numbers(
    address: str, wanted: str, found: bool
) -> None:
    assert is_in_range(address, wanted) is found


def test_only_addresses_and_ranges_are_valid() -> None:
    assert all(map(is_address_or_range, ("10.0.0.1", "10.0.0.0/8", "::1", "2001:db8::/128")))
    assert not any(map(is_address_or_range, ("10.0.0", "10.0.0.0/33", "host", "", "10.0.0.0/8/9", "1::/x")))


def test_a_signature_covers_the_values_in_the_order_of_their_names_and_the_body() -> None:
    request = Command(
        310, ext={"b": "topic", "AccessKey": "alice", "Signature": "?", "a": "group"}, body=b"!"
    )
    assert signed_content(request) == b"alicegrouptopic!"
    # echo -n 'alicegrouptopic!' | openssl dgst -sha1 -hmac secret -binary | base64
    assert signature_of(b"alicegrouptopic!", "secret") == SIGNATURE_BY_OPENSSL


SIGNATURE_BY_OPENSSL = "T99jnN6+vFBudS+iToCFhuMzwTU="


def test_old_clients_added_one_field_after_they_had_signed() -> None:
    fields = {"a": "1", "_UNIQUE_KEY_QUERY": "true"}
    assert signed_content(Command(12, ext=fields, version=V4_9_3)) == b"1"
    assert signed_content(Command(12, ext=fields, version=V5_3_3)) == b"true1"


@given(
    st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=6),
    st.binary(max_size=32),
    st.text(min_size=1, max_size=8),
)
def test_a_signed_request_is_recognized_until_anything_changes(
    fields: dict[str, str], body: bytes, secret: str
) -> None:
    request = Command(10, ext=dict(fields), body=body)
    sign(request, SessionCredentials("alice", secret, "token"))
    assert has_signature(request, secret)
    assert not has_signature(request, secret + "x")
    request.body += b"x"
    assert not has_signature(request, secret)


def test_a_connection_remembers_a_bounded_number_of_results() -> None:
    checks = RememberedChecks()
    for key in range(2 * RESULTS_MAX):
        assert checks.get(key, 0, 1000, lambda: "no") == "no"
    assert checks.get(2 * RESULTS_MAX - 1, 999, 1000, lambda: None) == "no"
    assert checks.get(0, 999, 1000, lambda: None) is None, "the oldest was forgotten"
    assert checks.get(2 * RESULTS_MAX - 1, 1000, 1000, lambda: None) is None, "its time has passed"
    assert len(checks._results) == RESULTS_MAX
