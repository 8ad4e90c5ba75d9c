"""Numbers and names that no broker writes are findings that name the file: they neither end the audit nor
hide what else is wrong."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="missing: what the audit needs (make install-spark)")
pytest.importorskip("numba", reason="missing: what the audit needs (make install-spark)")

from epochmq_spark import session
from epochmq_spark.decode.epoch_file import parse_epoch_text
from epochmq_spark.sources.offsets import parse_offsets
from tests.unit.spark import inprocess
from tests.unit.spark.conftest import Group

pytestmark = pytest.mark.filterwarnings("ignore")


def copies(stores: list[Path], folder: Path) -> list[Path]:
    """Copies of the stores, which a test may change."""
    return [Path(shutil.copytree(store, folder / store.name)) for store in stores]


def change_offsets(store: Path, entry: str, queues: dict[str, object]) -> str:
    file = store / "config" / "consumerOffset.json"
    table = json.loads(file.read_text())
    table["offsetTable"][entry] = queues
    file.write_text(json.dumps(table))
    return f"{file}: {entry!r}"


def large_offset(store: Path) -> str:
    return change_offsets(store, "T@g", {"0": 2**70})


def large_queue_id(store: Path) -> str:
    return change_offsets(store, "T@g", {str(2**40): 1})


def negative_offset(store: Path) -> str:
    return change_offsets(store, "T@g", {"0": -5})


def broken_offset(store: Path) -> str:
    return change_offsets(store, "T@g", {"0": 12.5})


def large_queue_directory(store: Path) -> str:
    folder = next((store / "consumequeue").iterdir()) / "99999999999"
    folder.mkdir()
    return str(folder)


def large_segment_name(store: Path) -> str:
    file = store / "commitlog" / "99999999999999999999"
    file.write_bytes(b"")
    return str(file)


def topic_that_is_no_text(store: Path) -> str:
    folder = Path(os.fsdecode(os.fsencode(store / "consumequeue") + b"/\xff\xfe"))
    (folder / "0").mkdir(parents=True)
    return str(store / "consumequeue" / r"\xff\xfe")


def large_epoch(store: Path) -> str:
    file = store / "epochFileCheckpoint"
    lines = file.read_text().splitlines()
    lines[2] = "9" * 23 + "-0"
    file.write_text("\n".join(lines) + "\n")
    (store / "epochFileCheckpoint.bak").unlink(missing_ok=True)
    return "line 3 is '99999999999999999999999-0'"


CHANGES: dict[Callable[[Path], str], str] = {
    large_offset: "state.unreadable",
    large_queue_id: "state.unreadable",
    negative_offset: "state.unreadable",
    broken_offset: "state.unreadable",
    large_queue_directory: "file.foreign",
    large_segment_name: "file.foreign",
    topic_that_is_no_text: "file.foreign",
    large_epoch: "epoch.file-broken",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_an_impossible_value_is_a_finding(
    change: Callable[[Path], str], group: Group, tmp_path: Path
) -> None:
    paths = copies(group(1001), tmp_path)
    expected = change(paths[1])
    found = inprocess.without_notes(inprocess.run(inprocess.replicas_of(paths)))
    of_kind = [row for row in found if (row["replica"], row["kind"]) == (paths[1].name, CHANGES[change])]
    assert any(expected in f"{row['file']} {row['detail']}" for row in of_kind), found


PIPES = {
    "checkpoint": "state.unreadable",
    "config/consumerOffset.json": "state.unreadable",
    "epochFileCheckpoint": "epoch.file-broken",
    "brokerIdentity": "state.unreadable",
    "consumequeue/orders/0/00000000000000000000": "file.foreign",
}


@pytest.mark.parametrize("name", PIPES)
@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_file_is_a_finding(name: str, group: Group, tmp_path: Path) -> None:
    """To open a pipe would wait for its other end for ever."""
    paths = copies(group(1001), tmp_path)
    place = paths[1] / name
    place.unlink(missing_ok=True)
    place.with_name(f"{place.name}.bak").unlink(missing_ok=True)
    os.mkfifo(place)
    found = inprocess.without_notes(inprocess.run(inprocess.replicas_of(paths)))
    of_kind = [row for row in found if (row["replica"], row["kind"]) == (paths[1].name, PIPES[name])]
    assert any("expected a file" in str(row["detail"]) for row in of_kind), found


def test_entries_beside_an_impossible_one_are_read() -> None:
    rows = parse_offsets(b'{"offsetTable":{"T@g":{0:7,1:-1},"lost":{},"U@g":{0:9}}}')
    assert [(row["topic"], row["offset"]) for row in rows if "fault" not in row] == [("T", 7), ("U", 9)]
    (fault,) = (row["fault"] for row in rows if "fault" in row)
    assert fault == (
        "'T@g' has the offset -1 for queue 1, expected numbers that are not negative; "
        "'lost': expected topic@group with offsets by queue"
    )


def test_an_epoch_file_keeps_its_good_lines() -> None:
    entries, fault = parse_epoch_text("2\n0\n1-0\n2--5\n")
    assert entries == [(1, 0)]
    assert fault is not None
    assert "line 4 is '2--5'" in fault


def test_the_error_of_a_task_is_named() -> None:
    from pyspark.errors import PySparkException

    text = (
        "An exception was thrown from the Python worker. Please see the stack trace below.\n"
        "Traceback (most recent call last):\n"
        '  File "/x/worker.py", line 1, in main\n'
        "    process()\n"
        "OverflowError: Python int too large to convert to C long\n"
        "\tat org.apache.spark.Some.java:1\n"
    )
    described = session.describe_error(PySparkException(text))
    assert described == "a task failed: OverflowError: Python int too large to convert to C long"
