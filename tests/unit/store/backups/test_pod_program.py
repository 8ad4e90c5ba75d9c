"""The program of a backup's pod asks for its cut after it has read what was processed, takes one backup for
one order, deletes old ones, and leaves a message."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from epochmq_store.backups import catalog, pod_program
from epochmq_store.backups.object_storage import DirectoryObjects
from tests.unit.store.backups.log_bytes import log, write_store

MESSAGES = [(1000 + number, b"message %d" % number + b"." * 150) for number in range(40)]
WAIT_S = 60.0


class Volume:
    """The volume of a replica whose broker runs, and the files by which a pod gets its cut."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, folder / "store"
        self.url, self.ready, self.cut = folder / "backups", folder / "ready", folder / "cut"
        self.message = folder / "termination-log"
        self.write(40, processed=10)

    def write(self, count: int, processed: int) -> None:
        offsets = b'{"offsetTable":{"t@readers":{0:%d}}}' % processed
        write_store(self.store, log(MESSAGES[:count]), config={"consumerOffset.json": offsets})

    @property
    def storage(self) -> DirectoryObjects:
        return DirectoryObjects(self.url, str(self.url))

    def run(self, order: str, *more: str, wait_s: float = WAIT_S) -> tuple[int, Any]:
        """The exit code and the termination message."""
        words = {
            "--url": self.url,
            "--store": self.store,
            "--broker-name": "orders-a",
            "--cluster": "DefaultCluster",
            "--mode": "Controller",
            "--replica": "orders-broker-0",
            "--order": order,
            "--ready": self.ready,
            "--cut": self.cut,
            "--cut-wait-s": wait_s,
            "--message": self.message,
        }
        code = pod_program.main([str(word) for pair in words.items() for word in pair] + list(more))
        return code, json.loads(self.message.read_text())


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path)


def test_the_cut_is_read_after_what_was_processed(volume: Volume) -> None:
    end = len(log(MESSAGES[:25]))

    def operator() -> None:
        # Consumers go on after the program has read their offsets; the cut comes later still.
        pause = threading.Event()
        while not volume.ready.exists():
            pause.wait(0.01)
        volume.write(40, processed=35)
        volume.cut.write_text(f"{end}\n")

    thread = threading.Thread(target=operator)
    thread.start()
    code, message = volume.run("uid/1")
    thread.join()
    assert (code, message["logEnd"], message["replica"]) == (0, end, "orders-broker-0")
    (taken,) = catalog.manifests(volume.storage)
    assert (taken.id, taken.order, taken.group.mode) == (message["id"], "uid/1", "Controller")
    (offsets,) = (one for one in taken.files if one.path == "config/consumerOffset.json")
    assert b"{0:10}" in b"".join(volume.storage.read(offsets.key))


def test_an_order_that_is_carried_out_again_makes_no_second_backup(volume: Volume) -> None:
    volume.cut.write_text(str(len(log(MESSAGES[:25]))))
    first = volume.run("uid/1")
    volume.cut.write_text(str(len(log(MESSAGES))))
    assert volume.run("uid/1") == first
    assert len(catalog.ids(volume.storage)) == 1
    code, second = volume.run("uid/2")
    assert (code, second["parent"], second["logEnd"]) == (0, first[1]["id"], len(log(MESSAGES)))
    assert second["uploadedBytes"] < second["bytes"]


def test_older_backups_are_deleted_and_a_failure_of_that_is_a_warning(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (10, 20, 30):
        volume.cut.write_text(str(len(log(MESSAGES[:number]))))
        code, message = volume.run(f"uid/{number}", "--keep", "2")
        assert (code, message["warning"]) == (0, "")
    assert message["pruned"] == 1
    assert {one.order for one in catalog.manifests(volume.storage)} == {"uid/20", "uid/30"}

    def fail(*_: object) -> None:
        raise OSError("no right to delete")

    monkeypatch.setattr(DirectoryObjects, "delete", fail)
    volume.cut.write_text(str(len(log(MESSAGES))))
    code, message = volume.run("uid/40", "--keep", "1")
    assert (code, message["pruned"]) == (0, 0)
    assert "no right to delete" in message["warning"]
    assert len(catalog.ids(volume.storage)) == 3


@pytest.mark.parametrize(
    ("cut", "error"), [("", "had no offset"), ("-1", "expected an offset"), ("1" * 30, "expected an offset")]
)
def test_a_cut_that_does_not_come_or_is_none_ends_the_program(volume: Volume, cut: str, error: str) -> None:
    volume.cut.write_text(cut)
    code, message = volume.run("uid/1", wait_s=0.0)
    assert code == 1
    assert error in message["error"]
    assert catalog.ids(volume.storage) == []
