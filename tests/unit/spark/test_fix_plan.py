"""The plan of repair: each kind of finding has a remedy, nothing is moved away without evidence, and the
printed commands make a damaged store healthy."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import fix_plan
from epochmq_spark.findings import KINDS, FindingSeverity
from epochmq_spark.fix_plan import FixStep, FoundKind, LocalGroup, PlannedReplica, make_plan
from epochmq_spark.remedies import REMEDIES, RemedyAction
from epochmq_spark.report import page
from epochmq_store.message_store import MessageStore
from epochmq_store.store_config import StoreConfig
from tests.spark.damage_kit import overwrite
from tests.unit.spark import inprocess
from tests.unit.spark.conftest import Group

pytestmark = pytest.mark.filterwarnings("ignore")
STAMP = "20300131-140000"
NAMES = frozenset({"commitlog", "consumequeue", "index", "timerwheel", "config", "config/topics.json"})
CHANGES = (RemedyAction.REPLACE_STORE, RemedyAction.REBUILD_QUEUES, RemedyAction.REBUILD_WHEEL)


def replica(name: str, end: int | None = 1000, **fields: Any) -> PlannedReplica:
    start = None if end is None else 0
    of = {"names": NAMES, "log_start": start, "log_end": end, "has_epochs": True} | fields
    return PlannedReplica("g", name, f"/mnt/{name}", **of)


def plan(*found: FoundKind, replicas: tuple[PlannedReplica, ...] = (), **more: Any) -> list[FixStep]:
    return make_plan(found, replicas or (replica("a"), replica("b"), replica("c")), STAMP, **more)


def found(kind: str, name: str = "b", *files: str) -> FoundKind:
    return FoundKind("g", name, kind, 3, files)


def commands(steps: list[FixStep]) -> list[str]:
    return [command for step in steps for command in step.commands]


def actions(steps: list[FixStep]) -> set[RemedyAction]:
    return {step.action for step in steps if step.kinds}


def test_each_kind_of_finding_has_a_remedy() -> None:
    assert REMEDIES.keys() == KINDS.keys()
    for kind, remedy in REMEDIES.items():
        is_note = KINDS[kind][0] is FindingSeverity.NOTE
        assert (remedy.action is RemedyAction.NOTHING) == is_note, kind
        assert remedy.text
        assert bool(remedy.otherwise) == remedy.needs_copy, kind


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_plan_has_a_step_for_each_kind(kind: str) -> None:
    steps = plan(found(kind))
    if REMEDIES[kind].action is RemedyAction.NOTHING:
        assert steps == []
        return
    assert kind in {one for step in steps for one in step.kinds}
    assert all(step.text for step in steps)
    assert all("/mnt/b.set-aside-" in one or one.startswith("cp ") for one in commands(steps))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_store_is_moved_away_without_a_whole_copy_elsewhere(kind: str) -> None:
    everywhere = [found(kind, name) for name in "abc"]
    alone = (replica("b"),)
    shorter = (replica("a", 999), replica("b"), replica("c", None))
    for steps in (plan(*everywhere), plan(found(kind), replicas=alone), plan(found(kind), replicas=shorter)):
        assert RemedyAction.REPLACE_STORE not in actions(steps)
        assert not any(" /mnt/b " in command for command in commands(steps))


@pytest.mark.parametrize("kind", sorted(fix_plan.UNTRUSTED))
def test_a_copy_that_proves_nothing_is_no_evidence(kind: str) -> None:
    steps = plan(found("log.diverged"), found(kind, "c"))
    assert RemedyAction.REPLACE_STORE not in actions(steps)


def test_what_the_checkpoint_confirms_must_be_elsewhere_too() -> None:
    others = (replica("a"), replica("b", 500, confirmed=1001))
    assert RemedyAction.REPLACE_STORE not in actions(plan(found("log.missing-segment"), replicas=others))


def test_a_store_is_moved_while_the_others_keep_everything() -> None:
    steps = plan(found("log.diverged"), found("queue.wrong-unit"))
    assert commands(steps) == [
        f"mkdir -p -- /mnt/b.set-aside-{STAMP} && mv -- /mnt/b /mnt/b.set-aside-{STAMP}/"
    ]
    assert [step.action for step in steps] == [
        RemedyAction.STOP,
        RemedyAction.REPLACE_STORE,
        RemedyAction.START,
    ]
    assert steps[1].kinds == ("log.diverged", "queue.wrong-unit")
    assert steps[-1].text == "start a, c; when they serve, start b"


def test_a_pair_that_differs_is_for_a_person() -> None:
    pair = (replica("a"), replica("b"))
    steps = plan(found("log.diverged", "a"), found("log.diverged", "b"), replicas=pair)
    assert commands(steps) == []
    assert actions(steps) == {RemedyAction.DECIDE}


def test_the_store_of_a_master_or_slave_without_epochs_is_not_emptied() -> None:
    pair = (replica("a", has_epochs=False), replica("b", has_epochs=False))
    steps = plan(found("log.missing-segment"), replicas=pair)
    assert commands(steps) == []
    assert "if it is the master" in steps[0].text


def test_queues_are_built_again_from_the_stores_own_log() -> None:
    steps = plan(found("queue.missing-unit"), found("index.broken-chain"), replicas=(replica("b"),))
    target = f"/mnt/b.set-aside-{STAMP}"
    assert commands(steps) == [f"mkdir -p -- {target} && mv -- /mnt/b/consumequeue /mnt/b/index {target}/"]
    assert steps[1].kinds == ("index.broken-chain", "queue.missing-unit")


def test_queues_of_a_topic_that_was_made_again_are_not_built_from_the_whole_log() -> None:
    steps = plan(found("queue.wrong-unit"), found("topic.made-again"))
    assert actions(steps) == {RemedyAction.REPLACE_STORE}
    alone = plan(found("queue.wrong-unit"), found("topic.made-again"), replicas=(replica("b"),))
    assert actions(alone) == {RemedyAction.START}


def test_a_killed_broker_first_repairs_what_it_can() -> None:
    steps = plan(found("queue.missing-unit"), replicas=(replica("a"), replica("b", is_killed=True)))
    assert commands(steps) == []
    assert "audit again" in steps[0].text


def test_a_table_is_copied_from_a_replica_without_findings() -> None:
    steps = plan(found("state.unreadable", "b", "/mnt/b/config/topics.json"), found("file.foreign", "a", "x"))
    target = f"/mnt/b.set-aside-{STAMP}/config"
    assert commands([step for step in steps if step.action is RemedyAction.COPY_TABLE]) == [
        f"mkdir -p -- {target} && mv -- /mnt/b/config/topics.json {target}/",
        "cp -p -- /mnt/c/config/topics.json /mnt/b/config/topics.json",
    ]
    checkpoint = plan(found("state.unreadable", "b", "/mnt/b/checkpoint"))
    assert commands(checkpoint) == []


def test_names_are_quoted_and_escaped_ones_left_to_a_person() -> None:
    odd = "/mnt/b/commitlog/0; rm -r 1"
    steps = plan(found("file.foreign", "b", odd))
    assert commands(steps)[0].endswith(f"mv -- '{odd}' /mnt/b.set-aside-{STAMP}/commitlog/")
    assert commands(plan(found("file.foreign", "b", r"/mnt/b/consumequeue/\xff"))) == []


def test_a_replica_elsewhere_is_repaired_by_hand() -> None:
    remote = (replica("a"), PlannedReplica("g", "b", None, NAMES, 0, 1000, has_epochs=True))
    for kind in KINDS:
        assert commands(plan(found(kind), replicas=remote)) == []


def test_a_group_of_up_is_stopped_by_its_name() -> None:
    steps = plan(found("queue.missing-unit"), local=LocalGroup("orders", ".epochmq"))
    assert steps[0].commands == ("epochmq down orders --state .epochmq || true",)
    assert steps[-1].text == "start the group: epochmq up -f FILE --detach --state .epochmq"


def test_the_plan_is_a_script_whose_comments_are_for_people(tmp_path: Path) -> None:
    steps = [step.document() for step in plan(found("epoch.two-masters"), found("log.diverged", "c\nrm"))]
    text = fix_plan.shell_text(steps, "epochmq audit a b")
    assert text.splitlines()[-1] == "# epochmq audit a b"
    assert all(line.startswith(("#", "mkdir")) for line in text.splitlines())
    assert fix_plan.shell_text([], "") == "# Nothing has to be repaired.\n"
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)


def test_the_report_has_the_steps() -> None:
    steps = [step.document() for step in plan(found("log.diverged"), found("state.missing"))]
    summary = {"fixPlan": steps, "verdict": "damaged", "replicas": [], "findings": [], "findingCounts": {}}
    text = page.render(summary)
    assert "<h2>Repair</h2>" in text
    assert f"<pre>mkdir -p -- /mnt/b.set-aside-{STAMP} &amp;&amp; mv -- /mnt/b " in text


# For real


def start_and_stop(store: Path, sample: Path) -> None:
    """Starts the store of a broker that was stopped, and stops it again."""
    queue = next(sample.glob("consumequeue/*/*/*"))
    config = StoreConfig(
        store_path_root_dir=str(store),
        mapped_file_size_commit_log=next((sample / "commitlog").iterdir()).stat().st_size,
        mapped_file_size_consume_queue=queue.stat().st_size,
        max_hash_slot_num=100,
        max_index_num=400,
        max_message_size=2048,
    )
    opened = MessageStore(config)
    opened.load()
    opened.stop()


def repaired(paths: list[Path]) -> tuple[set[str], str]:
    """The kinds of errors and warnings, and the plan, whose commands have run."""
    replicas = inprocess.replicas_of(paths)
    before = inprocess.run(replicas)
    text = fix_plan.shell_text(inprocess.plan_of(replicas, before), "epochmq audit")
    subprocess.run(["sh", "-e"], input=text, text=True, check=True)
    return {row["kind"] for row in inprocess.without_notes(before)}, text


def test_queues_and_index_of_a_damaged_store_are_repaired_by_the_commands(
    group: Group, tmp_path: Path
) -> None:
    paths = [Path(shutil.copytree(store, tmp_path / store.name)) for store in group(1001)]
    damaged = paths[1]
    for queue in damaged.glob("consumequeue/orders/0/*"):
        queue.write_bytes(bytes(queue.stat().st_size))
    overwrite(next((damaged / "index").iterdir()), 40, os.urandom(400))
    kinds, _ = repaired(paths)
    assert {"queue.missing-unit", "index.broken-chain"} <= kinds
    start_and_stop(damaged, paths[0])
    assert inprocess.without_notes(inprocess.run(inprocess.replicas_of(paths))) == []


def test_a_stray_file_and_a_broken_table_are_repaired_by_the_commands(group: Group, tmp_path: Path) -> None:
    paths = [Path(shutil.copytree(store, tmp_path / store.name)) for store in group(1001)]
    (paths[1] / "commitlog" / "notes.txt").write_text("remember the milk")
    (paths[2] / "config" / "consumerOffset.json").write_text("{")
    kinds, text = repaired(paths)
    assert kinds == {"file.foreign", "state.unreadable"}
    assert "cp -p" in text
    assert inprocess.without_notes(inprocess.run(inprocess.replicas_of(paths))) == []
