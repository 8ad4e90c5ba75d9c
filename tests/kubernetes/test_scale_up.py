"""Tests that a group scales up while RocketMQ's clients use it, and that its new replicas are complete."""

from __future__ import annotations

import time

import pytest

from tests.kubernetes.operator_process import Groups, Operator
from tests.kubernetes.pod_faults import PodFaults
from tests.kubernetes.traffic import Traffic

pytestmark = pytest.mark.soak


def test_a_group_that_scales_up_under_load_from_one_to_five_loses_nothing(
    groups: Groups, started: Operator, clients: str
) -> None:
    """After each step the master is killed, so that another replica continues with its log."""
    groups.apply("ControllerGroup", "orders", {"replicas": 3})
    groups.apply("BrokerGroup", "orders", {"replicas": 1, "controllerGroup": "orders"})
    groups.ready("orders", 1)
    traffic = Traffic(groups, clients, "orders")
    traffic.start()
    ids = PodFaults(traffic, replicas=1).ids()
    for count in (3, 5):
        begun_s, before = time.monotonic(), len(traffic.acks)
        groups.cluster.kubectl(
            "scale", "brokergroup/orders", f"--replicas={count}", f"--namespace={groups.namespace}"
        )
        status = groups.ready("orders", count)
        assert len(status["syncStateSet"]) == count
        grown_s = time.monotonic()
        traffic.wait_acks()
        silence_s = traffic.silence_s(begun_s, grown_s)
        print(
            f"{count} replicas after {grown_s - begun_s:.1f} s, {len(traffic.acks) - before} messages "
            f"acknowledged meanwhile, none for {silence_s:.2f} s at most"
        )
        pod_faults = PodFaults(traffic, replicas=count)
        ids = {**pod_faults.ids(), **ids}
        master = pod_faults.master()
        pod_faults.kill(master, "broker")
        assert pod_faults.master() != master
    traffic.stop()
    print(traffic.summary())
    traffic.check()
    traffic.check_equal(5)
    assert pod_faults.ids() == ids
    assert sorted(ids.values()) == [1, 2, 3, 4, 5]
