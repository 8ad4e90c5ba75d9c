"""The files of a RocketMQ broker whose commit log is a DLedger log: EpochMQ's log of blocks writes the same
bytes, and each program continues what the other wrote. The Java side is `StoreTool` with a `DLedgerCommitLog`
of one peer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from epochmq_broker.membership.dledger.first_record import encode_members_record
from epochmq_dledger.store.block_log import BlockLog
from epochmq_dledger.store.segments import sync_and_close
from epochmq_dledger.store.state_files import load_committed, load_vote, save_checkpoint, save_vote
from epochmq_formats.dledger_log import ENTRY_HEADER_SIZE, decode_entry
from epochmq_protocol import message_const as const
from epochmq_protocol import record_layout
from epochmq_protocol.checksum import CRC_MASK, crc32
from epochmq_protocol.dledger import MEMBERS_CHANNEL
from epochmq_store import record
from tests.interop.java_env import compile_java, run_java
from tests.interop.store_files import DELAYS_MS, ENTRIES, QUEUE_FILE, SLOTS, STORE_HOST, V4
from tests.support.net import free_port

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

FILE_SIZE = 1 << 18
COUNT = 1500
POSITION_AT = 28
"""Where a record contains its position (`MessageDecoder.PHY_POS_POSITION`)."""

Tool = Callable[..., None]


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Tool:
    """Runs StoreTool on the directory of a broker with a DLedger commit log."""
    classes = compile_java("StoreTool.java", "LocalStore.java", "ToolProcess.java")
    home = tmp_path_factory.mktemp("store-tool")

    def run(root: Path, *steps: str) -> None:
        sizes = [str(size) for size in (FILE_SIZE, QUEUE_FILE, SLOTS, ENTRIES)]
        words = [str(root), *sizes, f"dledger:{free_port('127.0.0.1')}", *steps]
        run_java("StoreTool", words, home=home, classes=classes, heap_mb=384)

    return run


@pytest.fixture(scope="module")
def java_root(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that RocketMQ has written, with the dump of its log and queues."""
    root = tmp_path_factory.mktemp("java") / "store"
    root.mkdir()
    tool(root, f"write:0:{COUNT}", "dispatched", f"log:{root}/log.txt", f"queues:{root}/queues.txt")
    return root


def is_record(data: bytes, at: int, size: int, position: int) -> bool:
    """Whether a body is a whole record of the commit log."""
    found = record.parse(data, at, at + size, position, DELAYS_MS, check_crc=True)  # type: ignore[arg-type]
    return isinstance(found, record.DispatchRequest) and found.size == size


def opened(root: Path) -> BlockLog:
    folder = root / "dledger-n0"
    folder.mkdir(parents=True, exist_ok=True)
    log = BlockLog(folder, FILE_SIZE, data_folder=root / "data", position_at=POSITION_AT, check=is_record)
    log.open(load_committed(folder))
    assert log.damage is None, log.damage
    return log


def bodies_of(log: BlockLog) -> list[tuple[int, bytes]]:
    """The term and the body of each entry, without the position in it."""
    found = []
    for index in range(log.begin_index, log.end_index + 1):
        entry = log.entry(index)
        assert entry is not None
        found.append((entry.term, entry.body[:POSITION_AT] + bytes(8) + entry.body[POSITION_AT + 8 :]))
    return found


def close(log: BlockLog, root: Path) -> None:
    """Closes a log as a broker that stops does: everything is durable and committed."""
    sync_and_close(log.take_unsynced())
    save_checkpoint(root / "dledger-n0", log.end_index, log.end_index)
    log.close()


def files_equal(one: Path, other: Path) -> bool:
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in other.iterdir())
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def barrier(term: int) -> bytes:
    """A record that neither consume queues nor the index take: that of a rolled-back transaction."""
    topic, text, properties = b"SELF_TEST_TOPIC", f"term {term}".encode(), b"WAIT\x01true\x02"
    size = record_layout.HEAD_V4.size + len(text) + 1 + len(topic) + 2 + len(properties)
    head = record_layout.HEAD_V4.pack(
        size, const.MAGIC_V1, crc32(text) & CRC_MASK, 0, 0, 0, 0,
        const.TRANSACTION_ROLLBACK_TYPE, 1_700_000_000_000, V4, 1_700_000_000_000, STORE_HOST, 0, 0,
        len(text),
    )  # fmt: skip
    return head + text + bytes([len(topic)]) + topic + len(properties).to_bytes(2, "big") + properties


def test_the_same_records_give_the_bytes_of_rocketmqs_files(java_root: Path, tmp_path: Path) -> None:
    java = opened(java_root)
    assert java.end_index + 1 == COUNT
    assert len(list((java_root / "data").iterdir())) > 2
    ours = opened(tmp_path)
    for term, run in itertools.groupby(bodies_of(java), key=lambda one: one[0]):
        bodies = [body for _, body in run]
        for at in range(0, len(bodies), 277):
            ours.append_bodies(term, bodies[at : at + 277])
    assert files_equal(java_root / "data", tmp_path / "data")
    assert files_equal(java_root / "dledger-n0" / "index", tmp_path / "dledger-n0" / "index")

    follower = opened(tmp_path / "follower")
    while follower.end_index < java.end_index:
        follower.append_received(java.read_block(follower.end_index + 1, 100_000))
    assert files_equal(java_root / "data", tmp_path / "follower" / "data")
    for log in (java, ours, follower):
        log.close()


def test_rocketmq_continues_our_log_and_we_continue_its(java_root: Path, tool: Tool, tmp_path: Path) -> None:
    """Our log has a record that is for no queue at the start of each term, and one that names the voters, and
    lost a tail by a truncation."""
    java = opened(java_root)
    bodies = [body for _, body in bodies_of(java)]
    java.close()
    half = COUNT // 2
    root = tmp_path / "store"
    log = opened(root)
    log.append_bodies(1, [barrier(1), *bodies[:half], *bodies[:700]])
    log.truncate(half)
    log.erase_now()
    voters = encode_members_record({"n0": "127.0.0.1:1"}, STORE_HOST, 1_700_000_000_000)
    log.append_bodies(3, [barrier(3)])
    log.append_bodies(3, [voters], MEMBERS_CHANNEL)
    log.append_bodies(3, bodies[half:])
    assert log.end_index == COUNT + 2
    save_vote(root / "dledger-n0", 3, "n0")
    close(log, root)
    (root / "abort").touch()  # after a clean stop RocketMQ expects complete queues, and builds none

    tool(root, f"queues:{root}/queues.txt", f"log:{root}/log.txt", f"write:{COUNT}:100", "dispatched")
    expected = _units(java_root / "queues.txt")
    assert len(expected) > COUNT * 0.9
    # The positions differ, because there are other entries between; everything else is equal.
    assert [unit[:3] + unit[4:] for unit in _units(root / "queues.txt")] == [
        unit[:3] + unit[4:] for unit in expected
    ]
    assert len((root / "log.txt").read_text().splitlines()) == COUNT + 3

    log = opened(root)
    assert load_vote(root / "dledger-n0").term >= 3
    assert log.end_index == COUNT + 102
    entry = log.entry(log.end_index)
    assert entry is not None
    assert entry.term >= 3
    position = log.end_pos - entry.size + ENTRY_HEADER_SIZE
    assert is_record(entry.body, 0, len(entry.body), position)
    close(log, root)


def _units(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text().splitlines()]


def test_both_programs_open_a_log_whose_first_files_have_expired(
    java_root: Path, tool: Tool, tmp_path: Path
) -> None:
    java = opened(java_root)
    bodies = [body for _, body in bodies_of(java)]
    java.close()
    root = tmp_path / "store"
    log = opened(root)
    log.append_bodies(1, bodies)
    log.mark_synced(log.end_index, 1)
    begin = log.expire_files(FILE_SIZE, log.end_index)
    for job in log.take_removals():
        job()
    assert begin > 0
    first = decode_entry(log.read_block(begin, 1))
    assert (first.index, first.pos) == (begin, FILE_SIZE)
    save_vote(root / "dledger-n0", 1, "n0")
    close(log, root)

    tool(root, f"log:{root}/log.txt", f"write:{COUNT}:100", "dispatched")
    assert len((root / "log.txt").read_text().splitlines()) == COUNT - begin
    log = opened(root)
    assert (log.begin_index, log.end_index) == (begin, COUNT + 99)
    log.close()
