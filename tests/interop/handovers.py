"""Hands over the mastership of a group under RocketMQ's producer."""

from __future__ import annotations

from tests.support.group_processes import Member
from tests.support.remoting import call
from tests.support.replica_group import ReplicaGroup

SWITCHOVER = 20_001


def hand_over(group: ReplicaGroup, wanted: Member) -> int:
    """Makes a broker the master; returns how long sends were held (ms)."""
    master, found = group.wait_master(), group.replicas()
    assert found is not None
    (broker_id,) = [
        one["brokerId"] for one in found["inSyncReplicas"] if one["brokerAddress"] == wanted.address
    ]
    ext = {"brokerId": str(broker_id), "address": wanted.address, "timeoutMs": "5000"}
    response = call(master.address, SWITCHOVER, ext, timeout_s=60)
    assert response.code == 0, response
    return int(response.ext["heldMs"])
