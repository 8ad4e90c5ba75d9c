"""Creates groups whose commit logs are DLedger logs: stores and logs of ours, in one process, with elections,
lags and truncations chosen by a seed. Entries are copied as blocks, without a network. The directories are
healthy by construction."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

from epochmq_broker.config.broker_config import from_properties
from epochmq_broker.membership.dledger import commit_log_peer
from epochmq_broker.membership.dledger.committed_log import CommittedLog
from epochmq_broker.membership.dledger.first_record import encode_first_record
from epochmq_broker.membership.dledger.leader_appender import LeaderAppender
from epochmq_dledger.store import state_files
from epochmq_dledger.store.block_log import BlockLog
from epochmq_formats.dledger_log import INDEX_UNIT_SIZE
from epochmq_protocol.record_layout import PHYSICAL_OFFSET_AT
from epochmq_store.statuses import PutStatus
from tests.spark.seeded_groups import SETTINGS, random_message, write_consumer_offsets
from tests.unit.broker.replication.ha.broker_node import SMALL
from tests.unit.store.support import HOST, put

INDEX_FILE_BYTES = 100 * INDEX_UNIT_SIZE
BLOCK_BYTES = 1 << 16


class DLedgerNode:
    """The store and the log of one peer. Its `id` is that of the broker."""

    def __init__(
        self,
        directory: Path,
        broker_id: int,
        data_folder: Path | None = None,
        *,
        index_file_bytes: int = INDEX_FILE_BYTES,
        **more: str,
    ) -> None:
        self.directory, self.id = directory, broker_id
        settings = {
            **SMALL,
            **SETTINGS,
            "storePathRootDir": str(directory),
            "enableDLegerCommitLog": "true",
            "dLegerGroup": "group-a",
            "dLegerPeers": "n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3",
            "dLegerSelfId": f"n{broker_id - 1}",
            **more,
        }
        if data_folder is not None:
            settings["storePathDLedgerCommitLog"] = str(data_folder)
        config = from_properties(settings).config
        self.store = commit_log_peer.make_store(
            config, HOST, is_batch_topic=lambda _topic: None, bit_map=None
        )
        self.folder = commit_log_peer.peer_folder(config)
        self.log = BlockLog(
            self.folder,
            config.mapped_file_size_commit_log,
            index_file_bytes,
            commit_log_peer.data_folder(config),
            position_at=PHYSICAL_OFFSET_AT,
            check=commit_log_peer.is_record,
            first_body=lambda term: encode_first_record(term, HOST, int(time.time() * 1000)),
        )
        self.committed = -1
        assert isinstance(self.store.log, CommittedLog)
        self._shown = self.store.log
        self._shown.recover = self._recover
        self._shown.data_files = self.log

    def _recover(self) -> tuple[int, int]:
        checkpoint = state_files.load_committed(self.folder)
        self.log.open(checkpoint)
        self.committed = -1 if checkpoint is None else checkpoint
        begin = self.log.position(self.log.begin_index) if self.log.begin_index >= 0 else 0
        return begin, max(self.log.end_position(self.committed), begin)

    def open(self) -> None:
        """Recovers the store."""
        self.store.load()

    def close(self) -> None:
        """Stops in an orderly way."""
        self.save_checkpoint()
        self.store.stop()

    def save_checkpoint(self) -> None:
        """Writes the checkpoint."""
        state_files.save_checkpoint(self.folder, self.log.end_index, self.committed)

    def lead(self, term: int) -> None:
        """Becomes the leader of a term, which begins with a record of its own."""
        state_files.save_vote(self.folder, term, f"n{self.id - 1}")
        self.log.append_bodies(term, [self.log.first_body(term)])

    def write(self, messages: list) -> None:  # type: ignore[type-arg]
        """Appends messages as the leader of the last term of the log."""
        appender = self.store.appender
        assert isinstance(appender, LeaderAppender)
        appender.batch.begin(self.log.end_pos)
        for message in messages:
            status, *_ = put(self.store, message)
            assert status is PutStatus.PUT_OK, status
        batch = appender.batch.records
        self.log.append_bodies(self.log.end_term, batch)
        assert self.log.end_pos == appender.batch.end
        appender.batch.begin(0)

    def follow(self, leader: DLedgerNode, until: int | None = None) -> None:
        """Truncates what the leader does not have, and appends the leader's entries, up to an index."""
        if (leader.log.end_term, f"n{leader.id - 1}") != (self.log.end_term, None):
            state_files.save_vote(self.folder, leader.log.end_term, f"n{leader.id - 1}")
        common = min(self.log.end_index, leader.log.end_index)
        while common >= 0 and self.log.term(common) != leader.log.term(common):
            common -= 1
        assert common >= self.committed, "a committed entry would be truncated"
        if common < self.log.end_index:
            self.log.truncate(common)
            self.log.erase_now()
        end = leader.log.end_index if until is None else until
        while self.log.end_index < end:
            self.log.append_received(leader.log.read_block(self.log.end_index + 1, BLOCK_BYTES))

    def commit(self, index: int) -> None:
        """Commits and dispatches entries up to an index."""
        self.committed = max(min(index, self.log.end_index), self.committed)
        if self.committed >= 0:
            self._shown.show(self.log.end_position(self.committed))
            self.store.dispatcher.catch_up()
            appender = self.store.appender
            assert isinstance(appender, LeaderAppender)
            appender.forget_offsets()


class SeededDLedgerGroup:
    """A group with a history chosen by a seed."""

    def __init__(self, root: Path, seed: int, count: int = 3) -> None:
        self.rng = random.Random(seed)
        self.numbers = [0]
        self.epoch = 0  # the term
        self.nodes = [DLedgerNode(root / f"r{number}", number) for number in range(1, count + 1)]
        self.master = self.nodes[0]

    def elect(self, node: DLedgerNode) -> None:
        """Makes the node the leader of a later term."""
        self.epoch += self.rng.randrange(1, 4)
        self.master = node
        node.lead(self.epoch)

    def write(self, count: int) -> None:
        """Writes messages to the leader, in several turns."""
        while count > 0:
            turn = min(count, self.rng.randrange(1, 20))
            self.master.write([random_message(self.rng, self.numbers) for _ in range(turn)])
            count -= turn

    def replicate(self) -> None:
        """Copies the leader's log to all others, and commits it everywhere."""
        for node in self.nodes:
            if node is not self.master:
                node.follow(self.master)
        for node in self.nodes:
            node.commit(self.master.log.end_index)

    def lose_leader(self) -> None:
        """The leader loses its leadership with entries that no other peer has. Another one, in a later term,
        writes others in their place, which the first one gets."""
        self.replicate()
        others = [node for node in self.nodes if node is not self.master]
        self.write(self.rng.randrange(1, 20))
        self.elect(self.rng.choice(others))
        self.write(self.rng.randrange(5, 30))
        self.replicate()

    def run_history(self) -> None:
        """Opens the nodes, runs through the history, and stops all nodes."""
        for node in self.nodes:
            node.open()
        self.elect(self.nodes[0])
        for _ in range(self.rng.randrange(2, 5)):
            self.write(self.rng.randrange(30, 120))
            if self.rng.random() < 0.3:
                self.lose_leader()
            elif self.rng.random() < 0.8:
                self.replicate()
                self.elect(self.rng.choice(self.nodes))
        self.write(self.rng.randrange(5, 40))
        self.replicate()


def create_healthy_group(root: Path, seed: int) -> list[Path]:
    """The directories of a healthy group."""
    shutil.rmtree(root, ignore_errors=True)
    group = SeededDLedgerGroup(root, seed)
    group.run_history()
    for node in group.nodes:
        node.close()
    write_consumer_offsets(root, group)
    return [root / f"r{node.id}" for node in group.nodes]
