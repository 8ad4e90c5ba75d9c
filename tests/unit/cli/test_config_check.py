"""`spec.config` is checked before any pod starts: every fault is named, and no secret is shown."""

from __future__ import annotations

import pytest

from epochmq.exits import UsageError
from epochmq.verbs.config_check import check_config
from epochmq_operator.local.runtime import differences
from epochmq_operator.resources import load_resources
from tests.support.signing import CHECKED

GROUP = """\
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata: {name: orders}
spec:
  replicas: 1
  config:
"""


def check(**config: str) -> None:
    lines = "".join(f"    {key}: '{value}'\n" for key, value in config.items())
    check_config(load_resources([("orders.yaml", GROUP + lines)]))


def test_keys_that_need_each_other_are_no_fault_together() -> None:
    check(**{key: str(value).lower() if value is True else str(value) for key, value in CHECKED.items()})


def test_every_fault_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        check(listenBacklog="1", maxMessageSize="0", flushDiskType="NEVER", authenticationEnabled="true")
    text = str(caught.value)
    assert "maxMessageSize" in text
    assert "flushDiskType" in text
    with pytest.raises(UsageError, match="authenticationMetadataProvider"):
        check(authenticationEnabled="true")


def test_no_secret_is_shown() -> None:
    with pytest.raises(UsageError, match="initAuthenticationUser") as caught:
        check(initAuthenticationUser='{"username":"root","password":s3cret}')
    assert "s3cret" not in str(caught.value)


def test_a_changed_secret_is_named_and_not_shown() -> None:
    old, new = {"initAuthenticationUser": "one"}, {"initAuthenticationUser": "two"}
    assert differences(old, new, "spec.config") == ["spec.config.initAuthenticationUser: changed"]
    assert differences({}, new) == ["initAuthenticationUser: changed"]
    assert differences(new, dict(new)) == []
