"""Tests that `epochmq status` does not call a broker ready that refuses messages."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from rich.console import Console

from epochmq.verbs import pod_tables
from epochmq_operator.local.pod_placements import addresses_for, render_all
from epochmq_operator.local.process import current
from epochmq_operator.local.readiness import Readiness
from epochmq_operator.local.state_directory import NetworkFile, PodRecord, StateDirectory
from epochmq_operator.local.status import LocalObservation, ObservedLocalPod, report
from epochmq_operator.pods import Component, Pod
from epochmq_operator.resources import load_resources
from epochmq_operator.status_model import GroupPhase, PodPhase

GROUP = """
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata: {name: orders}
spec: {replicas: 1}
"""
WORDS = "fenced: it stores no messages until it is unfenced; next: epochmq fence GROUP/REPLICA --off"
REFUSES = {"refusesMessages": WORDS, "refusalState": "fenced"}


def observed(pod: Pod, runtime_info: dict[str, str], phase: PodPhase = PodPhase.READY) -> ObservedLocalPod:
    record = PodRecord(
        pod=pod.name,
        group=pod.group,
        component=pod.component,
        address=pod.address,
        phase=phase,
        process=current(),
    )
    found = runtime_info if pod.component is Component.BROKER else {}
    return ObservedLocalPod(
        pod=pod, record=record, alive=True, readiness=Readiness(True, broker_id=0, runtime_info=found)
    )


def observation(tmp_path: Path, runtime_info: dict[str, str], phase: PodPhase) -> LocalObservation:
    state, resources = StateDirectory(tmp_path), load_resources([("f", GROUP)])
    state.create()
    network = addresses_for(resources, NetworkFile(network="127.9.9", addresses={}))
    pods = render_all(state, resources, network)
    return LocalObservation(resources, [observed(pod, runtime_info, phase) for pod in pods], {})


def printed(seen: LocalObservation, width: int) -> str:
    output = StringIO()
    console = Console(file=output, width=width)
    rows = [pod_tables.row_of(pod) for pod in seen.pods]
    console.print(pod_tables.pod_table(rows, console.width))
    pod_tables.print_refusals(console, seen.pods)
    return output.getvalue()


def test_a_broker_that_refuses_messages_is_not_ready_and_has_its_own_words_as_the_reason(
    tmp_path: Path,
) -> None:
    seen = observation(tmp_path, REFUSES, PodPhase.READY)
    (group,) = report(StateDirectory(tmp_path), seen).broker_groups
    (replica,) = group.replicas
    assert (replica.ready, replica.phase, replica.reason) == (False, PodPhase.UNREADY, WORDS)
    assert group.phase is GroupPhase.DEGRADED
    assert replica.in_sync, "it has the log all the same"


def test_a_broker_that_takes_messages_is_ready(tmp_path: Path) -> None:
    seen = observation(tmp_path, {}, PodPhase.READY)
    (group,) = report(StateDirectory(tmp_path), seen).broker_groups
    assert (group.phase, group.replicas[0].ready, group.replicas[0].reason) == (GroupPhase.READY, True, "")
    assert WORDS not in printed(seen, 200)


def test_a_broker_that_is_being_stopped_keeps_its_phase(tmp_path: Path) -> None:
    seen = observation(tmp_path, REFUSES, PodPhase.STOPPING)
    (group,) = report(StateDirectory(tmp_path), seen).broker_groups
    assert group.replicas[0].phase is PodPhase.STOPPING


def test_the_table_has_the_state_and_a_line_below_it_the_words(tmp_path: Path) -> None:
    """The words are in one line, however narrow the terminal is, and their command can be typed as it is."""
    words = WORDS.replace("GROUP/REPLICA", "orders/orders-broker-0")
    for width in (80, 160):
        text = printed(observation(tmp_path, REFUSES, PodPhase.READY), width)
        assert f"\norders-broker-0: {words}\n" in text
    assert "Unready (fenced)" in text
