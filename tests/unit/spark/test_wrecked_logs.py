"""Tests that a log that is damaged in half of its records costs a bounded number of rows and findings."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import audit_state, drill_down, queue_drill_down
from epochmq_spark.decode.summary_rows import BAD_MAX
from epochmq_spark.log_spans import RUNS_MAX, RUNS_OF_RANGE_MAX
from epochmq_spark.queue_drill_down import BucketPart, QueueRange
from epochmq_spark.sources import log_chunks
from epochmq_spark.sources.file_ranges import FileRange
from epochmq_spark.sources.summary import SummaryReader
from tests.spark import wrecked_groups
from tests.unit.spark import inprocess

pytestmark = pytest.mark.filterwarnings("ignore")
MESSAGES = 20_000


@pytest.fixture(scope="module")
def wrecked(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], int, int]:
    """The stores of a group, and how many records of the second one lost their magic number and body."""
    paths = wrecked_groups.healthy_stores(tmp_path_factory.mktemp("wrecked"), MESSAGES)
    return paths, *wrecked_groups.wreck(paths[1])


def test_the_rows_about_a_log_of_which_half_is_damaged_are_bounded(
    wrecked: tuple[list[Path], int, int],
) -> None:
    paths, magic, body = wrecked
    rows = inprocess.rows(SummaryReader(inprocess.replicas_of([paths[1]]), {}))
    segments = len(list((paths[1] / "commitlog").iterdir()))
    by_kind = Counter(row["kind"] for row in rows)
    assert magic > 4000
    assert body > 4000
    assert by_kind["span"] <= (RUNS_OF_RANGE_MAX + 2) * segments
    assert by_kind["bad"] == BAD_MAX * segments
    assert sum(row["count"] for row in rows if row["kind"] in ("bad", "more-bad")) == body


def test_the_driver_keeps_a_bounded_number_of_runs_and_findings_of_a_wrecked_log(
    wrecked: tuple[list[Path], int, int],
) -> None:
    paths, magic, _ = wrecked
    replicas = inprocess.replicas_of(paths)
    rows = inprocess.rows(SummaryReader(replicas, {"partitionBytes": "50000"}))
    spans = [row for row in rows if row["kind"] == "span"]
    assert len(spans) > RUNS_MAX + 100
    state = audit_state.scan_replicas(replicas)
    audit_state.add_histories(state, spans, [])
    runs = {one.name: len(one.spans) for one in state.histories["group-a"]}
    assert (runs["r1"], runs["r3"]) == (1, 1)
    assert RUNS_MAX < runs["r2"] <= RUNS_MAX + 2
    assert len(state.findings) <= RUNS_MAX + 10
    more = [row for row in state.findings if row["kind"] == "more"]
    assert sum(int(row["detail"].split()[0]) for row in more) + RUNS_MAX <= magic
    assert state.extents["group-a", "r2"].end == state.extents["group-a", "r1"].end


def test_a_log_of_which_half_is_damaged_is_read_once_more_for_all_its_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages of each of these queues lie in the whole log."""
    queues = 300
    _, path, _ = wrecked_groups.healthy_stores(tmp_path, 10 * queues, queues)
    wrecked_groups.wreck(path)
    replicas = inprocess.replicas_of([path])
    rows = inprocess.rows(SummaryReader(replicas, {}))
    state = audit_state.scan_replicas(replicas)
    audit_state.add_histories(state, [row for row in rows if row["kind"] == "span"], [])
    (log,) = state.logs().values()
    units = {row["queue_id"]: row["high"] + 1 for row in rows if row["kind"] == "unit"}
    of_queues = []
    for number, end in units.items():
        parts = [
            BucketPart(row["first"], row["end"], row["count"], row["digest"])
            for row in rows
            if row["kind"] == "queue" and row["queue_id"] == number
        ]
        of_queues.append(QueueRange("orders", number, 0, parts, end))
    read: list[int] = []

    def read_chunks(one: FileRange) -> object:
        read.append(one.end - one.begin)
        return log_chunks.read_chunks(one)

    monkeypatch.setattr(drill_down, "read_chunks", read_chunks)
    wanted = [one for queue in of_queues for one in queue_drill_down.wanted_messages(log, queue)]
    assert len({one.queue_id for one in wanted}) > queues / 2
    messages = list(queue_drill_down.read_wanted(log, wanted))
    assert sum(read) <= log.extent.end - log.extent.start
    alone = next(queue for queue in of_queues if queue.queue_id == wanted[0].queue_id)
    of_queue = [message for one, message in messages if one.queue_id == alone.queue_id]
    together = queue_drill_down.compare_messages(log, alone, of_queue)
    assert together == queue_drill_down.compare_queue_range(log, alone)
    assert len(of_queue) < 10  # the others have another magic number
