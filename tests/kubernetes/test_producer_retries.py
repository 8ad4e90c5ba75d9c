"""Tests that a producer with RocketMQ's default settings notices nothing when its master is deleted."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.chaos.journals import SEND_OK
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups, Operator
from tests.kubernetes.patient_producer import ProducerWithDefaults
from tests.kubernetes.pod_faults import PodFaults
from tests.kubernetes.traffic import Traffic
from tests.support.stalls import unless_stalled

pytestmark = pytest.mark.soak


def test_a_producer_with_default_settings_sees_no_failed_send_when_the_master_is_deleted(
    groups: Groups, started: Operator, clients: str, tmp_path: Path
) -> None:
    """Until the producer fetches routes, the stopping master forwards its messages. The end of the leading
    controller's pod is not noticed either."""
    groups.apply("BrokerGroup", "orders", {"replicas": 3})
    groups.ready("orders", 3)
    traffic = Traffic(groups, clients, "orders")
    patient, pod_faults = ProducerWithDefaults(traffic, clients), PodFaults(traffic)
    patient.wait(300)
    ids = pod_faults.ids()

    def delete(whose: Callable[[], str]) -> None:
        cluster, name, before = groups.cluster, whose(), len(patient.sent())
        uid, begun_s = pod_faults.pod(name).metadata.uid, time.monotonic()
        cluster.kubectl("delete", "pod", name, f"--namespace={groups.namespace}", "--wait=false")
        cluster.wait(lambda: pod_faults.pod(name).metadata.uid != uid, READY_TIMEOUT_S, "another pod")
        gone_s = time.monotonic()
        cluster.wait(pod_faults.whole, READY_TIMEOUT_S, "the group is whole")
        patient.wait(300)
        sent = patient.sent()[before:]
        failed = [one for one in sent if one[2] != SEND_OK]
        print(
            f"{name} took {gone_s - begun_s:.1f} s to go; {len(failed)} of {len(sent)} sends failed, "
            f"the slowest took {max(took_ms for _, took_ms, _ in sent)} ms",
            flush=True,
        )
        assert not failed, failed[:3]

    for whose in (pod_faults.master, pod_faults.master, pod_faults.leader, pod_faults.master):
        unless_stalled(tmp_path, lambda _, whose=whose: delete(whose))
    numbers = [number for number, _, _ in patient.sent()]
    assert all(after == before + 1 for before, after in itertools.pairwise(numbers))
    assert pod_faults.ids() == ids
