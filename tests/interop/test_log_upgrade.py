"""A plain commit log becomes the old part of a DLedger log: EpochMQ makes the same files of it as RocketMQ,
and each program continues a directory that the other has upgraded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from epochmq_broker.config.broker_config import BrokerConfig, from_properties
from epochmq_broker.membership.dledger.log_upgrade import upgrade
from tests.interop.dledger_logs import fill, switch, unique, wait_shown
from tests.interop.java_cluster import java_broker
from tests.interop.java_env import JavaProcess, compile_java, run_java
from tests.interop.store_files import ENTRIES, QUEUE_FILE, SLOTS
from tests.interop.upgraded_modes import set_mode
from tests.support.dledger_group import DLedgerGroup
from tests.support.group_processes import our_broker
from tests.support.group_traffic import TOPIC
from tests.support.net import free_port
from tests.support.process import wait_until

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

FILE_SIZE = 1 << 18
COUNT = 1500

Tool = Callable[..., None]


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Tool:
    """Runs StoreTool on a directory; with `dledger` as a broker with a DLedger commit log."""
    classes = compile_java("StoreTool.java", "LocalStore.java", "ToolProcess.java")
    home = tmp_path_factory.mktemp("store-tool")

    def run(root: Path, *steps: str, dledger: bool = False) -> None:
        words = [str(root), *(str(size) for size in (FILE_SIZE, QUEUE_FILE, SLOTS, ENTRIES))]
        mode = [f"dledger:{free_port('127.0.0.1')}"] if dledger else []
        run_java("StoreTool", [*words, *mode, *steps], home=home, classes=classes, heap_mb=384)

    return run


def config_of(root: Path) -> BrokerConfig:
    """The settings of a broker with StoreTool's file sizes."""
    return from_properties(
        {
            "storePathRootDir": str(root),
            "storePathDLedgerCommitLog": str(root / "data"),
            "enableDLegerCommitLog": "true",
            "dLegerGroup": "interop",
            "dLegerSelfId": "n0",
            "dLegerPeers": "n0-127.0.0.1:1",
            "mappedFileSizeCommitLog": str(FILE_SIZE),
            "maxMessageSize": "100000",
            "mappedFileSizeConsumeQueue": str(QUEUE_FILE),
            "maxHashSlotNum": str(SLOTS),
            "maxIndexNum": str(ENTRIES),
        }
    ).config


def contents(root: Path, *folders: str) -> dict[str, bytes]:
    found = (path for folder in folders for path in (root / folder).rglob("*"))
    return {str(path.relative_to(root)): path.read_bytes() for path in found if path.is_file()}


def units(root: Path) -> list[list[str]]:
    """The units of the queues, without tag codes, which depend on the time in the schedule topic."""
    return [line.split("\t")[:5] for line in (root / "queues.txt").read_text().splitlines()]


@pytest.mark.parametrize("end", ["killed", pytest.param("stopped", marks=pytest.mark.soak)])
def test_the_upgraded_files_are_rocketmqs(tool: Tool, tmp_path: Path, end: str) -> None:
    """A directory of RocketMQ's is upgraded by both programs. RocketMQ then continues both, and builds the
    same queues over the boundary."""
    java, ours = tmp_path / "java", tmp_path / "ours"
    java.mkdir()
    steps = [f"write:0:{COUNT}", "dispatched"]
    tool(java, *steps, *(["halt"] if end == "killed" else []))
    shutil.copytree(java, ours)
    tool(java, dledger=True)
    upgrade(config_of(ours))
    assert contents(ours, "commitlog", "data") == contents(java, "commitlog", "data")
    for root in (java, ours):
        queues = root / "queues.txt"
        tool(root, f"write:{COUNT}:200", "dispatched", f"queues:{queues}", dledger=True)
    expected = units(java)
    assert units(ours) == expected
    assert len(expected) > COUNT
    assert len(contents(ours, "data")) == len(contents(java, "data"))


HISTORIES = {
    "rocketmqs-directory-upgraded-by-us": (java_broker, our_broker, java_broker),
    "our-directory-upgraded-by-rocketmq": (our_broker, java_broker, our_broker),
    "rocketmqs-directory-upgraded-by-it": (java_broker, java_broker, our_broker),
    "our-directory-upgraded-by-us": (our_broker, our_broker, java_broker),
}
QUICK = {("rocketmqs-directory-upgraded-by-us", True), ("our-directory-upgraded-by-rocketmq", False)}


@pytest.mark.parametrize(
    ("history", "killed"),
    [
        pytest.param(
            history,
            killed,
            id=f"{history}-{'killed' if killed else 'stopped'}",
            marks=[] if (history, killed) in QUICK else [pytest.mark.soak],
        )
        for history in HISTORIES
        for killed in (False, True)
    ],
)
def test_each_program_continues_what_the_other_has_upgraded(
    tmp_path: Path, history: str, *, killed: bool
) -> None:
    """At the end a Java consumer reads from the first to the last message over the boundary."""
    plain, first, second = HISTORIES[history]
    sent: list[bytes] = []
    group = DLedgerGroup(tmp_path, [plain])
    (member,) = group.brokers
    set_mode(member, dledger=False)
    with group:
        fill(group, member, 400, sent)
        wait_shown(group, member, sent)
        for make in (first, second, first):
            if killed:
                member.process.kill()
            set_mode(member, dledger=True)
            switch(member, make)
            group.wait_master()
            wait_shown(group, member, sent)
            fill(group, member, 300, sent)
        wait_shown(group, member, sent)
        assert consumed(group, tmp_path, len(sent)) == sent
    plain_files = sorted((group.store(0) / "commitlog").iterdir())
    data_files = sorted((group.store(0) / "dledger-n0" / "data").iterdir())
    assert int(data_files[0].name) == int(plain_files[-1].name) + plain_files[-1].stat().st_size
    assert len(plain_files) > 1
    assert len(data_files) > 2


def consumed(group: DLedgerGroup, directory: Path, count: int) -> list[bytes]:
    """The first messages of the test's topic as a new Java consumer gets them, each once, in order."""
    consumer = JavaProcess(
        "SteadyConsumer",
        [group.nameserver.address, TOPIC, "from-the-first", "orderly", "0"],
        home=directory / "consumer",
        classes=compile_java("SteadyConsumer.java"),
        heap_mb=128,
    )
    consumer.start()

    def bodies() -> list[bytes]:
        lines = consumer.output_path.read_text(errors="replace").splitlines()
        words = (line.split() for line in lines if line.startswith("message 0 "))
        return unique([parts[4].encode() for parts in words if len(parts) == 6])

    try:
        wait_until(lambda: len(bodies()) >= count, what="the consumer has all messages")
        return bodies()
    finally:
        consumer.kill()
