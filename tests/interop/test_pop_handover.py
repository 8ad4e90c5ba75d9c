"""POP by RocketMQ's Java client while the mastership of three replicas is passed on: what was acknowledged
does not come again, and everything else does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.handovers import hand_over
from tests.interop.java_controllers import OURS
from tests.interop.scenarios import run_scenarios
from tests.support.cluster import Value
from tests.support.group_processes import our_broker
from tests.support.replica_group import ReplicaGroup

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]
OCTET = 85


@pytest.mark.parametrize(
    "buffered", [pytest.param(False, id="stored", marks=pytest.mark.soak), pytest.param(True, id="buffered")]
)
def test_exactly_what_was_acknowledged_does_not_come_again(tmp_path: Path, *, buffered: bool) -> None:
    settings: dict[str, Value] = {
        "allAckInSyncStateSet": True,
        "minInSyncReplicas": 2,
        "enablePopBufferMerge": buffered,
    }
    group = ReplicaGroup(tmp_path, OURS, [our_broker] * 3, broker=settings, octet=OCTET)
    try:
        group.start()
        group.wait_in_sync(3)

        def change() -> None:
            master = group.wait_master()
            hand_over(group, next(one for one in group.brokers if one is not master))

        report = run_scenarios(
            group.nameserver.address, ["pop_handover"], tmp_path / "driver", on_ready=change
        ).of("pop_handover")
    finally:
        print(group.logs(8000))  # shown when the test failed
        group.kill()
    sent, acknowledged = set(report["sent"]), set(report["acknowledged_before"])
    again = set(report["received_after"])
    assert len(acknowledged) >= 20
    assert sent - acknowledged <= again, "what was not acknowledged comes again"
    assert sorted(again & acknowledged) == [], "what was acknowledged does not"
