"""One store directory, two programs: EpochMQ's store reads what RocketMQ's writes, and the other way round;
each continues where the other stopped. The Java side is `StoreTool`, RocketMQ's DefaultMessageStore without a
broker.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from epochmq_protocol import message as records
from epochmq_store.appending.appender import BatchMessage
from epochmq_store.files.lock_file import LockFile, StoreLockedError
from epochmq_store.message_store import MessageStore
from epochmq_store.record import keys_of, tags_code_of
from epochmq_store.statuses import PutStatus
from epochmq_store.store_config import StoreConfig
from tests.interop.conftest import EACH_RELEASE
from tests.interop.java_env import NEWEST, JavaProcess, Release, compile_java, run_java, using
from tests.interop.store_files import DELAYS_MS, ENTRIES, QUEUE_FILE, SLOTS, STORE_HOST, V4

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

COUNTS = pytest.mark.parametrize("count", [40_000, pytest.param(100_000, marks=pytest.mark.soak)])
"""Messages: more than a file of the log, of a queue or of the index holds."""
MORE = 2000
LOG_FILE = 8 << 20
SMALL_LOG_FILE = 1 << 20
TOPICS = ("orders", "payments", "%RETRY%group", "SCHEDULE_TOPIC_XXXX", "%RETRY%" + "g" * 130)
V6 = records.encode_host("2001:db8::1", 40000)

Line = tuple[str, ...]


@pytest.fixture(scope="module", params=EACH_RELEASE)
def release(request: pytest.FixtureRequest) -> Release:
    """The release whose store is tested beside ours."""
    found: Release = request.param
    return found


@pytest.fixture(scope="module")
def tool(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Runs StoreTool on a directory."""
    home = tmp_path_factory.mktemp("store-tool")

    def run(root: Path, *steps: str, log_file: int = LOG_FILE) -> None:
        sizes = [str(size) for size in (log_file, QUEUE_FILE, SLOTS, ENTRIES)]
        with using(release):
            classes = compile_java("StoreTool.java", "LocalStore.java", "ToolProcess.java")
            run_java("StoreTool", [str(root), *sizes, *steps], home=home, classes=classes, heap_mb=384)

    return run


def config(root: Path, *, crc: bool = False) -> StoreConfig:
    """The same file sizes as StoreTool's; `crc` as its word of that name."""
    return StoreConfig(
        enabled_append_prop_crc=crc,
        force_verify_prop_crc=crc,
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=LOG_FILE,
        mapped_file_size_consume_queue=QUEUE_FILE,
        max_hash_slot_num=SLOTS,
        max_index_num=ENTRIES,
        delays_ms=DELAYS_MS,
        disk_space_warning_level_ratio=90,
    )


def opened(root: Path, *, crc: bool = False) -> MessageStore:
    store = MessageStore(config(root, crc=crc), STORE_HOST)
    store.load()
    return store


# The messages, by number; StoreTool generates the same ones.


def body(number: int) -> bytes:
    if number % 1000 == 7:
        size = 65536
    elif number % 50 == 3:
        size = 4000
    else:
        size = 0 if number % 11 == 0 else number * 7 % 450
    pattern = bytes((number * 31 + at * 7) & 0xFF for at in range(min(size, 256)))
    return (pattern * (size // 256 + 1))[:size]


def properties(number: int) -> dict[str, str]:
    made = {"UNIQ_KEY": f"{number:032X}"}
    if number % 3:
        made["KEYS"] = f"key{number % 100} k{number}"
    if number % 4:
        made["TAGS"] = f"Tag{number % 7}"
    if number % len(TOPICS) == 3:
        made["DELAY"] = str(number % 20 + 1)
    made["größe"] = f"wert {number}"
    return made


def sys_flag(number: int) -> int:
    return {5: 4, 6: 8, 7: 12}.get(number % 97, 0)


def write(store: MessageStore, first: int, count: int) -> None:
    """Appends messages by number, some in batches."""
    number = first
    while number < first + count:
        if number % 500 == 100:
            elements = []
            for at in range(number, number + 10):
                own = {name: value for name, value in properties(at).items() if name != "DELAY"}
                rendered = records.format_properties(own | {"CLUSTER": "interop"})
                elements.append(
                    BatchMessage(body(at), rendered, at % 9 - 4, tags_code_of(rendered), *keys_of(rendered))
                )
            status, *_ = store.append_batch(
                store.queue("batches", 1), elements, born_timestamp=1_700_000_000_000 + number, born_host=V4
            )
            number += 10
        else:
            rendered = records.format_properties(properties(number))
            uniq_key, keys = keys_of(rendered)
            status, *_ = store.append(
                store.queue(TOPICS[number % len(TOPICS)], number // 5 % 4),
                body=body(number),
                properties=rendered,
                born_timestamp=1_700_000_000_000 + number,
                born_host=V6 if number % 13 == 0 else V4,
                flag=number % 9 - 4,
                sys_flag=sys_flag(number),
                reconsume_times=number % 3,
                prepared_offset=12345 if number % 97 == 6 else 0,
                tags_code=tags_code_of(rendered),
                uniq_key=uniq_key,
                keys=keys,
            )
            number += 1
        assert status is PutStatus.PUT_OK


def expected(first: int, count: int, *, writer: Release | None = None) -> Iterator[Line]:
    """The content of each message's record, without position and store time. `writer`: the release that
    stored it, if it was not EpochMQ. The newest one stores no property of a whole batch."""
    for number in range(first, first + count):
        batched = 100 <= number % 500 < 110
        own = properties(number)
        if batched:
            own.pop("DELAY", None)
            own |= {} if writer == NEWEST else {"CLUSTER": "interop"}
        flags = 0 if batched else sys_flag(number) | (0x10 if number % 13 == 0 else 0)
        content = body(number)
        yield (
            "batches" if batched else TOPICS[number % len(TOPICS)],
            str(1 if batched else number // 5 % 4),
            str(flags),
            str(number % 9 - 4),
            str(1_700_000_000_000 + (number - number % 10 if batched else number)),
            (V6 if flags & 0x10 else V4).hex(),
            STORE_HOST.hex(),
            str(0 if batched else number % 3),
            str(12345 if number % 97 == 6 and not batched else 0),
            str(len(content)),
            f"{zlib.crc32(content):x}",
            java_map(own),
        )


def java_map(own: dict[str, str]) -> str:
    """A sorted map as Java prints it."""
    return "{" + ", ".join(f"{name}={own[name]}" for name in sorted(own)) + "}"


def content_of(line: Line) -> Line:
    """The columns that do not depend on where and when a message was stored."""
    return line[2:4] + line[6:10] + line[11:]


# What each program reads


def our_log(store: MessageStore, start: int = 0) -> Iterator[Line]:
    """Every record from a physical offset on, as StoreTool's `log` writes it."""
    at = start
    while at < store.max_phy_offset:
        record = store.read(at)
        if record is None:
            at += LOG_FILE - at % LOG_FILE
            continue
        found = records.decode_record(record)
        yield (
            str(at),
            str(found.store_size),
            found.topic,
            str(found.queue_id),
            str(found.queue_offset),
            str(found.physical_offset),
            str(found.sys_flag),
            str(found.flag),
            str(found.born_timestamp),
            found.born_host.hex(),
            str(found.store_timestamp),
            found.store_host.hex(),
            str(found.reconsume_times),
            str(found.prepared_transaction_offset),
            str(len(found.body)),
            f"{zlib.crc32(found.body):x}",
            java_map(records.parse_properties(found.properties)),
        )
        at += found.store_size


def raw_log(store: MessageStore, end: int) -> int:
    """A checksum of the log's bytes up to a physical offset."""
    crc = 0
    for file in store.log.files.files:
        crc = zlib.crc32(file.map[: min(file.size, max(end - file.start, 0))], crc)
    return crc


def our_queues(store: MessageStore) -> Iterator[Line]:
    """Every unit, as StoreTool's `queues` writes it."""
    for (topic, queue_id), queue in sorted(store.queues.items()):
        for offset in range(queue.min_offset, queue.max_offset):
            unit = queue.unit(offset)
            assert unit is not None
            yield (topic, str(queue_id), str(offset), *map(str, unit))


def lines(path: Path) -> list[Line]:
    return [tuple(line.split("\t")) for line in path.read_text(encoding="utf-8").splitlines()]


def sample(root: Path, work: Path, log: list[Line]) -> tuple[Path, Path]:
    """Keys and times to query in both programs."""
    keys, times = work / "keys", work / "times"
    asked = [f"{line[2]}\t{int(line[8]) - 1_700_000_000_000:032X}" for line in log[:: len(log) // 150]]
    asked += [f"{topic}\tkey{number}" for topic in (*TOPICS, "batches") for number in range(0, 100, 9)]
    asked += ["orders\tnobody", "nobody\tkey1"]
    keys.write_text("\n".join(asked) + "\n", encoding="utf-8")
    stored = [int(line[10]) for line in log]
    moments = sorted({stored[0] - 1, stored[0], stored[-1], stored[-1] + 1, *stored[:: len(stored) // 40]})
    times.write_text(
        "".join(
            f"{topic}\t{queue}\t{time}\n"
            for topic in ("orders", TOPICS[4])
            for queue in (0, 3)
            for time in moments
        ),
        encoding="utf-8",
    )
    return keys, times


def check_answers(store: MessageStore, keys: Path, times: Path, work: Path) -> None:
    """Asserts that both programs give the same responses to the sampled queries."""
    for topic, key, offsets in lines(work / "keys.out"):
        found = store.reader.query(topic, key, 64, 0, (1 << 63) - 1)
        ours = [str(one.physical_offset) for one in records.decode_records(found.body)]
        assert ",".join(ours) == offsets, (topic, key)
    for topic, queue_id, time, lower, upper in lines(work / "times.out"):
        ours = [
            str(store.lookup.offset_by_time(topic, int(queue_id), int(time), upper=bound))
            for bound in (False, True)
        ]
        assert ours == [lower, upper], (topic, queue_id, time)


@COUNTS
def test_java_reads_our_store_and_we_read_what_java_added(
    release: Release, tool: Callable[..., None], tmp_path: Path, count: int
) -> None:
    root, work = tmp_path / "store", tmp_path / "work"
    work.mkdir()
    store = opened(root)
    write(store, 0, count)
    ours, units = list(our_log(store)), list(our_queues(store))
    keys, times = sample(root, work, ours)
    end = store.max_phy_offset
    before = raw_log(store, end)
    store.stop()
    assert [content_of(line) for line in ours] == list(expected(0, count))
    tool(
        root,
        f"log:{work / 'log'}", f"queues:{work / 'queues'}",
        f"query:{keys}:{work / 'keys.out'}", f"times:{times}:{work / 'times.out'}",
        f"write:{count}:{MORE}",
    )  # fmt: skip
    assert lines(work / "log") == ours
    assert lines(work / "queues") == units
    store = opened(root)
    check_answers_of_the_first(store, work, ours)
    added = list(our_log(store, end))
    assert [content_of(line) for line in added] == list(expected(count, MORE, writer=release))
    check_queues(store, ours + added)
    assert raw_log(store, end) == before
    store.stop()


def check_answers_of_the_first(store: MessageStore, work: Path, log: list[Line]) -> None:
    """As `check_answers`. Java was queried before it wrote, so later messages are left out of EpochMQ's
    responses."""
    end = int(log[-1][0]) + int(log[-1][1])
    for topic, key, offsets in lines(work / "keys.out"):
        found = store.reader.query(topic, key, 64, 0, int(log[-1][10]))
        ours = [one.physical_offset for one in records.decode_records(found.body)]
        wanted = [int(offset) for offset in offsets.split(",") if offset]
        if len(ours) < 64:
            assert [offset for offset in ours if offset < end] == wanted, (topic, key)
    last = int(log[-1][10])
    for topic, queue_id, time, lower, upper in lines(work / "times.out"):
        if int(time) < last:
            ours = [
                store.lookup.offset_by_time(topic, int(queue_id), int(time), upper=bound)
                for bound in (False, True)
            ]
            assert [str(one) for one in ours] == [lower, upper], (topic, queue_id, time)


def check_queues(store: MessageStore, log: list[Line]) -> None:
    """Asserts that every record of a queue is at its offset there, and that nothing else is."""
    units = {line[:3]: (line[3], line[4]) for line in our_queues(store)}
    wanted = {(line[2], line[3], line[4]): (line[0], line[1]) for line in log if not int(line[6]) & 4}
    assert units == wanted


@COUNTS
def test_we_read_javas_store_and_java_reads_what_we_added(
    release: Release, tool: Callable[..., None], tmp_path: Path, count: int
) -> None:
    root, work = tmp_path / "store", tmp_path / "work"
    work.mkdir()
    tool(root, f"write:0:{count}", "dispatched", f"log:{work / 'log'}", f"queues:{work / 'queues'}")
    assert not (root / "abort").exists()
    store = opened(root)
    ours, units = list(our_log(store)), list(our_queues(store))
    assert [content_of(line) for line in ours] == list(expected(0, count, writer=release))
    assert lines(work / "log") == ours
    assert lines(work / "queues") == units
    check_queues(store, ours)
    end = store.max_phy_offset
    write(store, count, MORE)
    ours += our_log(store, end)
    units = list(our_queues(store))
    store.stop()
    keys, times = sample(root, work, ours)
    tool(
        root,
        f"log:{work / 'log'}", f"queues:{work / 'queues'}",
        f"query:{keys}:{work / 'keys.out'}", f"times:{times}:{work / 'times.out'}",
    )  # fmt: skip
    assert lines(work / "log") == ours
    assert lines(work / "queues") == units
    store = opened(root)
    check_answers(store, keys, times, work)
    store.stop()


def test_java_builds_the_same_queues_and_index_from_our_log(
    release: Release, tool: Callable[..., None], tmp_path: Path
) -> None:
    """Byte for byte: Java gets nothing but the log, as after a kill. The newest release's index also has the
    tags."""
    root, java = tmp_path / "ours", tmp_path / "java"
    store = opened(root)
    write(store, 0, 20_000)
    store.stop()
    java.mkdir()
    shutil.copytree(root / "commitlog", java / "commitlog")
    (java / "abort").write_text("1")
    tool(java)
    assert tree(java / "consumequeue") == tree(root / "consumequeue")
    if release != NEWEST:
        assert list(tree(java / "index").values()) == list(tree(root / "index").values())
    assert tree(java / "commitlog") == tree(root / "commitlog")


def tree(directory: Path) -> dict[str, bytes]:
    """Path → content of all files that are not empty."""
    return {
        str(path.relative_to(directory)): data
        for path in sorted(directory.rglob("*"))
        if path.is_file() and (data := path.read_bytes()).strip(b"\0")
    }


def test_the_store_of_a_killed_java_broker_is_recovered(tool: Callable[..., None], tmp_path: Path) -> None:
    root, work = tmp_path / "store", tmp_path / "work"
    work.mkdir()
    tool(root, "write:0:5000", f"log:{work / 'log'}", "halt")
    assert (root / "abort").exists()
    store = opened(root)
    ours = list(our_log(store))
    assert ours == lines(work / "log")
    check_queues(store, ours)
    assert store.reader.query("orders", "key5", 64, 0, 1 << 62).count == sum(
        line[2] == "orders" and "KEYS=key5 " in line[-1] and int(line[6]) & 12 != 12 for line in ours
    )
    store.stop()


def test_java_recovers_the_store_of_our_killed_broker(tool: Callable[..., None], tmp_path: Path) -> None:
    root, work = tmp_path / "store", tmp_path / "work"
    work.mkdir()
    store = opened(root)
    write(store, 0, 5000)
    ours, units = list(our_log(store)), list(our_queues(store))
    left = tmp_path / "left"
    shutil.copytree(root, left)
    store.stop()
    tool(left, f"log:{work / 'log'}", f"queues:{work / 'queues'}")
    assert lines(work / "log") == ours
    assert lines(work / "queues") == units


def test_a_java_broker_and_our_broker_exclude_each_other(tmp_path: Path) -> None:
    root = tmp_path / "store"
    sizes = [str(size) for size in (LOG_FILE, QUEUE_FILE, SLOTS, ENTRIES)]
    java = JavaProcess(
        "StoreTool",
        [str(root), *sizes, "wait:600000"],
        home=tmp_path / "home",
        classes=compile_java("StoreTool.java", "LocalStore.java", "ToolProcess.java"),
        heap_mb=128,
    )
    java.start()
    try:
        java.wait_until(lambda: _locked(root / "lock"))
        with pytest.raises(StoreLockedError):
            opened(root)
    finally:
        java.kill()
    store = opened(root)
    other = JavaProcess(
        "StoreTool",
        [str(root), *sizes],
        home=tmp_path / "home2",
        classes=compile_java("StoreTool.java", "LocalStore.java", "ToolProcess.java"),
        heap_mb=128,
    )
    other.start()
    try:
        assert other.wait() != 0
        assert "Lock failed" in other.output()
    finally:
        other.kill()
    store.stop()


def _locked(path: Path) -> bool:
    """Whether another process has locked the first byte."""
    if not path.exists():
        return False
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def test_the_lock_is_released(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "lock")
    lock.release()
    lock.release()
    LockFile(tmp_path / "lock").release()


# The property __CRC32#


def positions(store: MessageStore) -> list[tuple[int, int]]:
    """(physical offset, size) of every record."""
    return [(int(line[0]), int(line[1])) for line in our_log(store)]


def test_each_program_checks_the_property_crc_of_the_other(tool: Callable[..., None], tmp_path: Path) -> None:
    root, half = tmp_path / "store", 750
    store = opened(root, crc=True)
    write(store, 0, half)
    store.stop()
    # After a crash each program checks the records from the first file on.
    (root / "abort").touch()
    tool(root, "crc", f"log:{tmp_path / 'java'}", f"write:{half}:{half}", "halt")
    assert len((tmp_path / "java").read_text().splitlines()) == half
    everything: list[tuple[int, int]] = []
    for damaged in (None, 300, 1200):
        copy = tmp_path / f"damaged-{damaged}"
        shutil.copytree(root, copy)
        if damaged is not None:
            at, size = everything[damaged]
            with (copy / "commitlog" / f"{0:020}").open("r+b") as file:
                file.seek(at + size - 25)  # in a property before the checksum
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes((byte[0] ^ 1,)))
        shutil.copytree(copy, tmp_path / f"java-{damaged}")
        tool(tmp_path / f"java-{damaged}", "crc", f"log:{tmp_path / 'after'}", "halt")
        java_count = len((tmp_path / "after").read_text().splitlines())
        ours = opened(copy, crc=True)
        everything = everything or positions(ours)
        assert all("__CRC32#=" in line[-1] for line in our_log(ours))
        assert len(positions(ours)) == java_count == (2 * half if damaged is None else damaged)
        ours.stop()


def test_recovery_without_the_key_keeps_records_with_a_property_crc(
    tool: Callable[..., None], tmp_path: Path
) -> None:
    tool(tmp_path / "store", "crc", "write:0:50", "halt")
    store = opened(tmp_path / "store")
    assert len(positions(store)) == 50
    store.stop()


# Several directories of the log


def test_a_log_in_two_directories_continues_in_both_programs(
    tool: Callable[..., None], tmp_path: Path
) -> None:
    root, count = tmp_path / "store", 4000

    def ours() -> MessageStore:
        paths = f"{root}/log-b,{root}/log-a"
        store = MessageStore(
            msgspec.structs.replace(
                config(root), store_path_commit_log=paths, mapped_file_size_commit_log=SMALL_LOG_FILE
            ),
            STORE_HOST,
        )
        store.load()
        return store

    store = ours()
    write(store, 0, count)
    store.stop()
    tool(root, "paths", f"write:{count}:{count}", "dispatched", log_file=SMALL_LOG_FILE)
    store = ours()
    write(store, 2 * count, count)
    queues = [queue for queue in store.queues.values() if queue.topic == "orders"]
    stored = [number for number in range(3 * count) if number % 5 == 0 and not 100 <= number % 500 < 110]
    kept = [number for number in stored if not sys_flag(number) & 4]
    assert sum(queue.max_offset for queue in queues) == len(kept)
    files = [(file.start // SMALL_LOG_FILE, file.path.parent.name) for file in store.log.files.files]
    assert files == [(number, f"log-{'ab'[number % 2]}") for number in range(len(files))]
    assert len(files) > 5
    store.stop()
