"""The gates that a request passes before its handler, as one ordered table.

`ordered_gates` is the table. Each gate says which request codes it concerns, puts itself in front of their
handlers, and says whether it stops any request now. Requests of clients pass all gates, those of the admin
socket only the gates of the broker. Why this order:

- Fast failure comes first, because a request that has waited too long must cost nothing more. The server
  applies it (`RequestDispatcher.check_requests`), and runs no fast handler meanwhile.
- Members prove what they are before anything else: their requests are nobody else's, whatever the access
  control permits.
- An isolated master rejects requests before the access control: no sender may make them.
- Access comes before the broker's name: a rejection by name tells which broker this is.
- A request for another broker is rejected here, not relayed: the relay goes to this broker's group.
- A slave rejects what changes tables, once it is clear that the sender may ask, and means this broker.
- A request that is only relayed is relayed before its queue is translated: the master has the mapping, and
  translates it again.
- A static topic's request asks for its physical queue behind the gate of cold reads, for each item anew.
- The access to a message that a request names by its place in the log needs the message, perhaps from the
  disk. It comes before a request is held or relayed.
- The gate that holds requests stands behind that of cold reads. A request that waited for the disk passes it
  again before it runs again, because a switchover may have begun meanwhile. A held request that is served
  here afterwards passes the gate of cold reads once more.

Inside the handlers follow the rules that need the decoded header: the role, permissions of topics, lease,
replicas in sync and the disk (`MessageWriter.rejection`, `MessageStore.append`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from epochmq_broker.auth.access_control import AccessControl
from epochmq_broker.auth.strict_rules import RECORD_CODES
from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.membership.acting.isolation import IsolationGate
from epochmq_broker.membership.controlled.handover import Handover
from epochmq_broker.membership.controlled.request_gate import RequestGate
from epochmq_broker.requests.fast_handler import FastHandler, GateName, Port
from epochmq_broker.requests.processors.broker_name_check import reject_requests_for_others
from epochmq_broker.requests.processors.slave_rejection import reject_changes_on_slave
from epochmq_broker.requests.processors.static_topics import TRANSLATED_CODES, StaticTopicProcessor
from epochmq_broker.requests.record_access import RecordAccess
from epochmq_broker.requests.request_rules import rule_of
from epochmq_broker.services.cold_reads import ColdReadRetrier
from epochmq_protocol.member_requests import BROKER_REQUESTS
from epochmq_protocol.transport.connection import FastRequestHandler, RequestHandler
from epochmq_protocol.transport.member_authentication import MemberAuthentication

Handlers = Mapping[int, RequestHandler]
"""Request code → handler."""


class Gate(Struct, frozen=True, kw_only=True):
    """One gate of one broker."""

    name: GateName
    concerns: Callable[[int], object]
    """Whether requests with this code pass the gate."""
    guard: Callable[[Handlers], Handlers]
    """Returns these handlers, all of codes that it concerns, with the gate in front of each."""
    may_stop: Callable[[], bool] = lambda: True
    """Whether the gate may stop a request now, so that a fast handler must satisfy it."""
    clients_only: bool = False
    """Whether only requests of the ports pass the gate, not those of the admin socket."""


def ordered_gates(
    *,
    live: LiveConfig,
    isolation: IsolationGate | None,
    access: AccessControl,
    unverified: Handlers,
    handover: RequestGate | None,
    static_topics: StaticTopicProcessor,
    cold_reads: ColdReadRetrier,
    records: RecordAccess,
    members: MemberAuthentication | None = None,
) -> tuple[Gate, ...]:
    """The gates of a broker, the outermost first. `isolation`: of a broker that may start isolated.
    `handover`: of a broker under controllers. `unverified`: the handlers of requests that the access control
    has served in another way, instead of rejecting them. `members`: None where nobody proves a membership."""
    gates = [
        Gate(
            name=GateName.FAST_FAILURE,
            concerns=_every_code,
            guard=dict,
            may_stop=_never,  # the server itself runs no fast handler then
            clients_only=True,
        )
    ]
    if members is not None:
        gates.append(
            Gate(
                name=GateName.MEMBERS,
                concerns=lambda code: code in BROKER_REQUESTS,
                guard=lambda handlers: {c: members.guard_one(handler) for c, handler in handlers.items()},
                clients_only=True,
            )
        )
    if isolation is not None:
        gates.append(
            Gate(
                name=GateName.ISOLATION,
                concerns=lambda code: rule_of(code).isolated,
                guard=lambda handlers: {c: isolation.guard(handler) for c, handler in handlers.items()},
                may_stop=lambda: isolation.is_closed,
                clients_only=True,
            )
        )
    gates += [
        Gate(
            name=GateName.ACCESS,
            concerns=_every_code,
            guard=lambda handlers: access.guard(handlers, unverified),
            may_stop=lambda: access.enabled,
            clients_only=True,
        ),
        Gate(
            name=GateName.BROKER_NAME,
            concerns=lambda code: rule_of(code).name_field,
            guard=lambda handlers: reject_requests_for_others(handlers, live),
            clients_only=True,
        ),
        Gate(
            name=GateName.MASTER_ONLY,
            concerns=lambda code: rule_of(code).changes_tables,
            guard=lambda handlers: reject_changes_on_slave(handlers, live),
            clients_only=True,
        ),
    ]
    if handover is not None:
        gates.append(
            Gate(
                name=GateName.RELAY,
                concerns=lambda code: rule_of(code).handover is Handover.RELAYED,
                guard=partial(_with_handover, handover, None),
            )
        )
    gates += [
        Gate(
            name=GateName.STATIC_TOPICS,
            concerns=lambda code: code in TRANSLATED_CODES,
            guard=static_topics.translate,
        ),
        Gate(name=GateName.COLD_READS, concerns=_reads_store, guard=cold_reads.wrap),
        Gate(
            name=GateName.RECORD_ACCESS,
            concerns=lambda code: code in RECORD_CODES,
            guard=records.guard,
            may_stop=lambda: access.checks_records,
            clients_only=True,
        ),
    ]
    if handover is not None:
        gates.append(
            Gate(
                name=GateName.HOLD,
                concerns=lambda code: rule_of(code).handover in _HELD,
                guard=partial(_with_handover, handover, cold_reads),
            )
        )
    return tuple(gates)


_HELD: Final = frozenset({Handover.HELD, Handover.HELD_ONLY})


def _every_code(_code: int) -> bool:
    return True


def _never() -> bool:
    return False


def _reads_store(code: int) -> bool:
    return not rule_of(code).reads_cold_itself


def _with_handover(gate: RequestGate, cold_reads: ColdReadRetrier | None, handlers: Handlers) -> Handlers:
    """`cold_reads`: the gate of cold reads, if it stands in front of this one."""
    after_hold = dict(handlers)
    if cold_reads is not None:
        after_hold |= cold_reads.wrap({code: h for code, h in handlers.items() if _reads_store(code)})
    return {
        code: gate.guard(handler, rule_of(code).handover, after_hold[code])
        for code, handler in handlers.items()
    }


def compose(gates: Sequence[Gate], handlers: Handlers) -> dict[int, RequestHandler]:
    """The handlers with these gates in front of them; the first gate is the outermost."""
    guarded = dict(handlers)
    for gate in reversed(gates):
        guarded |= gate.guard({code: h for code, h in guarded.items() if gate.concerns(code)})
    return guarded


class RequestPipeline:
    """The gates of one broker, and the handlers behind them."""

    def __init__(
        self,
        gates: Sequence[Gate],
        *,
        common: Handlers,
        main_only: Handlers,
        fast: Sequence[FastHandler],
        default: RequestHandler | None,
    ) -> None:
        """`common`: the handlers that every port has; `main_only`: pulls and POPs, which only the main port
        serves. `default`: the handler of requests that no other serves; None: the server rejects them."""
        self.gates = tuple(gates)
        self.fast = tuple(fast)
        self.default = default
        self.served = {Port.MAIN: {**common, **main_only}, Port.VIP: dict(common)}
        """The handlers of each port, without gates."""
        self.in_process = compose([gate for gate in gates if not gate.clients_only], common)
        """The handlers for requests from inside the process: of the admin socket."""

    def handlers(self, port: Port) -> dict[int, RequestHandler]:
        """The handlers of a port outside the fast paths."""
        return compose(self.gates, self.served[port])

    def fast_handlers(self, port: Port) -> dict[bytes, FastRequestHandler]:
        """Start of a JSON header → handler, of the fast handlers that may run on a port now: each gate that
        may stop their requests they satisfy themselves."""
        return {
            start: fast.serve
            for fast in self.fast
            if port in fast.ports and all(_may_pass(fast, gate) for gate in self.gates)
            for start in fast.starts
        }


def _may_pass(fast: FastHandler, gate: Gate) -> bool:
    """Whether a fast handler may run in front of a gate now."""
    return gate.name in fast.satisfies or not (any(map(gate.concerns, fast.codes)) and gate.may_stop())
