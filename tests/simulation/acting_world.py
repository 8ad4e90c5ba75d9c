"""A group without controllers under faults: who runs the special services, and which master is followed.

The promises:

1. Two brokers that reach a common nameserver never run the special services together for longer than one
   heartbeat interval and the delays of the network (`TOGETHER_MAX_MS`).
2. While a broker is in service and reaches a nameserver, the special services have an owner again within the
   time-out, one scan and one poll after the last fault (`OWNERLESS_MAX_MS`).
3. A slave that no nameserver has answered for the time-out does not act.
4. An isolated broker never runs the special services.
5. After the faults the master runs them, and every slave follows it, holds no pull, and knows how many
   brokers are alive. After the master's end the slave with the smallest id runs them, and no slave follows
   the master.
6. A master goes online only when every slave that the nameservers list follows its log and has given its
   tables, and with no less progress than the slave with the smallest id.
7. A slave goes online only when it lacks fewer than `LAG_MAX` messages of a master that the nameservers list.
8. When the master returns after the faults, it is online within `RETURN_MAX_MS`; no message is lost, and no
   more messages come twice than were due while the slave's copy of the tables was old, and while both brokers
   ran the special services (`REPEATED_MAX`).

A master that reaches no nameserver continues to serve, as RocketMQ's does; promise 1 does not cover it.
"""

from __future__ import annotations

import itertools
import random

from epochmq_broker.membership.acting.member_group import MinBrokerIdChange
from tests.simulation import fault_plan
from tests.simulation.acting_group import (
    HA_PORT,
    HEARTBEAT_MS,
    PERIOD_MS,
    POLL_MS,
    SCAN_MS,
    TIMEOUT_MS,
    BrokerHost,
    NameserverHost,
)
from tests.simulation.acting_progress import MESSAGE_MS, STEP_MS, TABLES_MS, Deliveries
from tests.simulation.clockwork import RPC_TIMEOUT_MS, Host, Network, World
from tests.simulation.fault_plan import Plan

CHECK_MS = 50
DELAY_MAX_MS = 60.0
DRIFT = 0.02
TOGETHER_MAX_MS = (HEARTBEAT_MS + 6 * DELAY_MAX_MS) * (1 + DRIFT) + 2 * CHECK_MS
OWNERLESS_MAX_MS = (
    (TIMEOUT_MS + SCAN_MS + HEARTBEAT_MS + 2 * POLL_MS) * (1 + DRIFT) + RPC_TIMEOUT_MS + 10 * DELAY_MAX_MS
)
RETURN_MAX_MS = 8000.0
REPEATED_MAX = (TABLES_MS + 2 * STEP_MS + TOGETHER_MAX_MS + HEARTBEAT_MS) / MESSAGE_MS
SETTLED_MS = 1500.0
"""How long links and nameservers must have worked before promises about them hold."""

RATES = {
    "kill": 6.0,
    "pause": 3.0,
    "late": 6.0,
    "cut_off": 3.0,
    "isolate": 2.0,
    "restart": 2.0,
    "flap": 1.0,
}


def plan(seed: int) -> Plan:
    """Plans a seed: two or three brokers, one or two nameservers, and the mixture of faults."""
    rng = random.Random(f"acting {seed}")
    brokers, nameservers = rng.choice((2, 3)), rng.choice((1, 1, 2))
    found = Plan(
        seed,
        Network(delay_max_ms=rng.choice((2, 10, DELAY_MAX_MS))),
        peers=brokers,
        drift=DRIFT,
        options={
            "nameservers": nameservers,
            "lost_notifications": rng.choice((0.0, 0.3, 1.0)),
            "unnoticed_ends": rng.choice((0.0, 0.5, 1.0)),
            "start_max_ms": rng.choice((10, 500, 3000)),
        },
        faults_ms=90_000,
        quiet_ms=45_000,
    )
    names = [f"b{number}:10911" for number in range(brokers)]
    servers = [f"n{number}" for number in range(nameservers)]

    def who(r: random.Random) -> str:
        return names[0] if r.random() < 0.5 else r.choice(names)

    def down(r: random.Random) -> float:
        return round(r.choice((300, 3000, 40_000)) * (0.5 + r.random()))

    makers: dict[str, fault_plan.Make] = {
        "kill": lambda r: (who(r), down(r)),
        "pause": lambda r: (who(r), round(r.choice((700, 8000, 18_000)) * (0.5 + r.random()))),
        "late": lambda r: (who(r), r.choice(servers), round(r.uniform(5000, 40_000)), r.uniform(0, 20_000)),
        "cut_off": lambda r: (
            who(r),
            r.choice(servers),
            round(r.choice((3000, 60_000)) * (0.5 + r.random())),
        ),
        "isolate": lambda r: (who(r), "both", round(r.uniform(500, 40_000))),
        "restart": lambda r: (r.choice(servers), round(r.choice((50, 2000, 15_000)) * (0.5 + r.random()))),
        "flap": lambda r: (r.randint(3, 8), round(r.uniform(300, 4000))),
    }
    rates = fault_plan.mixture(rng, RATES)
    streams = [
        fault_plan.stream(rng, kind, rate, found.faults_ms, makers[kind]) for kind, rate in rates.items()
    ]
    found.events = fault_plan.sequence(streams)
    return found


class ActingWorld(World):
    """One group and its nameservers."""

    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        super().__init__(plan.seed, plan.network, verbose=verbose)
        self.wanted = plan
        self.start_max_ms = float(plan.options["start_max_ms"])
        """The longest time from a broker's start to its first request."""
        self.deliveries = Deliveries()
        self.nameservers = [
            NameserverHost(self, f"n{number}") for number in range(plan.options["nameservers"])
        ]
        self.brokers = [BrokerHost(self, number) for number in range(plan.peers)]
        self.hosts = {host.name: host for host in (*self.nameservers, *self.brokers)}
        for host in self.hosts.values():
            host.rate = 1 + (self.random.random() * 2 - 1) * plan.drift / 2
        self.late: dict[tuple[str, str], tuple[float, float]] = {}
        """(broker, nameserver) → (until when heartbeats are late, by how much), ms."""
        self.disturbed_ms = 0.0
        """When the latest fault began or ended."""
        self.reached: dict[tuple[str, str], float] = {}
        """(broker, nameserver) → since when both run and their links work."""
        self.together: dict[tuple[str, str], float] = {}
        self.owned_ms = 0.0

    # Access

    def broker(self, address: str) -> BrokerHost:
        """The broker at an address."""
        found = self.hosts[address]
        assert isinstance(found, BrokerHost)
        return found

    def ha_server(self, ha_address: str) -> BrokerHost:
        """The broker that serves its log at an address."""
        return self.broker(ha_address.removesuffix(HA_PORT))

    def nameserver(self, name: str) -> NameserverHost:
        """The nameserver of this name."""
        found = self.hosts[name]
        assert isinstance(found, NameserverHost)
        return found

    # Messages with faults of their own

    def is_noticed(self) -> bool:
        """Draws whether the other end notices that a connection was closed."""
        return self.quiet or self.random.random() >= self.wanted.options["unnoticed_ends"]

    def notify(self, nameserver: NameserverHost, broker: BrokerHost, change: MinBrokerIdChange) -> None:
        """Sends a notification, or loses it."""
        if self.random.random() < self.wanted.options["lost_notifications"]:
            self.count_event("notifications lost")
            return
        self.count_event("notifications")
        self.send(nameserver, broker, broker.min_id_changed, change)

    def send_heartbeat(self, broker: BrokerHost, nameserver: NameserverHost) -> None:
        """Sends a heartbeat, which may be late."""
        until_ms, by_ms = self.late.get((broker.name, nameserver.name), (0.0, 0.0))
        if until_ms > self.now and not self.quiet:
            self.count_event("heartbeats late")
            self.at(by_ms, self._send_late_heartbeat, broker, nameserver)
        else:
            self.send(broker, nameserver, nameserver.heartbeat, broker.name)

    def _send_late_heartbeat(self, broker: BrokerHost, nameserver: NameserverHost) -> None:
        self._disturb()  # it makes a broker that has ended meanwhile look alive
        self.send(broker, nameserver, nameserver.heartbeat, broker.name)

    # The run

    def live(self) -> None:
        """Runs the faults, then a quiet time, then the master's end and its return."""
        for host in self.hosts.values():
            host.start()
        self.at(CHECK_MS, self._check)
        self.plan(self.wanted.events)
        self.run(self.wanted.faults_ms)
        self.end_faults()
        self.disturbed_ms = self.now
        self.run(self.now + self.wanted.quiet_ms / 2)
        self._check_with_master()
        self._kill(self.brokers[0])
        ended_ms = self.now
        self.run(self.now + self.wanted.quiet_ms / 2)
        self._check_without_master()
        self._start(self.brokers[0], self.brokers[0].life)
        self.run(self.now + RETURN_MAX_MS)
        self._check_with_master()
        self._check_deliveries(ended_ms)

    def services_changed(self, broker: BrokerHost) -> None:
        """Checks after each decision of a broker."""
        self.steps += 1

    # Faults

    def _disturb(self) -> None:
        self.disturbed_ms = self.now

    def do_kill(self, who: str, down_ms: float) -> None:
        """Kills a broker; it starts again."""
        broker = self.broker(who)
        if broker.up:
            self.count_event("kills")
            self._kill(broker)
            self.at(down_ms, self._start, broker, broker.life)

    def _kill(self, broker: BrokerHost) -> None:
        self._disturb()
        self.note(f"{broker.name} is killed")
        channel = (broker.name, broker.life)
        broker.die()
        for nameserver in self.nameservers:
            if self.is_noticed():
                self.send(broker, nameserver, nameserver.connection_lost, channel)

    def _start(self, host: Host, life: int) -> None:
        if not host.up and host.life == life:
            self._disturb()
            self.note(f"{host.name} starts")
            host.start()

    def do_flap(self, times: int, down_ms: float) -> None:
        """Kills the master again and again."""
        self.count_event("flaps")
        for turn in range(times):
            self.at(turn * 2 * down_ms, self._flap, down_ms)

    def _flap(self, down_ms: float) -> None:
        if not self.quiet:
            self.do_kill(self.brokers[0].name, down_ms)

    def do_restart(self, who: str, down_ms: float) -> None:
        """Kills a nameserver; it starts again with empty tables."""
        nameserver = self.nameserver(who)
        if not nameserver.up:
            return
        self._disturb()
        self.count_event("nameservers restarted")
        self.note(f"{who} is killed")
        nameserver.die()
        for broker in self.brokers:
            if self.is_noticed():
                self.send(nameserver, broker, broker.connection_closed, nameserver)
        self.at(down_ms, self._start, nameserver, nameserver.life)

    def do_late(self, who: str, at: str, duration_ms: float, by_ms: float) -> None:
        """Delays a broker's heartbeats to one nameserver."""
        self._disturb()
        self.at(duration_ms + by_ms, self._disturb)
        self.note(f"heartbeats of {who} to {at} are {by_ms:.0f} ms late for {duration_ms:.0f} ms")
        self.late[(who, at)] = (self.now + duration_ms, by_ms)

    def do_cut_off(self, who: str, at: str, duration_ms: float) -> None:
        """Cuts the links between a broker and one nameserver, both ways."""
        self.count_event("cut off")
        self.do_cut(who, at, True, duration_ms)
        self._disturb()
        self.at(duration_ms, self._disturb)

    def do_isolate(self, who: str, way: str, duration_ms: float) -> None:
        """Cuts a broker off from everything."""
        self.count_event("isolated")
        super().do_isolate(who, way, duration_ms)
        self._disturb()
        self.at(duration_ms, self._disturb)

    def do_pause(self, who: str, duration_ms: float) -> None:
        """Stops a process, and continues it."""
        super().do_pause(who, duration_ms)
        self._disturb()
        self.at(duration_ms, self._disturb)

    # Checks

    def _check(self) -> None:
        self.at(CHECK_MS, self._check)
        self._note_reached()
        self._check_together()
        self._check_owner()
        self._check_cut_off()

    def _note_reached(self) -> None:
        for broker, nameserver in itertools.product(self.brokers, self.nameservers):
            key = (broker.name, nameserver.name)
            works = (
                broker.up
                and not broker.paused
                and nameserver.up
                and not self.is_cut(broker, nameserver)
                and not self.is_cut(nameserver, broker)
            )
            if not works:
                self.reached.pop(key, None)
            else:
                self.reached.setdefault(key, self.now)

    def _reaches(self, broker: BrokerHost, nameserver: NameserverHost) -> bool:
        since_ms = self.reached.get((broker.name, nameserver.name))
        return since_ms is not None and self.now - since_ms > SETTLED_MS

    def _check_together(self) -> None:
        """Promise 1."""
        for one, two in itertools.combinations(self.brokers, 2):
            pair = (one.name, two.name)
            common = any(self._reaches(one, at) and self._reaches(two, at) for at in self.nameservers)
            if not (one.runs and two.runs and common):
                self.together.pop(pair, None)
                continue
            since_ms = self.together.setdefault(pair, self.now)
            if self.now - since_ms > TOGETHER_MAX_MS:
                self.fail(f"{one.name} and {two.name} run the special services together")

    def _check_owner(self) -> None:
        """Promise 2."""
        candidates = [
            broker
            for broker in self.brokers
            if broker.in_service and any(self._reaches(broker, at) for at in self.nameservers)
        ]
        if any(broker.runs for broker in self.brokers) or not candidates:
            self.owned_ms = self.now
        elif self.now - max(self.owned_ms, self.disturbed_ms) > OWNERLESS_MAX_MS:
            names = ", ".join(broker.name for broker in candidates)
            self.fail(f"no broker runs the special services, and these are in service: {names}")

    def _check_cut_off(self) -> None:
        """Promise 3."""
        for broker in self.brokers[1:]:
            if broker.runs and broker.clock() - broker.heard_ms > TIMEOUT_MS + PERIOD_MS + 2 * CHECK_MS:
                self.fail(f"{broker.name} acts, and no nameserver has answered it since {broker.heard_ms} ms")

    def _check_with_master(self) -> None:
        """Promise 5, while the master lives."""
        master = self.brokers[0]
        if not master.runs:
            self.fail("the master does not run the special services")
        for slave in self.brokers[1:]:
            if slave.runs:
                self.fail(f"{slave.name} runs the special services beside the master")
            if (slave.followed, slave.followed_ha) != (master.name, master.name + HA_PORT):
                self.fail(f"{slave.name} follows {slave.followed} ({slave.followed_ha}), not the master")
            if slave.holds_pulls:
                self.fail(f"{slave.name} still holds pulls, and the master is online")
        for broker in self.brokers:
            if broker.alive != len(self.brokers):
                self.fail(f"{broker.name} counts {broker.alive} living brokers of {len(self.brokers)}")

    def _check_without_master(self) -> None:
        """Promise 5, after the master's end."""
        slaves = self.brokers[1:]
        if [slave.runs for slave in slaves] != [True] + [False] * (len(slaves) - 1):
            self.fail("after the master's end, not exactly the slave with the smallest id acts")
        for slave in slaves:
            if slave.followed is not None:
                self.fail(f"{slave.name} still follows the master that has ended")
            if slave.alive != len(slaves):
                self.fail(f"{slave.name} counts {slave.alive} living brokers of {len(slaves)}")

    def _check_deliveries(self, ended_ms: float) -> None:
        """Promise 8. The master ended at `ended_ms`, and is back."""
        repeated = self.deliveries.repeated_since(ended_ms)
        if repeated > REPEATED_MAX:
            self.fail(f"{repeated} messages came twice since the master's end")
        lost = self.deliveries.missing(self.now - RETURN_MAX_MS)
        if lost:
            self.fail(f"{len(lost)} messages never came, the first of them {lost[0]}")
        if not any(at > ended_ms for times in self.deliveries.delivered for at, _ in times):
            self.fail("no message was due while the slave acted")
