"""Simulates masters of many groups that renew their write leases at one leading controller. Like our brokers,
each renews twice in the duration of a lease. Requests are encoded once, and only the number and the
lease of a response are parsed, so that the load uses little CPU time."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path
from typing import Any

from epochmq_broker.membership.controlled.write_lease import RENEWALS_PER_LEASE
from epochmq_protocol.frame import Command, encode
from tests.support.process import ManagedProcess

LEASE_MS = 300
CONNECTIONS = 50
_TICK_S = 0.002
_OPAQUE = re.compile(rb'"opaque":(\d+)')
_GRANTED = re.compile(rb'"writeLeaseMs":"?([1-9]\d*)')


class LeaseResponses(asyncio.Protocol):
    """Reads the responses of one connection."""

    def __init__(self, load: LeaseRenewals) -> None:
        self.load = load
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        data = self._rest + data
        at = 0
        while len(data) - at >= 4:
            size = int.from_bytes(data[at : at + 4], "big")
            if len(data) - at - 4 < size:
                break
            self.load.answered(data, at + 4, at + 4 + size, now)
            at += 4 + size
        self._rest = data[at:]


class LeaseRenewals:
    """`requests` are the heartbeats with lease requests of all masters, each of its own group."""

    def __init__(self, address: str, requests: list[Command]) -> None:
        self.host, _, port = address.rpartition(":")
        self.port = int(port)
        for number, command in enumerate(requests):
            command.opaque = number
        self.frames = [encode(command) for command in requests]
        self.sent = [0.0] * len(requests)
        self.took: list[float] = []
        self.granted = 0
        self.skipped = 0

    def answered(self, data: bytes, at: int, end: int, now: float) -> None:
        """Counts a response."""
        found = _OPAQUE.search(data, at, end)
        assert found is not None, data[at:end]
        number = int(found[1])
        self.took.append(now - self.sent[number])
        self.sent[number] = 0.0
        self.granted += _GRANTED.search(data, at, end) is not None

    async def run(self, warmup_s: float, seconds: float, leader: ManagedProcess) -> dict[str, Any]:
        """Renews all leases for this time. A master that waits for a response renews later."""
        loop = asyncio.get_running_loop()
        transports = []
        for _ in range(CONNECTIONS):
            transport, _ = await loop.create_connection(lambda: LeaseResponses(self), self.host, self.port)
            transports.append(transport)
        interval_s = LEASE_MS / RENEWALS_PER_LEASE / 1000
        count = len(self.frames)
        began = time.perf_counter()
        scheduled, measured_from, cpu_before = 0, 0.0, 0.0
        while True:
            now = time.perf_counter()
            if not measured_from and now - began >= warmup_s:
                measured_from, cpu_before = now, cpu_s(leader.pid)
                self.took, self.granted, self.skipped = [], 0, 0
            if measured_from and now - measured_from >= seconds:
                break
            due = int((now - began) / interval_s * count)
            batches: dict[int, list[bytes]] = {}
            for turn in range(scheduled, due):
                number = turn % count
                if self.sent[number]:
                    self.skipped += 1
                    continue
                self.sent[number] = now
                batches.setdefault(number % CONNECTIONS, []).append(self.frames[number])
            scheduled = due
            for which, frames in batches.items():
                transports[which].write(b"".join(frames))
            await asyncio.sleep(_TICK_S)
        elapsed_s = now - measured_from
        used_s = cpu_s(leader.pid) - cpu_before
        for transport in transports:
            transport.close()
        took = sorted(self.took)
        assert took, "no renewal got a response"
        return {
            "groups": count,
            "per_second": round(len(took) / elapsed_s),
            "asked_per_second": round(count / interval_s),
            "granted_share": round(self.granted / len(took), 4),
            "late": self.skipped,
            "p50_ms": round(took[len(took) // 2] * 1000, 2),
            "p99_ms": round(took[len(took) * 99 // 100] * 1000, 2),
            "leader_cores": round(used_s / elapsed_s, 3),
            "cpu_us": round(used_s / len(took) * 1e6, 1),
        }


def cpu_s(pid: int | None) -> float:
    """The CPU time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
