"""Requests with arbitrary fields and bodies are served or rejected with RocketMQ's code, and nothing else
happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochmq_broker.auth.requested_access import UnreadableRequestError, requested_access
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.frame import Command
from tests.unit.broker.auth.kit import PROVIDERS, signed
from tests.unit.broker.kit import running

NAMES = st.sampled_from(
    [
        "topic",
        "group",
        "a",
        "b",
        "consumerGroup",
        "topicList",
        "filterGroups",
        "username",
        "subject",
        "policyType",
        "resource",
        "subjectFilter",
        "resourceFilter",
        "filter",
        "knownState",
        "AccessKey",
    ]
)
TEXTS = st.one_of(st.text(max_size=12), st.sampled_from(["User:x", "Topic:*", "%RETRY%g", "*", "a;b,c"]))
FIELDS = st.none() | st.dictionaries(NAMES | st.text(max_size=4), TEXTS, max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["policies", "entries", "actions", "sourceIps", "resource", "decision", "subject"]
            )
            | st.sampled_from(
                ["username", "password", "userType", "mqSet", "consumerDataSet", "acks", "topic"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
).map(lambda value: str(value).replace("'", '"').encode("utf-8", "replace"))
BODIES = st.binary(max_size=24) | JSON


@given(st.sampled_from([int(code) for code in RequestCode]), FIELDS, BODIES)
def test_what_any_request_asks_for_is_decided(code: int, fields: dict[str, str] | None, body: bytes) -> None:
    try:
        found = requested_access(Command(code, ext=fields, body=body), "cluster")
    except UnreadableRequestError:
        return
    assert all(one.actions and one.resource.key for one in found)


@pytest.mark.long
async def test_any_request_about_users_and_acls_gets_a_response(tmp_path: Path) -> None:
    async with running(tmp_path, PROVIDERS) as bench:
        peer = bench.peer()

        @settings(max_examples=400, deadline=None)
        @given(st.integers(3001, 3010), FIELDS, BODIES, st.booleans())
        def send(code: int, fields: dict[str, str] | None, body: bytes, sign: bool) -> None:
            request = Command(code, ext=None if fields is None else dict(fields), body=body)
            response = peer.call(signed(request) if sign else request)
            assert response.code in (0, 1, 16, 29), (response.code, response.remark)
            assert response.code == 0 or response.remark

        send()
        content = bench.broker.tables.auth.content()
        bench.broker.tables.auth.restore(content)
        assert bench.broker.tables.auth.content() == content
