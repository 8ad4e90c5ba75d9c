"""Groups of RocketMQ's brokers in controller mode, and of RocketMQ's and ours: audited while they go on,
through elections, kill -9 and truncations, nothing is found; and what is damaged in the directories that they
leave is found as it is in ours."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark.findings import sentence
from tests.interop.java_cluster import java_broker
from tests.spark import damage
from tests.spark.process_groups import ProcessGroup, Traffic
from tests.spark.test_audit import judged
from tests.support.replica_group import Factory, our_broker
from tests.unit.spark import inprocess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.soak,
    pytest.mark.java,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore"),
]
TURNS, HISTORIES = 4, 50
SEEDS = 2
"""Of each kind of damage and group: more than 200 injections in all."""
GROUPS = [
    pytest.param([java_broker] * 3, id="java"),
    pytest.param([our_broker, java_broker, our_broker], id="mixed"),
]


def lived(story: ProcessGroup) -> list[Path]:
    """The directories that are left when the group has lived; nothing was found in it meanwhile."""
    faults: list[BaseException] = []
    traffic = Traffic(story.group, 1)

    def live() -> None:
        try:
            for number in range(TURNS):
                story.turn(traffic, number)
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=live)
    traffic.wait_more(20)
    thread.start()
    histories = 0
    try:
        while not faults and (thread.is_alive() or histories < HISTORIES):
            replicas = story.replicas("group-a")
            found = inprocess.serious(inprocess.run(replicas))
            said = [sentence(row) for row in found]
            assert said == [], (said[:5], histories, story.turns, story.seen)
            story.readers.release()
            histories += 1
    finally:
        thread.join(600)
        story.readers.release()
        traffic.end()
    if faults:
        raise faults[0]
    print(f"{histories} cuts during {story.turns} turns, {traffic.acknowledged} messages acknowledged")
    return story.stop()


@pytest.mark.parametrize("brokers", GROUPS)
def test_a_group_in_use_is_sound_and_damage_to_what_it_leaves_is_found(
    brokers: Sequence[Factory], spark: SparkSession, tmp_path: Path
) -> None:
    story = ProcessGroup(tmp_path / "group", brokers, 1, 79)
    try:
        story.group.start()
        source = lived(story)
    except BaseException as error:
        error.add_note(story.group.logs(4000))
        raise
    finally:
        story.readers.release()
        story.group.kill()
    assert inprocess.serious(inprocess.run(inprocess.replicas_of(source))) == []
    kinds = sorted(damage.KINDS)
    for seed in range(SEEDS):
        root = tmp_path / str(seed)
        assert judged(spark, root, {str(seed): source}, {str(seed): kinds}) == {}
        shutil.rmtree(root)
    print(f"{SEEDS * len(kinds)} injections of {len(kinds)} kinds")
