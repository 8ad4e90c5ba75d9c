"""The faults of a chaos round: each has a beginning and an end, and is drawn from a seed."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tests.integration.chaos.disks import SlowDisk, SmallDisk
from tests.integration.chaos.network import Network
from tests.support.group_processes import Member

Act = Callable[[], None]


class FaultTargets(Protocol):
    """The processes that faults concern, their links and their disks."""

    CLIENTS: Sequence[str]
    network: Network
    places: list[str]
    nameserver: Member
    controllers: list[Member]
    brokers: list[Member]
    slow_disks: dict[str, SlowDisk]
    small_disks: dict[str, SmallDisk]

    def master(self) -> Member | None:
        """The broker that is the master now."""
        ...

    def leader(self) -> Member | None:
        """The controller that leads now."""
        ...


@dataclass(frozen=True)
class ChaosFault:
    """One fault. `what`: in words; `process`: whether it concerns a process, which `end` starts again;
    `alone`: no other fault may be applied at the same time."""

    what: str
    begin: Act
    end: Act
    process: bool = False
    alone: bool = False


class ChaosFaultPlan:
    """Draws faults from a shuffled list of all kinds, so that a long round has every kind again and again."""

    def __init__(self, group: FaultTargets, chance: random.Random) -> None:
        self._group = group
        self._chance = chance
        self._pack: list[Callable[[], ChaosFault]] = []
        self._kinds: list[Callable[[], ChaosFault]] = [
            self._kill,
            self._kill_all,
            self._hang,
            self._stop,
            partial(self._cut, "cut off", hears=False, heard=False),
            partial(self._cut, "deaf", hears=False, heard=True),
            partial(self._cut, "mute", hears=True, heard=False),
            self._slow_link,
            self._slow_disk,
            *self._own_kinds(),
        ]

    def _own_kinds(self) -> list[Callable[[], ChaosFault]]:
        """The kinds that only groups of this type can have."""
        return [self._full_disk]

    def draw(self) -> ChaosFault:
        """The next fault."""
        if not self._pack:
            self._pack = list(self._kinds)
            self._chance.shuffle(self._pack)
        return self._pack.pop()()

    def draw_some(self) -> list[ChaosFault]:
        """One fault, or two at once; at most one of them concerns a process."""
        found = [self.draw()]
        if self._chance.random() < 0.4:
            other = self.draw()
            if not (other.process and found[0].process):
                found.append(other)
        return found

    # Victims ------------------------------------------------------------------------------------------------

    def _broker(self) -> Member:
        return self._leading(self._group.master(), self._group.brokers)

    def _server(self) -> Member:
        """A broker more often than a controller, and the master or leader more often than the others."""
        if self._chance.random() < 0.65:
            return self._broker()
        return self._leading(self._group.leader(), self._group.controllers)

    def _leading(self, leads: Member | None, members: list[Member]) -> Member:
        return leads if leads is not None and self._chance.random() < 0.6 else self._chance.choice(members)

    # Processes ----------------------------------------------------------------------------------------------

    def _kill(self) -> ChaosFault:
        victim = self._group.nameserver if self._chance.random() < 0.1 else self._server()

        def kill() -> None:
            # Another fault may have started the victim again since this one was drawn, as another process.
            victim.process.kill()

        return ChaosFault(f"kill {victim.name}", kill, victim.start, process=True)

    def _kill_all(self) -> ChaosFault:
        """Kills every broker: acknowledged messages are in the files of all that were in sync."""

        def kill() -> None:
            for member in self._group.brokers:
                member.process.kill()

        def start() -> None:
            for member in self._group.brokers:
                member.start()

        return ChaosFault("kill every broker", kill, start, process=True)

    def _hang(self) -> ChaosFault:
        victim = self._group.nameserver if self._chance.random() < 0.1 else self._server()
        return ChaosFault(
            f"hang {victim.name}",
            lambda: victim.process.signal(signal.SIGSTOP),
            lambda: victim.process.signal(signal.SIGCONT),
            process=True,
        )

    def _stop(self) -> ChaosFault:
        victim = self._server()

        def again() -> None:
            status = victim.process.stop()
            assert status == 0, f"{victim.name} did not stop cleanly, but ended with {status}"
            victim.start()

        return ChaosFault(
            f"stop {victim.name}", lambda: victim.process.signal(signal.SIGTERM), again, process=True
        )

    # Links --------------------------------------------------------------------------------------------------

    def _cut(self, how: str, *, hears: bool, heard: bool) -> ChaosFault:
        network = self._group.network
        circles = {
            "everybody": self._group.places,
            "the brokers": [member.name for member in self._group.brokers],
            "the controllers": [member.name for member in self._group.controllers],
            "the nameserver": ["nameserver"],
            "the clients": list(self._group.CLIENTS),
        }
        circles = {name: members for name, members in circles.items() if members}
        clients = self._chance.random() < 0.15
        victim = self._chance.choice(list(self._group.CLIENTS)) if clients else self._server().name
        names = ["everybody", "the brokers"] if clients else list(circles)
        name = self._chance.choice(names)
        others = [one for one in circles[name] if one != victim]
        ways = [
            *([] if hears else [(one, victim) for one in others]),
            *([] if heard else [(victim, one) for one in others]),
        ]

        def change(act: Callable[[str, str], None]) -> None:
            for sender, receiver in ways:
                act(sender, receiver)

        toward = "from" if how == "cut off" else "to"
        return ChaosFault(
            f"{victim} {how} {toward} {name}", lambda: change(network.cut), lambda: change(network.mend)
        )

    def _slow_link(self) -> ChaosFault:
        victim, kbit = self._server().name, self._chance.choice((200, 500, 1000))
        network = self._group.network
        return ChaosFault(
            f"{kbit} kbit/s for {victim}", lambda: network.slow(victim, kbit), lambda: network.fast(victim)
        )

    # Disks --------------------------------------------------------------------------------------------------

    def _slow_disk(self) -> ChaosFault:
        victim, ms = self._server().name, self._chance.choice((5, 20, 100, 300))
        disk = self._group.slow_disks[victim]
        return ChaosFault(f"disk of {victim} {ms} ms slower", lambda: disk.delay(ms), lambda: disk.delay(0))

    def _full_disk(self) -> ChaosFault:
        victim = self._broker().name
        disk = self._group.small_disks[victim]
        return ChaosFault(f"disk of {victim} full", disk.fill, disk.free)
