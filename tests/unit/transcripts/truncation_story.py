"""The logs of one group's brokers, as a story. Production's rules decide where a log is truncated; a byte of
a log is the letter of the broker that wrote it, so that a reader sees whose history it is.

    lead 1 epoch=1                      a broker becomes master at the end of its log
    write 1 50                          the master appends bytes
    follow 2 1 [end=120]                a replica connects to a master, truncates, and copies
    confirm 2 100                       a broker learns that every member has the log up to there
    lose-power 2 from=90 zeros=95-99    the log may have lost what was not flushed from 90 on, and some did
    rot 3 40                            one flushed byte changes without a trace
    logs                                prints all logs
"""

from __future__ import annotations

import zlib
from itertools import groupby

from epochmq_broker.replication.ha import log_doubt
from epochmq_broker.replication.ha.checksum_comparison import LogComparison, LogRange, may_truncate
from epochmq_broker.replication.ha.epochs import (
    Epochs,
    HADivergedError,
    begin_epoch,
    common_prefix_end,
    record_received_epoch,
    without_empty_epochs,
)
from epochmq_broker.replication.ha.log_doubt import LogDoubt
from epochmq_protocol.epoch_entries import EpochEntry
from epochmq_store.state_files.tail_state import TailState
from tests.unit.transcripts.transcript import options_of


class BrokerLog:
    """One broker's log, its epochs, and what it knows of them."""

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.data = bytearray()
        self.epochs = Epochs()
        self.confirmed = 0
        self.verified = 0
        self.doubt = LogDoubt()

    @property
    def end(self) -> int:
        """The end offset."""
        return len(self.data)

    def truncate(self, offset: int) -> None:
        """Truncates the log and its epochs."""
        del self.data[offset:]
        self.epochs.truncate_suffix(offset)
        self.confirmed = min(self.confirmed, offset)


class TruncationStory:
    """The logs of a group."""

    def __init__(self) -> None:
        self._brokers: dict[int, BrokerLog] = {}
        self._lines: list[str] = []

    def take_lines(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines

    def check_invariants(self) -> None:
        for broker in self._brokers.values():
            broker.epochs.check_invariants(broker.end)
            broker.doubt.check_invariants()

    def run(self, command: str, arguments: list[str]) -> None:
        if command == "logs":
            for _, one in sorted(self._brokers.items()):
                self._lines.append(f"broker {one.broker_id}: {shown(one)}")
            return
        broker = self._broker(arguments[0])
        options = options_of(arguments[1:])
        match command:
            case "lead":
                self._lead(broker, int(options["epoch"]))
            case "write":
                broker.data += bytes([ord("a") + broker.broker_id - 1]) * int(arguments[1])
            case "follow":
                self._follow(broker, self._broker(arguments[1]), options)
            case "confirm":
                broker.confirmed = int(arguments[1])
            case "lose-power":
                self._lose_power(broker, int(options["from"]), options["zeros"])
            case "rot":
                broker.data[int(arguments[1])] ^= 0x20  # another case of the letter
                broker.verified = 0
            case _:
                raise ValueError("no such command")

    def _broker(self, number: str) -> BrokerLog:
        return self._brokers.setdefault(int(number), BrokerLog(int(number)))

    def _say(self, broker: BrokerLog, what: str) -> None:
        self._lines.append(f"broker {broker.broker_id} {what}")

    def _lead(self, broker: BrokerLog, epoch: int) -> None:
        if not log_doubt.may_lead(broker.doubt, epoch):
            self._say(broker, f"does not lead epoch {epoch}: it has lost bytes of its log, and gives up")
            return
        begin_epoch(broker.epochs, broker.epochs.last_epoch, epoch, broker.end)
        broker.doubt = log_doubt.no_doubt()
        self._say(broker, f"leads epoch {epoch} from offset {broker.end} on")

    def _lose_power(self, broker: BrokerLog, unflushed_from: int, zeros: str) -> None:
        """The machine starts again: recovery has read the log from `unflushed_from`."""
        first, last = map(int, zeros.split("-"))
        broker.data[first : last + 1] = bytes(last + 1 - first)
        broker.doubt = log_doubt.doubt_after_start(
            broker.doubt,
            TailState.UNFLUSHED_LOST,
            may_lack_acknowledged=True,
            confirmed=broker.confirmed,
            end=broker.end,
            recovery_start=unflushed_from,
        )
        broker.verified = log_doubt.verified_until(broker.doubt, broker.confirmed, broker.end)
        self._say(
            broker, f"may have lost bytes from {unflushed_from} on; it knows its log up to {broker.verified}"
        )

    # A replica connects -------------------------------------------------------------------------------------

    def _follow(self, replica: BrokerLog, master: BrokerLog, options: dict[str, str]) -> None:
        """The steps of a handshake (`ha.client_connection`)."""
        theirs = without_empty_epochs(master.epochs.entries)
        try:
            point = common_prefix_end(replica.epochs.entries, 0, replica.end, theirs, master.end)
        except HADivergedError as error:
            self._say(replica, f"follows no master: {error}")
            return
        if replica.end > point:
            self._say(replica, f"has the epochs of broker {master.broker_id} up to {point}")
        difference = self._difference(replica, master, point)
        if difference is not None:
            protected = log_doubt.protected_until(replica.doubt, replica.confirmed)
            self._say(replica, f"differs from broker {master.broker_id} at {difference}")
            if not may_truncate(difference, protected):
                self._say(replica, f"follows no master: what lies before {protected} must not be truncated")
                return
            point = difference
        if point < replica.end:
            self._say(replica, f"truncates its log from {replica.end} to {point}")
        replica.truncate(point)
        self._copy(replica, master, theirs, int(options.get("end", master.end)))

    def _difference(self, replica: BrokerLog, master: BrokerLog, end: int) -> int | None:
        comparison = LogComparison(0, min(replica.verified, end), end)
        while (wanted := comparison.next_range()) is not None:
            comparison.add_checksums(checksums(replica.data, wanted), checksums(master.data, wanted))
        return comparison.difference

    def _copy(self, replica: BrokerLog, master: BrokerLog, theirs: list[EpochEntry], end: int) -> None:
        while replica.end < end:
            at = replica.end
            epoch = master.epochs.find(at)
            assert epoch is not None
            until = min(master.epochs.end_of(epoch), end)
            record_received_epoch(replica.epochs, theirs, epoch.epoch, epoch.start_offset)
            replica.data += master.data[at:until]
            self._say(replica, f"receives {at} to {until} of epoch {epoch.epoch}")
        replica.confirmed = max(replica.confirmed, min(master.confirmed, replica.end))
        replica.verified = replica.end
        has_all = log_doubt.has_caught_up(
            reported=replica.end, master_end=master.end, confirmed=master.confirmed
        )
        if has_all and replica.doubt.is_open:
            replica.doubt = log_doubt.no_doubt()
            self._say(replica, "has caught up: its log is no longer in doubt")


def checksums(data: bytearray, wanted: LogRange) -> bytes:
    """The CRC-32 of each chunk of a range."""
    starts = range(wanted.start, wanted.end, wanted.chunk)
    return b"".join(
        zlib.crc32(data[at : min(at + wanted.chunk, wanted.end)]).to_bytes(4, "big") for at in starts
    )


def shown(broker: BrokerLog) -> str:
    """A log for a line of output: its bytes as runs, and its epochs."""
    runs = [(chr(byte) if byte else "0", len(list(same))) for byte, same in groupby(broker.data)]
    epochs = ", ".join(f"{one.epoch} from {one.start_offset}" for one in broker.epochs.entries)
    bytes_shown = " ".join(f"{letter}*{count}" for letter, count in runs) or "empty"
    return f"{bytes_shown}; epochs {epochs or 'none'}; confirmed {broker.confirmed}"
