"""A world without sockets, files or clocks, in which a seed decides everything: what the network carries and
when, how fast clocks run, which machine stops when. The same seed does it again.

`World` holds time, the machines and the network. What the machines do is in `raft` (consensus peers),
`controllers` and `brokers`; what befalls them is a list of `Event`s (see `troubles`), made before the world
begins, so that a failing run can be shrunk by leaving events out (see `shrink`).
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

RPC_TIMEOUT_MS = 1000
SWEEP_MS = 50
SWAMPED_MAX_MS = 800.0


class ViolationError(AssertionError):
    """A promise was broken; `at_ms` is when, `story` what happened until then."""

    def __init__(self, text: str, at_ms: float, history: list[str]) -> None:
        super().__init__(text)
        self.text = text
        self.at_ms = at_ms
        self.history = history


class Event(NamedTuple):
    """Something that befalls the world at a moment: the method `do_<kind>` is called with `args`."""

    at_ms: float
    kind: str
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.at_ms:.0f} ms: {self.kind} {' '.join(map(str, self.args))}"


class Network(NamedTuple):
    """How unkind the network is; probabilities are per message."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay_max_ms: float = 10.0
    slow: float = 0.0
    """Share of messages that take up to `slow_max_ms`, and so come in another order."""
    slow_max_ms: float = 1500.0


class Host:
    """A machine: what runs on it lives, is paused, dies and starts anew; its clock has a rate and leaps."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.up = False
        self.life = 0
        self.rate = 1.0
        self.leaps_ms = 0.0
        self.paused = False
        self.pauses = 0
        self.held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def clock(self) -> int:
        """The machine's own monotonic clock, milliseconds."""
        return int(self.world.now * self.rate + self.leaps_ms)

    def world_time(self, clock_ms: float) -> float:
        """When the machine's clock will show this."""
        return (clock_ms + 0.01 - self.leaps_ms) / self.rate

    def start(self) -> None:
        """Starts on what its disk has."""
        self.up = True
        self.life += 1

    def die(self) -> None:
        """Stops at once; what was on its way to it is lost."""
        self.up = False
        self.life += 1
        self.paused = False
        self.held.clear()

    def rouse(self) -> None:
        """Goes on after a pause: what came meanwhile is found in its buffers, in any order."""
        self.paused = False
        held, self.held = self.held, []
        self.world.random.shuffle(held)
        for action, args in held:
            if self.up:
                self.receive(action, *args)

    def receive(self, action: Callable[..., None], *args: Any) -> None:
        """Lets the machine do something, now or when it goes on."""
        if not self.up:
            return
        if self.paused:
            self.held.append((action, args))
        else:
            action(*args)

    def later(self, delay_ms: float, action: Callable[..., None], *args: Any) -> None:
        """Lets the machine do something after a while on its own clock, if it is still the same life."""
        self.world.at(delay_ms / self.rate, self._later, self.life, action, args)

    def _later(self, life: int, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.life == life:
            self.receive(action, *args)

    def clock_leapt(self) -> None:
        """The clock has leapt forward; timers may be due."""


class Call:
    """A call to another machine, until its answer comes back or time is up."""

    __slots__ = ("back", "came_ms", "deadline_ms", "done", "life", "source", "target")

    def __init__(self, source: Host, target: Host, deadline_ms: float, back: Callable[..., None]) -> None:
        self.source = source
        self.target = target
        self.life = source.life
        self.deadline_ms = deadline_ms
        self.back = back
        self.came_ms = 0.0
        """When it came to the target, if that noted it."""
        self.done = False


class World:
    """Time, machines, network."""

    def __init__(self, seed: int, network: Network, *, verbose: bool = False) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.network = network
        self.verbose = verbose
        self.now = 0.0
        self.hosts: dict[str, Host] = {}
        self.queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.sequence = 0
        self.cuts: dict[tuple[str, str], float] = {}
        self.calls: deque[Call] = deque()
        self.history: list[str] = []
        self.quiet = False
        self.steps = 0
        self.happenings: Counter[str] = Counter()
        """What befell this world, by name."""
        self.swamped_until = 0.0
        """Until when every message takes long, and so comes in any order."""
        self.latest: dict[tuple[str, str], float] = {}
        """When the latest message of each link is to arrive."""
        self.at(SWEEP_MS, self._sweep)

    # Time ---------------------------------------------------------------------------------------------------

    def at(self, delay_ms: float, action: Callable[..., None], *args: Any) -> None:
        """Does something later."""
        self.sequence += 1
        heapq.heappush(self.queue, (self.now + max(0.0, delay_ms), self.sequence, action, args))

    def run(self, until_ms: float) -> None:
        """Lets the world go on until a moment."""
        queue = self.queue
        while queue and queue[0][0] <= until_ms:
            self.now, _, action, args = heapq.heappop(queue)
            action(*args)
        self.now = until_ms

    def note(self, text: str) -> None:
        """Adds a line to the transcript."""
        self.history.append(f"{self.now:8.0f}  {text}")

    def happened(self, what: str, times: int = 1) -> None:
        """Counts what befell this world."""
        self.happenings[what] += times

    def fail(self, text: str) -> None:
        """Stops: a promise is broken."""
        raise ViolationError(text, self.now, self.history)

    def plan(self, events: list[Event]) -> None:
        """Puts events where they belong in time."""
        for event in events:
            self.at(event.at_ms - self.now, self._happen, event)

    def _happen(self, event: Event) -> None:
        if not self.quiet:
            getattr(self, f"do_{event.kind}")(*event.args)

    def calm(self) -> None:
        """The troubles end: links work, fast, and machines run."""
        self.quiet = True
        self.network = Network(delay_max_ms=5)
        self.note("-- quiet from here on --")
        self.cuts.clear()
        for host in self.hosts.values():
            if host.paused:
                host.rouse()
            if not host.up:
                host.start()

    # The network --------------------------------------------------------------------------------------------

    def is_cut(self, source: Host, target: Host) -> bool:
        """Whether the link carries nothing now."""
        return self.cuts.get((source.name, target.name), 0) > self.now

    def delay(self) -> float:
        """How long one message takes, milliseconds."""
        network = self.network
        if self.swamped_until > self.now and not self.quiet:
            self.happenings["delayed"] += 1
            return self.random.random() * SWAMPED_MAX_MS
        if network.slow and not self.quiet and self.random.random() < network.slow:
            self.happenings["delayed"] += 1
            return self.random.random() * network.slow_max_ms
        return 0.2 + self.random.random() * network.delay_max_ms

    def send(self, source: Host, target: Host, action: Callable[..., None], *args: Any) -> None:
        """Carries one message: `action` happens at the target, if the network pleases."""
        network = self.network
        if not self.quiet and (network.drop or network.duplicate):
            luck = self.random.random()
            if luck < network.drop:
                self.happenings["dropped"] += 1
                return
            if luck > 1 - network.duplicate:
                self.happenings["duplicated"] += 1
                self.at(self.delay(), self._arrive, source, target, action, args)
        delay_ms = self.delay()
        link, arrives_ms = (source.name, target.name), self.now + delay_ms
        if arrives_ms < self.latest.get(link, 0.0):
            self.happenings["reordered"] += 1
        else:
            self.latest[link] = arrives_ms
        self.at(delay_ms, self._arrive, source, target, action, args)

    def _arrive(self, source: Host, target: Host, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not target.up:
            return
        if self.cuts and self.is_cut(source, target):
            way = "cut one way" if not self.is_cut(target, source) else "cut both ways"
            self.happenings[way] += 1
            return
        if target.paused:
            target.held.append((action, args))
        else:
            action(*args)

    def call(
        self, source: Host, target: Host, action: Callable[..., None], back: Callable[..., None], *args: Any
    ) -> None:
        """Calls another machine: `action(call, *args)` happens there, `back(answer)` here: once, with None
        when no answer came in time."""
        call = Call(source, target, self.now + RPC_TIMEOUT_MS, back)
        self.calls.append(call)
        self.send(source, target, action, call, *args)

    def answer(self, call: Call, response: object) -> None:
        """Sends a call's answer back."""
        self.send(call.target, call.source, self._answered, call, response)

    def _answered(self, call: Call, response: object) -> None:
        if not call.done and call.source.life == call.life:
            call.done = True
            call.back(response)

    def _sweep(self) -> None:
        """Ends the calls whose time is up."""
        calls = self.calls
        while calls and (calls[0].done or calls[0].deadline_ms <= self.now):
            call = calls.popleft()
            if not call.done and call.source.life == call.life:
                call.source.receive(self._answered, call, None)
        self.at(SWEEP_MS, self._sweep)

    def counts(self) -> dict[str, int]:
        """What befell this world and what it has done, by name."""
        return dict(self.happenings)

    def live(self) -> None:
        """A whole life. ViolationError when a promise was broken."""
        raise NotImplementedError

    # What may befall every world ----------------------------------------------------------------------------

    def host(self, who: str) -> Host:
        """The machine of this name. Worlds know more names, such as `leader`."""
        return self.hosts[who]

    def do_pause(self, who: str, duration_ms: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        host = self.host(who)
        if not host.up:
            return
        host.paused = True
        host.pauses += 1
        self.happened("pauses")
        self.note(f"{host.name} is stopped for {duration_ms:.0f} ms")
        self.at(duration_ms, self._go_on, host, host.life, host.pauses)

    def _go_on(self, host: Host, life: int, pause: int) -> None:
        if host.paused and (host.life, host.pauses) == (life, pause):
            self.note(f"{host.name} goes on")
            host.rouse()

    def do_cut(self, one: str, two: str, both: bool, duration_ms: float) -> None:
        """A link carries nothing, one way or both."""
        source, target = self.host(one), self.host(two)
        if source is target:
            return
        self._cut(source, target, duration_ms)
        if both:
            self._cut(target, source, duration_ms)
        arrow = "<->" if both else "->"
        self.note(f"{source.name} {arrow} {target.name} is cut for {duration_ms:.0f} ms")

    def do_isolate(self, who: str, way: str, duration_ms: float) -> None:
        """A machine is heard by nobody (`out`), hears nobody (`in`), or both."""
        host = self.host(who)
        for other in self.hosts.values():
            if way != "in" and other is not host:
                self._cut(host, other, duration_ms)
            if way != "out" and other is not host:
                self._cut(other, host, duration_ms)
        self.note(f"{host.name} is isolated ({way}) for {duration_ms:.0f} ms")

    def _cut(self, source: Host, target: Host, duration_ms: float) -> None:
        link = (source.name, target.name)
        self.cuts[link] = max(self.cuts.get(link, 0), self.now + duration_ms)

    def do_swamp(self, duration_ms: float) -> None:
        """For a while every message is late, and comes in any order."""
        self.swamped_until = max(self.swamped_until, self.now + duration_ms)
        self.note(f"the network is swamped for {duration_ms:.0f} ms")

    def do_leap(self, who: str, by_ms: float) -> None:
        """A machine's clock leaps forward."""
        host = self.host(who)
        host.leaps_ms += by_ms
        self.happened("clock leaps")
        self.note(f"the clock of {host.name} leaps forward by {by_ms:.0f} ms")
        host.clock_leapt()
