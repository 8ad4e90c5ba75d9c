"""The Java client sends messages to light message queues and reads them. The brokers of EpochMQ and RocketMQ
take turns in one directory: each continues the queues and the groups' offsets of the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.java_cluster import JavaCluster
from tests.interop.java_env import compile_java, run_java
from tests.support.cluster import Cluster, OurCluster

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

COUNT = 20
LIGHT = {"enableLmq": True, "enableMultiDispatch": True}


def turn(directory: Path, number: int, kind: type[Cluster], *, kill: bool) -> list[list[str]]:
    """Runs a broker of this kind in the directory, and the client against it. Returns the client's lines."""
    store = directory / "store"
    settings = LIGHT | {"storePathRootDir": str(store), "storePathCommitLog": str(store / "commitlog")}
    cluster = kind(directory / f"turn-{number}", broker=settings)
    cluster.start()
    try:
        printed = run_java(
            "LightQueueClient",
            [cluster.nameserver_address, "broker-a", "parent", str(number * COUNT), str(COUNT)],
            home=directory / f"client-{number}",
            classes=compile_java("LightQueueClient.java", "ToolProcess.java"),
            timeout_s=120,
        )
        if kill:
            cluster.kill_broker()
    finally:
        cluster.stop()
    return [line.split() for line in printed.stdout.splitlines() if line.strip()]


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param((OurCluster, OurCluster), marks=pytest.mark.soak),
        (OurCluster, JavaCluster, OurCluster),
        pytest.param((JavaCluster, OurCluster, JavaCluster), marks=pytest.mark.soak),
    ],
    ids=["ours", "ours, java, ours", "java, ours, java"],
)
def test_light_queues_continue_in_both_brokers(tmp_path: Path, kinds: tuple[type[Cluster], ...]) -> None:
    everything: dict[str, list[tuple[int, int]]] = {"%LMQ%all": [], "%LMQ%even": []}
    for number, kind in enumerate(kinds):
        # Our broker's recovery builds the units again; RocketMQ's offsets survive an orderly stop only.
        lines = turn(tmp_path, number, kind, kill=kinds == (OurCluster, OurCluster) and number == 0)
        for _, queue, offset, body, offsets in (line for line in lines if line[0] == "message"):
            names = ["%LMQ%all", "%LMQ%even"][: offsets.count(",") + 1]
            assert offsets.split(",")[names.index(queue)] == offset
            everything[queue].append((int(offset), int(body)))
        held = [line[1:] for line in lines if line[0] == "held"]
        assert len(held) == 1
        assert held[0][0] == "FOUND"
        assert int(held[0][1]) == int(held[0][2]) + 1
        ends = {line[1]: int(line[2]) for line in lines if line[0] == "end"}
        assert ends == {"%LMQ%all": (number + 1) * COUNT, "%LMQ%even": (number + 1) * COUNT // 2}
    total = len(kinds) * COUNT
    assert sorted(set(everything["%LMQ%all"])) == [(body, body) for body in range(total)]
    assert sorted(set(everything["%LMQ%even"])) == [(body // 2, body) for body in range(0, total, 2)]
    if kinds != (OurCluster, OurCluster):
        assert len(everything["%LMQ%all"]) == total, "a group continues at its offset"
