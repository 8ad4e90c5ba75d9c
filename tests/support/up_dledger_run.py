"""`epochmq up` of a DLedger group."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.integration.up_run import GroupRun
from tests.support.cluster import NEVER_BUSY_YAML
from tests.support.group_traffic import send_header
from tests.support.remoting import call

SEND_MESSAGE_V2, GET_MAX_OFFSET, SUCCESS = 310, 30, 0
GROUP = """\
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata: {name: ledger}
spec:
  mode: DLedger
  replicas: %d
  brokerName: ledger-a
  config: {mappedFileSizeCommitLog: 33554432, %s%s}
"""


class LedgerRun(GroupRun):
    """A run of a group of three replicas on a DLedger log."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.write()

    def write(self, more: str = "", replicas: int = 3) -> None:
        """Writes the resource, with more configuration."""
        self.file.write_text(GROUP % (replicas, NEVER_BUSY_YAML, more))


class SteadySender:
    """A producer that sends each message until a broker acknowledges it, trying the brokers in turn."""

    def __init__(self, addresses: list[str], topic: str) -> None:
        self.acknowledged: list[str] = []
        self._addresses = addresses
        self._topic = topic
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> SteadySender:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        self._thread.join(120)

    def _send(self) -> None:
        address, count = self._addresses[0], 0
        while not self._ending.is_set():
            body = f"steady-{count}"
            header = send_header(0, f"{count:032X}") | {"b": self._topic}
            try:
                code = call(address, SEND_MESSAGE_V2, header, body.encode(), timeout_s=5).code
            except OSError:
                code = -1
            if code == SUCCESS:
                self.acknowledged.append(body)
                count += 1
            else:
                address = self._addresses[(self._addresses.index(address) + 1) % len(self._addresses)]
