"""Measures the appends of a Raft group of three peers, ours or DLedger's."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from epochmq_protocol.dledger import (
    DLedgerRequestCode,
    MetadataRequest,
    MetadataResponse,
    decode_body,
    encode_body,
)
from tests.benchmarks.machine import flush_dirty_pages
from tests.interop.java_env import FULL_SPEED, compile_java, java_command
from tests.support.net import free_port, loopback
from tests.support.process import ManagedProcess, wait_until
from tests.support.remoting import call

GROUP = "bench"
OCTET = 61
BODY_BYTES = 256
FILE_SIZE = 1 << 28
JAVA_HEAP_MB = 512
DEPTHS = (1, 64, 256)
MARGIN_S = 60
LEADER_TIMEOUT_S = 60
KINDS = ("ours", "ours, asynchronous flush", "java")

Result = dict[str, Any]


class AppendsFailedError(Exception):
    """The load program failed or received wrong responses. The message contains its output."""


class RaftGroup:
    """A group of three peers with their data in `folder`. `kind` is one of `KINDS`."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        hosts = [loopback(OCTET) for _ in range(3)]
        self.addresses = {f"n{i}": f"{host}:{free_port(host)}" for i, host in enumerate(hosts)}
        self.processes = {name: self._peer(name) for name in self.addresses}

    def _peer(self, name: str) -> ManagedProcess:
        peers = ";".join(f"{one}-{address}" for one, address in self.addresses.items())
        home, store = self.folder / f"home-{name}", str(self.folder / name)
        if self.kind == "java":
            command = java_command(
                "DLedgerPeer",
                [GROUP, name, peers, store, str(FILE_SIZE)],
                home=home,
                classes=compile_java("DLedgerPeer.java"),
                heap_mb=JAVA_HEAP_MB,
                jvm=["-server", *FULL_SPEED, "-XX:-UseSerialGC", "-XX:+UseG1GC"],
            )
        else:
            command = [sys.executable, "-m", "epochmq_dledger.main", "-g", GROUP, "-i", name, "-p", peers]
            command += ["-s", store, "--file-size", str(FILE_SIZE), "--heartbeat-ms", "500"]
            if self.kind != "ours":
                command += ["--flush", "async"]
        return ManagedProcess(command, name=f"{self.kind} {name}", directory=home)

    def start(self) -> None:
        """Starts the peers and waits until one leads."""
        for process in self.processes.values():
            process.start()
        wait_until(
            lambda: self.leader() is not None, timeout_s=LEADER_TIMEOUT_S, what=f"{self.kind}: a leader"
        )

    def kill(self) -> None:
        """Kills the peers."""
        for process in self.processes.values():
            process.kill()

    def leader(self) -> str | None:
        """The peer that all peers report as leader."""
        leaders: set[str | None] = set()
        for name, address in self.addresses.items():
            body = encode_body(MetadataRequest(group=GROUP, remote_id=name))
            try:
                response = call(address, DLedgerRequestCode.METADATA, body=body, timeout_s=2)
            except OSError:
                return None
            leaders.add(decode_body(MetadataResponse, response.body).leader_id)
        return leaders.pop() if len(leaders) == 1 else None

    def appends(self, program: Path, depth: int, warmup_s: float, seconds: float) -> Result:
        """Runs one measurement, after a flush of all dirty pages."""
        flush_dirty_pages()
        wait_until(
            lambda: self.leader() is not None, timeout_s=LEADER_TIMEOUT_S, what=f"{self.kind}: a leader"
        )
        leader = self.leader()
        assert leader is not None
        host, _, port = self.addresses[leader].rpartition(":")
        pids = ",".join(str(process.pid) for process in self.processes.values())
        command = [
            str(program),
            f"host={host}",
            f"port={port}",
            f"group={GROUP}",
            f"id={leader}",
            f"depth={depth}",
            f"body={BODY_BYTES}",
            f"warmup={warmup_s}",
            f"seconds={seconds}",
            f"pids={pids}",
        ]
        started = time.monotonic()
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=warmup_s + seconds + MARGIN_S, check=False
        )
        if done.returncode != 0:
            raise AppendsFailedError(
                f"{self.kind}, {depth} in flight: status {done.returncode} after"
                f" {time.monotonic() - started:.1f} s: {done.stdout}{done.stderr}"
            )
        result: Result = json.loads(done.stdout)
        return result
