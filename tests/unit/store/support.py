"""Creates small stores and messages for tests, and reads the store's files by an independent parser."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from epochmq_formats import abort_file
from epochmq_protocol import javahash
from epochmq_protocol import message as records
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_store.appending.appender import AppendResult
from epochmq_store.message_store import MessageStore
from epochmq_store.state_files.abort_file import identity_of
from epochmq_store.statuses import GetResult, PutStatus
from epochmq_store.store_config import StoreConfig

HOST = b"\x7f\x00\x00\x02\x00\x00\x9c\x40"
HOST_V6 = bytes(15) + b"\x01" + b"\x00\x00\x9c\x40"
DELAYS_MS = (1000, 5000, 10_000)
LOG_FILE = 8192
QUEUE_FILE = 20 * 10
INDEX_SLOTS = 7
INDEX_CAPACITY = 16


def small_config(directory: Path, **changes: Any) -> StoreConfig:
    """Settings with small files, so that a few messages fill several."""
    settings: dict[str, Any] = {
        "store_path_root_dir": str(directory),
        "mapped_file_size_commit_log": LOG_FILE,
        "mapped_file_size_consume_queue": QUEUE_FILE,
        "max_hash_slot_num": INDEX_SLOTS,
        "max_index_num": INDEX_CAPACITY,
        "max_message_size": 2048,
        "delays_ms": DELAYS_MS,
    }
    return StoreConfig(**settings | changes)


def open_store(directory: Path, **changes: Any) -> MessageStore:
    """A loaded store with small files."""
    store = MessageStore(small_config(directory, **changes))
    store.load()
    return store


@dataclass
class Message:
    """A message before it is stored."""

    topic: str = "orders"
    queue_id: int = 0
    body: bytes = b"hello"
    properties: dict[str, str] = field(default_factory=dict)
    sys_flag: int = 0
    flag: int = 0
    born_host: bytes = HOST


def put(store: MessageStore, message: Message) -> AppendResult:
    """Appends a message with the arguments that the send path passes."""
    tags = message.properties.get("TAGS")
    return store.append(
        store.queue(message.topic, message.queue_id),
        body=message.body,
        properties=records.format_properties(message.properties),
        born_timestamp=1_700_000_000_000,
        born_host=message.born_host,
        flag=message.flag,
        sys_flag=message.sys_flag,
        tags_code=javahash.tags_code(tags) if tags else 0,
        uniq_key=message.properties.get("UNIQ_KEY"),
        keys=message.properties.get("KEYS"),
    )


def put_all(store: MessageStore, messages: list[Message]) -> list[AppendResult]:
    """Appends all messages, and checks that each was stored."""
    done = [put(store, message) for message in messages]
    assert all(status is PutStatus.PUT_OK for status, *_ in done)
    return done


def random_messages(seed: int, count: int) -> list[Message]:
    """A random mix of topics, queues, sizes, keys, tags, transaction types, delays and IPv6 hosts."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        topic = rng.choice(["orders", "payments", "SCHEDULE_TOPIC_XXXX", "t" * 140])
        properties = {"UNIQ_KEY": f"7F0000010A1E18B4AAC2{rng.getrandbits(32):08X}{number:04X}"}
        if rng.random() < 0.5:
            properties["KEYS"] = " ".join(f"key{rng.randrange(20)}" for _ in range(rng.randrange(1, 4)))
        if rng.random() < 0.6:
            properties["TAGS"] = rng.choice(["TagA", "TagB", "Ünicode"])
        if topic.startswith("SCHEDULE"):
            properties["DELAY"] = str(rng.choice([1, 2, 3, 9]))
        made.append(
            Message(
                topic=topic,
                queue_id=rng.randrange(3),
                body=rng.randbytes(rng.choice([0, 1, 30, 200, 900])),
                properties=properties,
                sys_flag=rng.choice([0, 0, 0, 0, 4, 8, 12]),
                flag=rng.randrange(-5, 5),
                born_host=rng.choice([HOST, HOST, HOST_V6]),
            )
        )
    return made


def receive(store: MessageStore, start: int, data: bytes) -> int:
    """Appends bytes of another replica's log as replication does, and returns the number of dispatched
    records."""
    store.replica_log.write(start, memoryview(data))
    count = store.dispatcher.catch_up()
    store.note_replicated_bytes()
    return count


def copy_after_crash(store: MessageStore, copy_to: Path) -> Path:
    """Copies the directory as a kill would leave it: all units are in the queues' files, and the abort file
    exists. The store itself keeps running."""
    store.queues.pending.write_all()
    shutil.copytree(store.config.root, copy_to)
    adopt_abort_file(copy_to)
    return copy_to


def adopt_abort_file(root: Path, **changes: Any) -> None:
    """Gives the abort file of a copied directory its own identity, as if it were no copy, and applies
    `changes` to its record."""
    path = root / "abort"
    with path.open("r+b") as file:
        left = abort_file.decode(file.read())
        left = msgspec.structs.replace(left, identity=identity_of(file.fileno()), **changes)
        file.seek(0)
        file.truncate()
        file.write(abort_file.encode(1, left))


def log_bytes(root: Path) -> bytes:
    """The joined content of all files of the log."""
    return b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))


def read_log(root: Path) -> Iterator[records.MessageExt]:
    """Every record from the start of the log up to the first invalid one, by the protocol's decoder."""
    start = int(min(path.name for path in (root / "commitlog").iterdir()))
    data = log_bytes(root)
    at = 0
    while at + 8 <= len(data):
        magic = int.from_bytes(data[at + 4 : at + 8], "big")
        if magic == records.BLANK_MAGIC & 0xFFFF_FFFF:
            at += LOG_FILE - at % LOG_FILE
            continue
        try:
            found = records.decode_record(data[: at - at % LOG_FILE + LOG_FILE], at)
        except RemoteProtocolError:
            return
        if found.physical_offset != start + at:
            return
        yield found
        at += found.store_size


def file_contents(root: Path, folder: str) -> dict[str, bytes]:
    """Maps the path of every file below a directory of the store to its content without trailing zeros."""
    base = root / folder
    return {
        str(path.relative_to(base)): path.read_bytes().rstrip(b"\0")
        for path in sorted(base.rglob("*"))
        if path.is_file()
    }


def index_contents(root: Path) -> list[bytes]:
    """The content of the index files, oldest first; their names are times."""
    return list(file_contents(root, "index").values())


def with_joined_pieces(found: GetResult) -> GetResult:
    """The result with its pieces joined, for comparisons."""
    return msgspec.structs.replace(found, pieces=[found.body])
