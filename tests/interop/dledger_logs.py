"""Fills DLedger groups, and switches their leader."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tests.support.dledger_group import DLedgerGroup
from tests.support.group_processes import Factory, Member
from tests.support.process import wait_until


def switch(member: Member, make: Factory) -> None:
    """Stops a broker in order and starts the other program in its place."""
    member.process.stop()
    member.make = make
    member.start()


def fill(group: DLedgerGroup, member: Member, count: int, sent: list[bytes]) -> None:
    """Sends messages, each until it is acknowledged."""
    for _ in range(count):
        body = f"{len(sent)}-".encode() + os.urandom(2000).hex().encode()
        wait_until(lambda body=body: group.send(member, body), what="a send is acknowledged")  # type: ignore[misc]
        sent.append(body)


def unique(texts: Sequence[bytes]) -> list[bytes]:
    """The bodies that `fill` has sent, without repetitions."""
    return [text for text in dict.fromkeys(texts) if b"-" in text]
