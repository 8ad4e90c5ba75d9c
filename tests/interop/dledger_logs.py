"""Fills DLedger groups, and switches their leader."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from tests.support.dledger_group import DLedgerGroup
from tests.support.group_processes import Factory, Member
from tests.support.process import wait_holds, wait_until


def switch(member: Member, make: Factory) -> None:
    """Stops a broker in order and starts the other program in its place."""
    member.process.stop()
    member.make = make
    member.start()


def fill(group: DLedgerGroup, member: Member, count: int, sent: list[bytes]) -> None:
    """Sends messages to the only broker of a group, each until it is acknowledged."""
    _send(partial(group.send, member), count, sent)


def fill_led(group: DLedgerGroup, count: int, sent: list[bytes]) -> None:
    """Sends messages to the present master of a group, each until it is acknowledged. On a busy machine
    another broker may become master between two messages, and a message may be stored twice."""

    def send(body: bytes) -> bool:
        master = group.master()
        return master is not None and group.send(master, body)

    _send(send, count, sent)


def _send(send: Callable[[bytes], bool], count: int, sent: list[bytes]) -> None:
    for _ in range(count):
        body = f"{len(sent)}-".encode() + os.urandom(2000).hex().encode()
        wait_until(partial(send, body), what="a send is acknowledged")
        sent.append(body)


def wait_shown(group: DLedgerGroup, member: Member, sent: Sequence[bytes]) -> None:
    """Waits until a broker shows all that `fill` has sent, in that order. (RocketMQ's broker adds a message
    to its queue after the acknowledgement.)"""

    def shown() -> None:
        assert unique(group.texts(member)) == sent

    wait_holds(shown)


def unique(texts: Sequence[bytes]) -> list[bytes]:
    """The bodies that `fill` has sent, without repetitions."""
    return [text for text in dict.fromkeys(texts) if b"-" in text]
