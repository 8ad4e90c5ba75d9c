"""Simulates time, machines and a network, without sockets, files or clocks. A seed decides everything: which
messages arrive and when, how fast clocks run, which machine stops when. The same seed gives the same run.

`World` holds the time, the machines and the network. What the machines do is in `peer_host` (Raft peers),
`controllers` and `brokers`. The faults are a list of `Event`s (see `fault_plan`) that is made before the run
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
CONGESTED_MAX_MS = 800.0


class ViolationError(AssertionError):
    """A promise was broken at `at_ms`; `history` is the transcript up to then."""

    def __init__(self, text: str, at_ms: float, history: list[str]) -> None:
        super().__init__(text)
        self.text = text
        self.at_ms = at_ms
        self.history = history


class Event(NamedTuple):
    """A fault or another event at a moment: the method `do_<kind>` of the world is called with `args`."""

    at_ms: float
    kind: str
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.at_ms:.0f} ms: {self.kind} {' '.join(map(str, self.args))}"


class Network(NamedTuple):
    """The faults of the network; probabilities are per message."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay_max_ms: float = 10.0
    slow: float = 0.0
    """The share of messages that take up to `slow_max_ms`, and so arrive in another order."""
    slow_max_ms: float = 1500.0


class Host:
    """A machine with one process, which runs, is paused, dies and starts again. Its clock has a rate and
    leaps. `life` counts starts and ends, so that timers of an earlier life have no effect."""

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
        """The time of the world at which the machine's clock will show `clock_ms`."""
        return (clock_ms + 0.01 - self.leaps_ms) / self.rate

    def start(self) -> None:
        """Starts the process with what the disk holds."""
        self.up = True
        self.life += 1

    def die(self) -> None:
        """Kills the process; messages that it has not handled yet are lost."""
        self.up = False
        self.life += 1
        self.paused = False
        self.held.clear()

    def resume(self) -> None:
        """Continues after a pause, and handles the messages that arrived meanwhile, in any order."""
        self.paused = False
        held, self.held = self.held, []
        self.world.random.shuffle(held)
        for action, args in held:
            if self.up:
                self.receive(action, *args)

    def receive(self, action: Callable[..., None], *args: Any) -> None:
        """Runs an action on the machine, now or after its pause."""
        if not self.up:
            return
        if self.paused:
            self.held.append((action, args))
        else:
            action(*args)
            self.check_invariants()

    def check_invariants(self) -> None:
        """Called after everything that the machine has handled: production's classes check the rules at
        their fields (InvariantError)."""

    def later(self, delay_ms: float, action: Callable[..., None], *args: Any) -> None:
        """Runs an action on the machine after a time on its own clock, if the process still lives then."""
        self.world.at(delay_ms / self.rate, self._later, self.life, action, args)

    def _later(self, life: int, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.life == life:
            self.receive(action, *args)

    def clock_leapt(self) -> None:
        """Called after the clock has leapt forward; timers may be due."""


class Call:
    """A call to another machine, until its response arrives or it times out."""

    __slots__ = ("back", "came_ms", "deadline_ms", "done", "life", "source", "target")

    def __init__(self, source: Host, target: Host, deadline_ms: float, back: Callable[..., None]) -> None:
        self.source = source
        self.target = target
        self.life = source.life
        self.deadline_ms = deadline_ms
        self.back = back
        self.came_ms = 0.0
        """When it reached the target, if the target has recorded that."""
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
        self.queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self.sequence = 0
        self.cuts: dict[tuple[str, str], float] = {}
        self.calls: deque[Call] = deque()
        self.history: list[str] = []
        self.quiet = False
        self.steps = 0
        self.event_counts: Counter[str] = Counter()
        """How often each kind of event occurred."""
        self.congested_until = 0.0
        """Until then every message takes long, and so messages arrive in any order."""
        self.latest: dict[tuple[str, str], float] = {}
        """When the latest message of each link arrives."""
        self.at(SWEEP_MS, self._sweep)

    # Time ---------------------------------------------------------------------------------------------------

    def at(self, delay_ms: float, action: Callable[..., object], *args: Any) -> None:
        """Schedules an action."""
        self.sequence += 1
        heapq.heappush(self.queue, (self.now + max(0.0, delay_ms), self.sequence, action, args))

    def run(self, until_ms: float) -> None:
        """Runs all actions up to a moment."""
        queue = self.queue
        while queue and queue[0][0] <= until_ms:
            self.now, _, action, args = heapq.heappop(queue)
            action(*args)
        self.now = until_ms

    def note(self, text: str) -> None:
        """Adds a line to the transcript."""
        self.history.append(f"{self.now:8.0f}  {text}")

    def count_event(self, what: str, times: int = 1) -> None:
        """Counts an event of this kind."""
        self.event_counts[what] += times

    def fail(self, text: str) -> None:
        """Ends the run, because a promise is broken."""
        raise ViolationError(text, self.now, self.history)

    def plan(self, events: list[Event]) -> None:
        """Schedules events."""
        for event in events:
            self.at(event.at_ms - self.now, self._carry_out, event)

    def _carry_out(self, event: Event) -> None:
        if not self.quiet:
            getattr(self, f"do_{event.kind}")(*event.args)

    def end_faults(self) -> None:
        """Ends all faults: links work and are fast, and all machines run."""
        self.quiet = True
        self.network = Network(delay_max_ms=5)
        self.note("-- quiet from here on --")
        self.cuts.clear()
        for host in self.hosts.values():
            if host.paused:
                host.resume()
            if not host.up:
                host.start()

    # The network --------------------------------------------------------------------------------------------

    def is_cut(self, source: Host, target: Host) -> bool:
        """Whether the link loses every message now."""
        return self.cuts.get((source.name, target.name), 0) > self.now

    def delay(self) -> float:
        """How long one message takes, milliseconds."""
        network = self.network
        if self.congested_until > self.now and not self.quiet:
            self.event_counts["delayed"] += 1
            return self.random.random() * CONGESTED_MAX_MS
        if network.slow and not self.quiet and self.random.random() < network.slow:
            self.event_counts["delayed"] += 1
            return self.random.random() * network.slow_max_ms
        return 0.2 + self.random.random() * network.delay_max_ms

    def send(self, source: Host, target: Host, action: Callable[..., None], *args: Any) -> None:
        """Sends one message: `action` runs at the target, unless the network loses the message."""
        network = self.network
        if not self.quiet and (network.drop or network.duplicate):
            luck = self.random.random()
            if luck < network.drop:
                self.event_counts["dropped"] += 1
                return
            if luck > 1 - network.duplicate:
                self.event_counts["duplicated"] += 1
                self.at(self.delay(), self._arrive, source, target, action, args)
        delay_ms = self.delay()
        link, arrives_ms = (source.name, target.name), self.now + delay_ms
        if arrives_ms < self.latest.get(link, 0.0):
            self.event_counts["reordered"] += 1
        else:
            self.latest[link] = arrives_ms
        self.at(delay_ms, self._arrive, source, target, action, args)

    def _arrive(self, source: Host, target: Host, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not target.up:
            return
        if self.cuts and self.is_cut(source, target):
            way = "cut one way" if not self.is_cut(target, source) else "cut both ways"
            self.event_counts[way] += 1
            return
        if target.paused:
            target.held.append((action, args))
        else:
            action(*args)
            target.check_invariants()

    def call(
        self, source: Host, target: Host, action: Callable[..., None], back: Callable[..., None], *args: Any
    ) -> None:
        """Calls another machine: `action(call, *args)` runs there, and `back(response)` here, once: with None
        if no response arrived in time."""
        call = Call(source, target, self.now + RPC_TIMEOUT_MS, back)
        self.calls.append(call)
        self.send(source, target, action, call, *args)

    def answer(self, call: Call, response: object) -> None:
        """Sends the response to a call."""
        self.send(call.target, call.source, self._on_response, call, response)

    def _on_response(self, call: Call, response: object) -> None:
        if not call.done and call.source.life == call.life:
            call.done = True
            call.back(response)

    def _sweep(self) -> None:
        """Completes the calls that have timed out."""
        calls = self.calls
        while calls and (calls[0].done or calls[0].deadline_ms <= self.now):
            call = calls.popleft()
            if not call.done and call.source.life == call.life:
                call.source.receive(self._on_response, call, None)
        self.at(SWEEP_MS, self._sweep)

    def counts(self) -> dict[str, int]:
        """The counts of events and of completed work, by name."""
        return dict(self.event_counts)

    def live(self) -> None:
        """Runs the world from its beginning to its end. ViolationError if a promise was broken."""
        raise NotImplementedError

    # Events of every world ----------------------------------------------------------------------------------

    def host(self, who: str) -> Host:
        """The machine of this name. Worlds know more names, such as `leader`."""
        return self.hosts[who]

    def do_pause(self, who: str, duration_ms: float) -> None:
        """Pauses a machine: SIGSTOP, and SIGCONT after `duration_ms`."""
        host = self.host(who)
        if not host.up:
            return
        host.paused = True
        host.pauses += 1
        self.count_event("pauses")
        self.note(f"{host.name} is paused for {duration_ms:.0f} ms")
        self.at(duration_ms, self._end_pause, host, host.life, host.pauses)

    def _end_pause(self, host: Host, life: int, pause: int) -> None:
        if host.paused and (host.life, host.pauses) == (life, pause):
            self.note(f"{host.name} resumes")
            host.resume()

    def do_cut(self, one: str, two: str, both: bool, duration_ms: float) -> None:
        """Cuts a link, one way or both: it loses every message."""
        source, target = self.host(one), self.host(two)
        if source is target:
            return
        self._cut(source, target, duration_ms)
        if both:
            self._cut(target, source, duration_ms)
        arrow = "<->" if both else "->"
        self.note(f"{source.name} {arrow} {target.name} is cut for {duration_ms:.0f} ms")

    def do_isolate(self, who: str, way: str, duration_ms: float) -> None:
        """Isolates a machine: nothing that it sends arrives (`out`), nothing reaches it (`in`), or both."""
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
        """Congests the network: for a time every message is late, and messages arrive in any order."""
        self.congested_until = max(self.congested_until, self.now + duration_ms)
        self.note(f"the network is congested for {duration_ms:.0f} ms")

    def do_leap(self, who: str, by_ms: float) -> None:
        """Makes a machine's clock leap forward."""
        host = self.host(who)
        host.leaps_ms += by_ms
        self.count_event("clock leaps")
        self.note(f"the clock of {host.name} leaps forward by {by_ms:.0f} ms")
        host.clock_leapt()
